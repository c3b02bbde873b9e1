//! Finds out what this kernel and these privileges allow.
//!
//! [`report`] finds out by trying, on small memory of its own, and never by the kernel's version: a
//! distribution may have patched a feature in, and a container may have taken it away.

mod capability;
mod faults;
mod hints;
mod huge;
mod json;
mod limits;
mod obstacle;
mod outcome;
mod privileges;
mod report;
mod scratch;
mod selftest;

use cowslip_sys::units::ByteCount;
use privileges::OwnProcess;

pub use capability::{Answer, Capability, Cost, Need};
pub use obstacle::{Obstacle, huge_pages_obstacle, thaw_obstacle};
pub use report::{Report, Standing};

/// Memory and swap of this machine.
pub fn memory_and_swap() -> ByteCount {
    cowslip_sys::process::memory_and_swap()
}

/// Tries every mechanism that Cowslip builds on, and Cowslip itself, and measures their cost here.
///
/// It takes a fraction of a second and some 20 MiB, starts threads, forks children, and leaves
/// nothing behind; no setting is changed.
///
/// ```
/// use cowslip::host::{self, Standing};
///
/// let report = host::report();
/// if report.standing() != Standing::Full {
///     eprintln!("{}", report.sentence());
/// }
/// ```
pub fn report() -> Report {
    let own = OwnProcess::look();
    let faults = faults::probe(&own);
    let huge = huge::probe(&own);
    let limits = limits::probe(&own, &faults, &huge);
    let works = selftest::probe(&faults);
    Report { capabilities: [faults, huge, limits, works].into_iter().flatten().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_probe_answers_once_and_says_why_not() {
        let report = report();
        let mut names: Vec<_> =
            report.capabilities.iter().map(|capability| capability.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), report.capabilities.len());
        for capability in &report.capabilities {
            if let Answer::Denied { hint } = &capability.answer {
                assert!(!hint.is_empty(), "{capability:?}");
            }
            assert!(
                capability.answer.is_available() || capability.cost.is_none(),
                "{capability:?}"
            );
            assert!(
                capability.answer.is_available() || !capability.detail.is_empty(),
                "{capability:?}"
            );
        }
        // With any privileges, a freeze without userfaultfd works on every kernel that runs these tests.
        assert!(report.get("freeze").unwrap().answer.is_available(), "{report:?}");
        assert!(report.get("fork").unwrap().answer.is_available(), "{report:?}");
    }
}
