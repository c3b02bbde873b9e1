//! Patterns of a trace as a whole: copies between the kernel and the program, hints for the balance between nodes.

use super::{Draft, Pattern, PatternName, is_many};
use crate::analysis::Analysis;
use crate::attribute::FaultKind;
use crate::format::{counted, percent};

/// Faults in the kernel's copies to and from user memory.
pub(super) fn kernel_copies(analysis: &Analysis) -> Option<Pattern> {
    let faults = analysis.sums.in_kernel_mode;
    if !is_many(analysis, faults) {
        return None;
    }
    let share = percent(faults as f64, analysis.sums.faults() as f64);
    let times = counted(analysis.scaled(faults), "fault");
    let draft = Draft {
        analysis,
        name: PatternName::KernelCopies,
        group: None,
        faults,
        among: &analysis.sums,
        evidence: format!(
            "{times} ({share}) taken by the kernel for the program: system calls on memory that was not \
             there, such as read(2) into a new buffer"
        ),
        is_cost_known: true,
        advice: Some("use buffers again, or fill them first (MAP_POPULATE)".into()),
        faults_with_huge_pages: None,
    };
    Some(draft.finish())
}

/// Faults on pages that were there, while the kernel balances memory between nodes.
pub(super) fn numa_hints(analysis: &Analysis) -> Option<Pattern> {
    let faults = analysis.sums.faults_of_kind(FaultKind::Repeated);
    let balancing = analysis.header.machine.sysctl.get("kernel.numa_balancing")?;
    if balancing == "0" || !is_many(analysis, faults) {
        return None;
    }
    let times = counted(analysis.scaled(faults), "fault");
    let draft = Draft {
        analysis,
        name: PatternName::NumaHints,
        group: None,
        faults,
        among: &analysis.sums,
        evidence: format!(
            "{times} on pages that were there, while the kernel balances memory between nodes \
             (kernel.numa_balancing is {balancing})"
        ),
        is_cost_known: true,
        advice: Some(
            "run it on one node (numactl --cpunodebind=0 --membind=0), or switch the balancing off: sysctl \
             kernel.numa_balancing=0"
                .into(),
        ),
        faults_with_huge_pages: None,
    };
    Some(draft.finish())
}
