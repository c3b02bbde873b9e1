//! Groups of mappings of the same kind: the rows of the table of mappings.

use serde::Serialize;

use crate::analysis::{Analysis, Group, MappingIdentity};
use crate::attribute::{MappingId, Place};
use crate::format;

/// Numbered like those of an [`Analyser`](crate::analysis::Analyser): in the order of their first mappings.
#[derive(Debug)]
pub(super) struct Groups {
    pub(super) rows: Vec<Row>,
    /// By index in the analysis.
    numbers: Vec<u32>,
    of_mapping: Vec<u32>,
}

/// The group of faults at addresses without a known mapping.
pub(super) const NOWHERE: u32 = 0;

#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) detail: String,
    pub(super) tint: Tint,
}

/// The colour of the bars.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Tint {
    File,
    Anonymous,
    Special,
}

impl Groups {
    pub(super) fn from_analysis(analysis: &Analysis) -> Self {
        let mut rows = vec![Row {
            name: "nothing known is mapped there".to_owned(),
            detail: String::new(),
            tint: Tint::Special,
        }];
        let mut numbers = vec![NOWHERE; analysis.groups.len()];
        let mut of_mapping = Vec::with_capacity(analysis.group_of.len());
        for &place in &analysis.group_of {
            let number = &mut numbers[place as usize];
            if *number == NOWHERE {
                *number = rows.len() as u32;
                rows.push(row(&analysis.groups[place as usize]));
            }
            of_mapping.push(*number);
        }
        Self { rows, numbers, of_mapping }
    }

    /// The number of the group with this index in the analysis.
    pub(super) fn number(&self, place: usize) -> u32 {
        self.numbers[place]
    }

    pub(super) fn of_mapping(&self, mapping: MappingId) -> u32 {
        self.of_mapping[mapping.0 as usize]
    }
}

fn row(group: &Group) -> Row {
    let MappingIdentity { place, mapped_by, .. } = &group.identity;
    let whole = format::mappings(group);
    let name = match place {
        Place::File(path) => path.rsplit('/').next().unwrap_or(path).to_owned(),
        _ => whole.clone(),
    };
    let tint = match place {
        Place::File(_) => Tint::File,
        Place::Stack | Place::ThreadStack => Tint::Special,
        place if place.begins_empty() => Tint::Anonymous,
        _ => Tint::Special,
    };
    let mapped_by = mapped_by.iter().map(|frame| format!("\nmapped by {frame}"));
    Row { name, detail: whole + &mapped_by.collect::<String>(), tint }
}
