//! The pattern of forks: writes after them copy pages.

use super::{Draft, Pattern, PatternName, is_many};
use crate::analysis::Analysis;
use crate::attribute::{FaultKind, Place};
use crate::format::{counted, mappings, percent};

pub(super) fn find(analysis: &Analysis) -> Option<Pattern> {
    let faults = analysis.sums.faults_of_kind(FaultKind::CowAfterFork);
    if !is_many(analysis, faults) {
        return None;
    }
    let most = analysis
        .groups
        .iter()
        .max_by_key(|group| group.sums.faults_of_kind(FaultKind::CowAfterFork))?;
    let share = percent(most.sums.faults_of_kind(FaultKind::CowAfterFork) as f64, faults as f64);
    let forks = counted(analysis.forks, "fork");
    let writes = counted(analysis.scaled(faults), "first write");
    let draft = Draft {
        analysis,
        name: PatternName::CowStorm,
        group: None,
        faults,
        among: &analysis.sums,
        evidence: format!(
            "{forks}, then {writes} to pages from before, {share} of them in {}",
            mappings(most)
        ),
        is_cost_known: true,
        advice: Some(if runs_python(analysis) {
            "gc.freeze() before the fork: the child's garbage collection then writes to no object that it \
             inherited"
                .into()
        } else {
            "`cowslip run` makes the fork itself short and keeps huge pages whole; each page is still \
             copied at its first write"
                .into()
        }),
        faults_with_huge_pages: None,
    };
    Some(draft.finish())
}

/// True if CPython's interpreter or library is mapped.
fn runs_python(analysis: &Analysis) -> bool {
    analysis.groups.iter().any(|group| match &group.identity.place {
        Place::File(path) => {
            let name = path.rsplit('/').next().unwrap_or_default();
            name.starts_with("python3") || name.starts_with("libpython3")
        }
        _ => false,
    })
}
