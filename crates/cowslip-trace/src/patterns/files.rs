//! Files read through mappings.

use super::{Draft, Pattern, PatternName};
use crate::analysis::{Analysis, Group};
use crate::attribute::Kind;
use crate::words::{counted, mappings};

/// Reading takes so much longer than other faults that fewer count.
const FEWEST: u64 = 20;

pub(super) fn find(analysis: &Analysis, group: &Group) -> Option<Pattern> {
    let faults = group.sums.of(Kind::FileRead);
    if faults < FEWEST {
        return None;
    }
    let times = counted(analysis.scaled(faults), "fault");
    let draft = Draft {
        analysis,
        name: PatternName::ColdFile,
        group: Some(group),
        faults,
        among: &group.sums,
        evidence: format!("{}, {times} that had to wait for its device", mappings(group)),
        advice: Some(
            "read ahead of use: madvise(MADV_WILLNEED or MADV_POPULATE_READ), MAP_POPULATE".into(),
        ),
        faults_with_huge_pages: None,
    };
    Some(draft.finish())
}
