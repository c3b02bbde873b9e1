//! Files behind mappings: read, and copied.

use super::{Draft, Pattern, PatternName, is_many};
use crate::analysis::{Analysis, Group};
use crate::attribute::FaultKind;
use crate::format::{counted, mappings};

/// A smaller number counts, because reading takes so much longer than other faults.
const FEWEST: u64 = 20;

/// A file read from its device.
pub(super) fn cold(analysis: &Analysis, group: &Group) -> Option<Pattern> {
    let faults = group.sums.faults_of_kind(FaultKind::FileRead);
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
        is_cost_known: true,
        advice: Some(
            "read ahead of use: madvise(MADV_WILLNEED or MADV_POPULATE_READ), MAP_POPULATE".into(),
        ),
        faults_with_huge_pages: None,
    };
    Some(draft.finish())
}

/// A file written to through a private mapping, such as an arena after a freeze.
pub(super) fn copies(analysis: &Analysis, group: &Group) -> Option<Pattern> {
    let faults = group.sums.faults_of_kind(FaultKind::FileCopy);
    if !is_many(analysis, faults) {
        return None;
    }
    let writes = counted(analysis.scaled(faults), "first write");
    let draft = Draft {
        analysis,
        name: PatternName::FileCopies,
        group: Some(group),
        faults,
        among: &group.sums,
        evidence: format!("{}, {writes} that copied a page of the file each", mappings(group)),
        is_cost_known: true,
        advice: None,
        faults_with_huge_pages: None,
    };
    Some(draft.finish())
}
