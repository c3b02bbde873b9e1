//! Pages below 2 MiB at faults: the size that suits the targets, and the setting that brings it.
//!
//! The settings of sizes belong to the whole system (`hugepages-<size>kB/enabled`), and no process can ask for huge
//! pages in the memory of another. `madvise` reaches memory that asked for huge pages, `always` reaches every program.
//! `always` is chosen only for a size that is cheap for the memory of all programs together.

use cowslip_sys as sys;
use cowslip_sys::error::{During, Result};
use cowslip_sys::procfs::{self, Policy};

use crate::model::{Advice, Recommendation, percent};

/// The setting of a size, before and after a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SizeChange {
    /// The size.
    pub page_bytes: u64,
    /// The setting before.
    pub before: Policy,
    /// The setting now.
    pub ours: Policy,
}

impl SizeChange {
    pub(crate) fn make(&self) -> Result<()> {
        let set = procfs::set_size_policy(self.page_bytes, &self.ours);
        set.during("set the size of pages at faults")
    }

    /// Puts the setting back unless it was changed elsewhere since; returns the resulting one.
    pub(crate) fn restore(&self) -> sys::Result<Policy> {
        let now = procfs::size_policy(self.page_bytes)?;
        if now != self.ours {
            return Ok(now);
        }
        procfs::set_size_policy(self.page_bytes, &self.before).map(|()| self.before.clone())
    }
}

/// The size of pages at faults for the targets, and the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SizeChoice {
    /// The change of its setting; `None` if there is none to make.
    pub change: Option<SizeChange>,
    /// The reason, for people.
    pub why: String,
}

impl SizeChoice {
    pub(crate) fn none(why: impl Into<String>) -> Self {
        Self { change: None, why: why.into() }
    }
}

/// The memory that a choice depends on.
#[derive(Debug)]
pub(crate) struct Weighed {
    /// That of all targets together.
    pub(crate) targets: Advice,
    /// The part of it that asked for huge pages.
    pub(crate) asking_bytes: u64,
    /// That of all programs together, the targets included.
    pub(crate) all: Advice,
}

/// Chooses the largest suitable size. `enabled` is the system's setting for all sizes; `policy_of` reads that of one.
pub(crate) fn choose(
    weighed: &Weighed,
    enabled: &Policy,
    policy_of: impl Fn(u64) -> sys::Result<Policy>,
) -> SizeChoice {
    let Weighed { targets, asking_bytes, all } = weighed;
    if *enabled == Policy::Never {
        return SizeChoice::none("transparent_hugepage/enabled is never");
    }
    let asks = asking_bytes * 2 >= targets.resident_bytes;
    let ours = if asks { Policy::Madvise } else { Policy::Always };
    let mut why = unsuited(targets).to_owned();
    for size in targets.at_fault() {
        let page_bytes = size.page_bytes;
        let before = match policy_of(page_bytes) {
            Ok(before) => before,
            Err(errno) => {
                why = refused(page_bytes, errno);
                continue;
            }
        };
        if !asks && !all.is_cheap(page_bytes) {
            why = "the size that suits the targets costs all programs together more than 10 %"
                .to_owned();
            continue;
        }
        let share =
            |bytes: u64, of: &Advice| percent(Some(bytes as f64 / of.resident_bytes as f64));
        let reach = match asks {
            true => "most of it asked for huge pages".to_owned(),
            false => {
                let added_bytes = all.size(page_bytes).map_or(0, |size| size.added_bytes);
                format!("{} more for all programs together", share(added_bytes, all))
            }
        };
        let why = format!(
            "{} of the targets' memory for {} more; {reach}",
            share(size.covered_bytes, targets),
            share(size.added_bytes, targets)
        );
        if before == Policy::Always || before == ours || follows(&before, enabled, &ours) {
            let folder = procfs::size_folder(page_bytes);
            return SizeChoice::none(format!(
                "{folder}/enabled is {} already: {why}",
                before.word()
            ));
        }
        return SizeChoice { change: Some(SizeChange { page_bytes, before, ours }), why };
    }
    SizeChoice::none(why)
}

/// True if the setting of a size follows the one for all sizes, and that is the wanted one.
fn follows(policy: &Policy, enabled: &Policy, wanted: &Policy) -> bool {
    policy.word() == "inherit" && enabled == wanted
}

/// The reason if no size suits.
fn unsuited(targets: &Advice) -> &'static str {
    match targets.recommendation() {
        Recommendation::Promote(_) => "most of the memory is dense enough for 2 MiB",
        Recommendation::TooLittle => "less than 16 MiB are in use",
        _ => "each size costs more than 10 % more memory, or covers less than half",
    }
}

fn refused(page_bytes: u64, errno: sys::Errno) -> String {
    let folder = procfs::size_folder(page_bytes);
    match errno {
        sys::Errno::NOENT => format!("this kernel has no {folder}/enabled (Linux 6.8)"),
        errno => format!("{folder}/enabled cannot be read: {errno}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Memory of which the first `used` of each 32 pages are resident.
    fn memory(used: usize) -> Advice {
        let mut advice = Advice::new(90);
        let pages: Vec<bool> = (0..256 << 10).map(|page| page % 32 < used).collect();
        advice.add(0, &pages);
        advice
    }

    fn chosen(targets: Advice, asking_bytes: u64, others: &Advice, before: &str) -> SizeChoice {
        let mut all = targets.clone();
        all.merge(others);
        let weighed = Weighed { targets, asking_bytes, all };
        choose(&weighed, &Policy::Madvise, |_| Ok(Policy::of_word(before)))
    }

    fn change(choice: &SizeChoice) -> Option<(u64, &str)> {
        choice.change.as_ref().map(|change| (change.page_bytes >> 10, change.ours.word()))
    }

    #[test]
    fn a_size_for_all_programs_is_cheap_for_all_of_them() {
        let none = Advice::new(90);
        let dense = memory(32);
        let suits = chosen(memory(16), 0, &none, "never");
        assert_eq!(change(&suits), Some((64, "always")), "{}", suits.why);
        assert!(
            suits.why.contains("100.0 % of the targets' memory for 0.0 % more"),
            "{}",
            suits.why
        );
        assert_eq!(change(&chosen(memory(16), 0, &dense, "never")), Some((64, "always")));
        let mut scattered = memory(4);
        assert_eq!(change(&chosen(memory(16), 0, &scattered, "never")), Some((16, "always")));
        scattered = memory(1);
        let costly = chosen(memory(16), 0, &scattered, "never");
        assert_eq!(change(&costly), None, "a page of each 32");
        assert!(costly.why.contains("all programs together"), "{}", costly.why);
        let asking = chosen(memory(16), 512 * MIB, &scattered, "never");
        assert_eq!(change(&asking), Some((64, "madvise")), "it reaches no other memory");
    }

    #[test]
    fn no_setting_is_changed_without_a_use() {
        let none = Advice::new(90);
        for (used, why) in [(32, "dense enough"), (1, "covers less than half")] {
            let choice = chosen(memory(used), 0, &none, "never");
            assert!(choice.change.is_none() && choice.why.contains(why), "{choice:?}");
        }
        let already = chosen(memory(16), 0, &none, "always");
        assert!(already.change.is_none() && already.why.contains("always already"), "{already:?}");
        assert_eq!(change(&chosen(memory(16), 512 * MIB, &none, "inherit")), None);
        assert_eq!(change(&chosen(memory(16), 0, &none, "inherit")), Some((64, "always")));
        let weighed = || Weighed { targets: memory(16), asking_bytes: 0, all: memory(16) };
        let choice = choose(&weighed(), &Policy::Never, |_| Ok(Policy::Never));
        assert!(choice.change.is_none() && choice.why.contains("enabled is never"), "{choice:?}");
    }

    #[test]
    fn a_kernel_without_a_size_is_told_and_the_next_smaller_one_is_taken() {
        let weighed = Weighed { targets: memory(16), asking_bytes: 0, all: memory(16) };
        let without = |missing: &'static [u64]| {
            choose(&weighed, &Policy::Madvise, |bytes| match missing.contains(&(bytes >> 10)) {
                true => Err(sys::Errno::NOENT),
                false => Ok(Policy::Never),
            })
        };
        assert_eq!(change(&without(&[64])), Some((32, "always")));
        let choice = without(&[16, 32, 64]);
        assert!(choice.change.is_none() && choice.why.contains("Linux 6.8"), "{choice:?}");
    }
}
