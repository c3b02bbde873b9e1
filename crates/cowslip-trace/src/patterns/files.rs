//! Files behind mappings: read, and copied.

use super::{Draft, Pattern, PatternName, is_many};
use crate::analysis::{Analysis, Group};
use crate::attribute::{FaultKind, Place};
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
    let (order, better) = match is_backwards(analysis, group) {
        true => (
            ", descending, which costs more: the kernel reads ahead in ascending order only",
            ", or from the beginning to the end",
        ),
        false => ("", ""),
    };
    let draft = Draft {
        analysis,
        name: PatternName::ColdFile,
        group: Some(group),
        faults,
        among: &group.sums,
        evidence: format!("{}, {times} that had to wait for its device{order}", mappings(group)),
        is_cost_known: true,
        advice: Some(format!(
            "read ahead of use: madvise(MADV_WILLNEED or MADV_POPULATE_READ), MAP_POPULATE{better}"
        )),
        faults_with_huge_pages: None,
    };
    Some(draft.finish())
}

/// True if the pages of a file come in descending order, as far as the events show all of them.
fn is_backwards(analysis: &Analysis, group: &Group) -> bool {
    let is_of_file = matches!(group.identity.place, Place::File(_));
    let shape = &group.shape;
    is_of_file && analysis.sampling_period == 1 && shape.is_regular() && shape.step_pages < 0
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
