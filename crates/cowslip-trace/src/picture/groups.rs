//! Mappings of the same kind together: the rows of the table of mappings.

use serde::Serialize;

use crate::analysis::{Analysis, Group, Identity};
use crate::attribute::{MappingId, Place};
use crate::words;

#[derive(Debug)]
pub(super) struct Groups {
    /// Those of the analysis, and one for faults where nothing known is mapped.
    pub(super) rows: Vec<Row>,
    of_mapping: Vec<u32>,
}

#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) detail: String,
    pub(super) tint: Tint,
}

/// What the bars are filled with.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Tint {
    File,
    Anonymous,
    Special,
}

impl Tint {
    /// Its name in the style sheet.
    pub(super) const fn colour(self) -> &'static str {
        match self {
            Self::File => "map-file",
            Self::Anonymous => "map-anonymous",
            Self::Special => "map-special",
        }
    }
}

impl Groups {
    pub(super) fn of(analysis: &Analysis) -> Self {
        let mut rows: Vec<_> = analysis.groups.iter().map(row).collect();
        rows.push(Row {
            name: "nothing known is mapped there".to_owned(),
            detail: String::new(),
            tint: Tint::Special,
        });
        Self { rows, of_mapping: analysis.group_of.clone() }
    }

    pub(super) fn of_mapping(&self, mapping: Option<MappingId>) -> u32 {
        let known = mapping.map(|mapping| self.of_mapping[mapping.0 as usize]);
        known.unwrap_or(self.rows.len() as u32 - 1)
    }
}

fn row(group: &Group) -> Row {
    let Identity { place, mapped_by, .. } = &group.identity;
    let whole = words::mappings(group);
    let name = match place {
        Place::File(path) => path.rsplit('/').next().unwrap_or(path).to_owned(),
        _ => whole.clone(),
    };
    let tint = match place {
        place if place.is_file() => Tint::File,
        Place::Anonymous | Place::Named(_) | Place::Heap | Place::Hugetlb => Tint::Anonymous,
        _ => Tint::Special,
    };
    let mapped_by = mapped_by.iter().map(|frame| format!("\nmapped by {frame}"));
    Row { name, detail: whole + &mapped_by.collect::<String>(), tint }
}
