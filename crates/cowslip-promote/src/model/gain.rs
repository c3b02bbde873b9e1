//! The gain from huge pages: processor time for a unit of work with them and without.

use cowslip_compare::stats::Estimate;
use serde::{Deserialize, Serialize};

/// The knowledge of a process' gain from huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GainState {
    /// It is shown, or no measurement is wanted: dense memory is promoted.
    #[default]
    Assumed,
    /// It is still to be measured.
    Unmeasured,
    /// A measurement showed none.
    NotShown,
}

/// The processor time and the work of a process in some time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Spent {
    pub(crate) cpu_ns: u64,
    pub(crate) work: f64,
}

impl Spent {
    fn of_a_unit(self) -> f64 {
        self.cpu_ns as f64 / self.work
    }
}

/// A period of each state, one after the other.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Pair {
    pub(crate) huge: Spent,
    pub(crate) base: Spent,
}

impl Pair {
    /// The logarithm of the ratio between the costs of a unit of work; `None` if there was none.
    pub(crate) fn effect(&self) -> Option<f64> {
        let effect = (self.huge.of_a_unit() / self.base.of_a_unit()).ln();
        let has_work = self.huge.work > 0.0 && self.base.work > 0.0;
        Some(effect).filter(|effect| has_work && effect.is_finite())
    }
}

/// The answer of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The gain is beyond the minimum: the huge pages stay.
    Gain,
    /// The gain is below the minimum: the huge pages are split again.
    NoGain,
    /// It cannot tell, for this reason: the huge pages are split again.
    Unclear(Unclear),
}

/// A reason why a measurement cannot tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unclear {
    /// Too little memory is dense.
    TooLittle,
    /// The process is hardly running.
    Idle,
    /// A thread runs all the time, so that processor time does not depend on the cost of its work.
    Saturated,
    /// The load changes too much for a comparison of processor time.
    Unsteady,
    /// Other processes have the same counter of work.
    UnitShared,
    /// The counter of work cannot be read, or does not grow.
    NoWork,
    /// No huge page is free, programs wait for memory, or the memory limit is near.
    NoRoom,
    /// A child shares the memory, the program releases it, or the kernel makes huge pages of it.
    Disturbed,
    /// The interval is still too wide when the time is over.
    TooNoisy,
    /// The operator ended it.
    Interrupted,
}

impl Unclear {
    /// A description for people.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::TooLittle => "less than 16 MiB are dense and on base pages",
            Self::Idle => "it uses hardly any processor time",
            Self::Saturated => {
                "a thread of it runs all the time: name a counter of its work with --unit"
            }
            Self::Unsteady => "its load changes: name a counter of its work with --unit",
            Self::UnitShared => "other processes have the same unit: give each its own",
            Self::NoWork => "its unit of work cannot be read, or does not grow",
            Self::NoRoom => {
                "no huge page is free for it, programs wait for memory, or its memory limit is near"
            }
            Self::Disturbed => {
                "a child shares its memory, it releases it, or the kernel makes huge pages of it"
            }
            Self::TooNoisy => "its cost changes too much by itself for so short a time",
            Self::Interrupted => "it was interrupted",
        }
    }
}

/// The unit by which processor time was compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UnitOfWork {
    /// A counter that the user named.
    Counter,
    /// Instructions in user mode.
    Instructions,
    /// Time, at a steady load.
    Time,
}

/// The result of a measurement.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Measurement {
    /// The answer.
    pub verdict: Verdict,
    /// The change of processor time for a unit of work by huge pages, percent, with its interval.
    pub change_percent: Option<Estimate>,
    /// Processor time that a huge page of the sample saved, ns a second.
    pub saved_ns: Option<f64>,
    /// The unit, if there was one.
    pub unit: Option<UnitOfWork>,
    /// Blocks of four periods that count.
    pub blocks: usize,
    /// Blocks that do not count, as the memory was not in the wanted state, or no work was done.
    pub void_blocks: usize,
    /// Dense memory on base pages at the beginning.
    pub dense_bytes: u64,
    /// The part of it that was made huge and split in turns.
    pub sample_bytes: u64,
    /// Absent pages that huge pages of the sample fill in.
    pub added_bytes: u64,
    /// The huge part of the sample in the end.
    pub huge_bytes: u64,
}
