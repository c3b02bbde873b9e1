//! What the faults of a trace have in common, in words, with the evidence, the cost and what to do.
//!
//! A fault can be part of several patterns: their costs overlap.

mod arrivals;
mod files;
mod forks;
mod returns;
mod shared;
mod whole;

use serde::Serialize;

use crate::analysis::{Analysis, Group, MappingIdentity, Sums};
use crate::cost::{Cost, Measured};
use crate::format;

/// Fewer faults are no pattern.
const FEWEST: u64 = 100;

/// Something that many faults have in common.
#[derive(Clone, Debug, Serialize)]
pub struct Pattern {
    /// What it is.
    pub name: PatternName,
    /// The mappings in which it is; `None`: it is not of one kind of mapping.
    pub identity: Option<MappingIdentity>,
    /// What, how often, where, and what it costs: a sentence without its full stop.
    pub sentence: String,
    /// What to do about it, if the events give a reason to.
    pub advice: Option<String>,
    /// Faults of it; with 1-in-N sampling, N times the recorded ones.
    pub faults: u64,
    /// Faults that huge pages would have taken in their stead, computed from their addresses.
    pub faults_with_huge_pages: Option<u64>,
    /// What they took, if that is known.
    pub cost: Option<Cost>,
}

/// The patterns that are told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PatternName {
    /// Neighbouring base pages one after the other.
    Staircase,
    /// A fault or so a mapping.
    OncePerMap,
    /// Huge pages would fit, and base pages came, in no order.
    NotHuge,
    /// Huge pages do not fit: too short, or not aligned.
    Misaligned,
    /// Memory is mapped and unmapped over and over.
    Churn,
    /// Memory is given back with `madvise` and touched again.
    Purging,
    /// Writes after a fork copy pages.
    CowStorm,
    /// Writes to a private mapping of a file copy its pages.
    FileCopies,
    /// A file is read from its device through a mapping.
    ColdFile,
    /// A stack grows.
    StackGrowth,
    /// The kernel takes the faults, in copies to and from user memory.
    KernelCopies,
}

/// The patterns in `analysis`, the costliest first.
pub fn find(analysis: &Analysis) -> Vec<Pattern> {
    let of_group = [arrivals::find, files::cold, files::copies, returns::purging, returns::churn];
    let mut patterns: Vec<Pattern> = analysis
        .groups
        .iter()
        .flat_map(|group| of_group.iter().filter_map(|find| find(analysis, group)))
        .collect();
    patterns.extend(forks::find(analysis));
    patterns.extend(whole::kernel_copies(analysis));
    patterns.sort_by(|one, other| {
        let weight = |it: &Pattern| it.cost.map_or(0.0, |cost| cost.ns);
        weight(other).total_cmp(&weight(one)).then(other.faults.cmp(&one.faults))
    });
    patterns
}

/// A pattern as it is put together.
struct Draft<'a> {
    analysis: &'a Analysis,
    name: PatternName,
    group: Option<&'a Group>,
    /// Recorded faults of it.
    faults: u64,
    /// Those that it is among, for what one takes.
    among: &'a Sums,
    evidence: String,
    /// Whether these faults take what faults take that do not say it themselves.
    is_cost_known: bool,
    advice: Option<String>,
    faults_with_huge_pages: Option<u64>,
}

impl Draft<'_> {
    /// The pattern, with what it costs at the end of its sentence.
    fn finish(self) -> Pattern {
        let known = self.analysis.cost_of(self.among).filter(|_| self.is_cost_known);
        let cost = known.map(|cost| {
            let share = self.faults as f64 / self.among.faults().max(1) as f64;
            Cost { ns: cost.ns * share, ..cost }
        });
        let told = cost.map(|cost| {
            let (ns, whole) = (cost.ns, self.analysis.duration_ns as f64);
            // What one fault takes is measured apart, and may be too much.
            let most = whole * self.analysis.threads.len().max(1) as f64;
            match ns >= most && cost.measured != Measured::Faults {
                true => format!("; cost here all of {}", format::duration(whole)),
                false => {
                    format!("; cost here {} of {}", format::duration(ns), format::duration(whole))
                }
            }
        });
        Pattern {
            name: self.name,
            identity: self.group.map(|group| group.identity.clone()),
            sentence: self.evidence + &told.unwrap_or_default(),
            advice: self.advice,
            faults: self.analysis.scaled(self.faults),
            faults_with_huge_pages: self.faults_with_huge_pages,
            cost,
        }
    }
}

/// Whether there are enough of `faults` to speak of: a hundred, and one in a hundred.
fn is_many(analysis: &Analysis, faults: u64) -> bool {
    faults >= FEWEST && faults.saturating_mul(100) >= analysis.sums.faults()
}
