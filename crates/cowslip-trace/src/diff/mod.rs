//! The differences between two traces.
//!
//! Mappings are compared by identity (file, callers, size class), not by address, which differs in each run.
//!
//! ```
//! use cowslip_trace::Analysis;
//! use cowslip_trace::diff::{Basis, Diff};
//! use cowslip_trace::model::Trace;
//! use cowslip_trace::symbols::Names;
//! let analysis = Analysis::new(&Trace::default(), None);
//! let names = &mut Names::default();
//! let diff = Diff::new([&analysis, &analysis], [names, &mut Names::default()], Basis::PerRun);
//! assert!(diff.is_empty());
//! ```

mod align;
mod explain;
mod settings;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::analysis::{Analysis, Shape};
use crate::attribute::{FaultKind, Place};
use crate::symbols::Names;

pub use settings::Setting;

/// The least factor between different numbers of faults.
const FACTOR: f64 = 1.25;
/// A difference is at least one in this many of all faults.
const SHARE: f64 = 100.0;
/// A difference is at least this many faults.
const FEWEST: f64 = 100.0;

/// The differences between two traces.
#[derive(Clone, Debug, Serialize)]
pub struct Diff {
    /// The basis on which numbers of faults are compared.
    pub basis: Basis,
    /// Both traces as a whole.
    pub sides: [Whole; 2],
    /// All kinds that occur.
    pub kinds: Vec<KindDiff>,
    /// The differing groups, those with the greatest difference of faults first.
    pub groups: Vec<GroupDiff>,
    /// Settings, environment and programs that differ.
    pub settings: Vec<Setting>,
    /// The probable causes of the difference, as far as there is evidence; the most probable first.
    pub explanations: Vec<String>,
}

/// The basis on which numbers of faults are compared.
///
/// ```
/// use cowslip_trace::diff::Basis;
/// assert_eq!(Basis::PerSecond.to_string(), "a second");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Faults a second.
    PerSecond,
    /// Faults in the whole trace: for programs that did the same work.
    PerRun,
}

/// A trace as a whole.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Whole {
    /// From the first event to the last, in nanoseconds.
    pub duration_ns: u64,
    /// Faults; with 1-in-N sampling, N times the recorded ones.
    pub faults: u64,
    /// Faults by the basis.
    pub compared: f64,
    /// Events that are missing.
    pub lost: u64,
    /// The number of faults that each recorded one stands for.
    pub sampling_period: u64,
}

/// One kind of fault in both traces.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct KindDiff {
    /// The kind.
    pub kind: FaultKind,
    /// Faults by the basis.
    pub compared: [f64; 2],
    /// True if they differ.
    pub differs: bool,
}

/// Mappings of one identity in both traces.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct GroupDiff {
    /// The kind of their memory.
    pub place: Place,
    /// Their length, rounded up to a power of two.
    pub size_bytes: Option<u64>,
    /// The functions that mapped them, the innermost first.
    pub mapped_by: Vec<Arc<str>>,
    /// Those in each trace; `None` if there are none.
    pub sides: [Option<GroupSide>; 2],
}

/// Mappings of one identity in one trace.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct GroupSide {
    /// The number of mappings.
    pub mappings: u64,
    /// The sum of their lengths, in bytes.
    pub mapped_bytes: u64,
    /// Bytes that were unmapped again.
    pub unmapped_bytes: u64,
    /// Calls of `madvise(MADV_HUGEPAGE)` on them.
    pub huge_advice: u64,
    /// Faults; with 1-in-N sampling, N times the recorded ones.
    pub faults: u64,
    /// Faults by the basis.
    pub compared: f64,
    /// The most frequent kind.
    pub kind: Option<FaultKind>,
    /// The pattern in which their pages come.
    pub shape: Shape,
}

impl Diff {
    /// The differences between two traces, with the names of their instructions.
    pub fn new(analyses: [&Analysis; 2], names: [&mut Names; 2], basis: Basis) -> Self {
        let sides = analyses.map(|analysis| Whole {
            duration_ns: analysis.duration_ns,
            faults: analysis.scaled(analysis.sums.faults()),
            compared: basis.compared(analysis, analysis.sums.faults()),
            lost: analysis.lost,
            sampling_period: analysis.sampling_period,
        });
        let whole = sides[0].compared.max(sides[1].compared);
        let kinds = FaultKind::ALL.map(|kind| {
            let compared = analyses
                .map(|analysis| basis.compared(analysis, analysis.sums.faults_of_kind(kind)));
            KindDiff { kind, compared, differs: is_difference(compared, whole, analyses, basis) }
        });
        let kinds = kinds.into_iter().filter(|kind| kind.compared != [0.0; 2]).collect();
        let mut groups = align::align(analyses, names, basis);
        groups.retain(|group| {
            is_difference(group.compared(), whole, analyses, basis) || group.has_other_kind()
        });
        groups.sort_by(|one, other| other.distance().total_cmp(&one.distance()));
        let settings = settings::differing([&analyses[0].header, &analyses[1].header]);
        let mut diff = Self { basis, sides, kinds, groups, settings, explanations: Vec::new() };
        diff.explanations = explain::explain(&diff, analyses);
        diff
    }

    /// True if no faults differ; settings may.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty() && !self.kinds.iter().any(|kind| kind.differs)
    }
}

impl Basis {
    /// The default basis: whole runs if both traces show commands from their start.
    ///
    /// The commands need not be the same: those of an old and a new release differ by a word at least, and a
    /// slower one has fewer faults a second.
    pub fn fitting(analyses: [&Analysis; 2]) -> Self {
        let is_whole = analyses.iter().all(|analysis| {
            let header = &analysis.header;
            header.attached_pids.is_empty() && !header.command.is_empty() && !analysis.has_past
        });
        if is_whole { Self::PerRun } else { Self::PerSecond }
    }

    fn compared(self, analysis: &Analysis, recorded: u64) -> f64 {
        let faults = analysis.scaled(recorded) as f64;
        match self {
            Self::PerRun => faults,
            Self::PerSecond => faults / (analysis.duration_ns.max(1) as f64 / 1e9),
        }
    }
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::PerSecond => "a second",
            Self::PerRun => "in each run",
        })
    }
}

/// True if two numbers of faults differ enough to be reported.
fn is_difference(compared: [f64; 2], whole: f64, analyses: [&Analysis; 2], basis: Basis) -> bool {
    let [less, more] = [compared[0].min(compared[1]), compared[0].max(compared[1])];
    let fewest = match basis {
        Basis::PerRun => FEWEST,
        Basis::PerSecond => {
            let longest =
                analyses.map(|analysis| analysis.duration_ns).into_iter().max().unwrap_or(0).max(1);
            FEWEST / (longest as f64 / 1e9)
        }
    };
    more >= less * FACTOR && more - less >= (whole / SHARE).max(fewest)
}

impl GroupDiff {
    /// Faults by the basis, in each trace.
    pub fn compared(&self) -> [f64; 2] {
        self.sides.each_ref().map(|side| side.as_ref().map_or(0.0, |side| side.compared))
    }

    fn distance(&self) -> f64 {
        let [first, second] = self.compared();
        (second - first).abs()
    }

    /// True if the most frequent kind of fault, the number of faults in each mapping, or their order differs.
    fn has_other_kind(&self) -> bool {
        let [Some(first), Some(second)] = &self.sides else { return false };
        let is_many = first.faults.min(second.faults) as f64 >= FEWEST;
        let [few, many] = {
            let [a, b] = [first.shape.per_mapping[1], second.shape.per_mapping[1]];
            [a.min(b), a.max(b)]
        };
        let has_other_number =
            self.size_bytes.is_some() && many >= few * 2 && first.mappings + second.mappings > 2;
        let has_other_order = [first, second].iter().all(|side| side.shape.is_regular())
            && first.shape.step_pages != second.shape.step_pages;
        is_many && (first.kind != second.kind || has_other_number || has_other_order)
    }
}
