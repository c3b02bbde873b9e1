//! Patterns common to many faults of a trace, in words, with the evidence, the cost and advice.
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
/// Costs of at least this part of another one equal it.
const EQUAL: f64 = 0.9;

/// A pattern common to many faults.
#[derive(Clone, Debug, Serialize)]
pub struct Pattern {
    /// The kind of pattern.
    pub name: PatternName,
    /// The mappings in which it occurs; `None` if it is not limited to one kind of mapping.
    pub identity: Option<MappingIdentity>,
    /// A sentence without its full stop: the pattern, its frequency, its place and its cost.
    pub sentence: String,
    /// Advice, if the events give a reason for it.
    pub advice: Option<String>,
    /// Faults of it; with 1-in-N sampling, N times the recorded ones.
    pub faults: u64,
    /// The number of faults with huge pages instead, computed from the addresses.
    pub faults_with_huge_pages: Option<u64>,
    /// The time that the faults took, if known.
    pub cost: Option<Cost>,
    /// The part of that time that the advice saves, from 0 to 1, if known.
    pub saved_share: Option<f64>,
}

/// The kinds of patterns.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PatternName {
    /// Neighbouring base pages are touched one after the other.
    Staircase,
    /// About one fault per mapping.
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
    /// The kernel takes pages away for a moment to see which node uses them.
    NumaHints,
}

/// The patterns in `analysis`, the costliest first; of those that cost the same, the one whose advice saves the most.
pub fn find(analysis: &Analysis) -> Vec<Pattern> {
    let of_group = [arrivals::find, files::cold, files::copies, returns::purging, returns::churn];
    let mut patterns: Vec<Pattern> = analysis
        .groups
        .iter()
        .flat_map(|group| of_group.iter().filter_map(|find| find(analysis, group)))
        .collect();
    patterns.extend(forks::find(analysis));
    patterns.extend(whole::kernel_copies(analysis));
    patterns.extend(whole::numa_hints(analysis));
    sort(&mut patterns);
    patterns
}

/// Patterns overlap: the same faults may be of several, and their costs are then equal but for a few more faults.
fn sort(patterns: &mut [Pattern]) {
    let ns = |pattern: &Pattern| pattern.cost.map_or(0.0, |cost| cost.ns);
    let saved = |pattern: &Pattern| pattern.saved_share.unwrap_or(0.0);
    patterns
        .sort_by(|one, other| ns(other).total_cmp(&ns(one)).then(other.faults.cmp(&one.faults)));
    let mut rest = patterns;
    while let Some(first) = rest.first() {
        let (most_ns, most_faults) = (ns(first), first.faults as f64);
        let is_equal = |pattern: &&Pattern| {
            ns(pattern) >= most_ns * EQUAL && pattern.faults as f64 >= most_faults * EQUAL
        };
        let (equal, others) = rest.split_at_mut(rest.iter().take_while(is_equal).count());
        equal.sort_by(|one, other| saved(other).total_cmp(&saved(one)));
        rest = others;
    }
}

/// A pattern under construction.
struct Draft<'a> {
    analysis: &'a Analysis,
    name: PatternName,
    group: Option<&'a Group>,
    /// Recorded faults of it.
    faults: u64,
    /// All faults among which these are, for the cost of one.
    among: &'a Sums,
    evidence: String,
    /// True if the cost of those faults applies to these.
    is_cost_known: bool,
    advice: Option<String>,
    faults_with_huge_pages: Option<u64>,
}

impl Draft<'_> {
    /// The part of a cost that the advice saves, if the events and the costs of both kinds of faults tell it.
    fn saved_share(&self, cost: Option<Cost>) -> Option<f64> {
        if self.name == PatternName::Churn {
            return Some(1.0);
        }
        let left = self.faults_with_huge_pages? as f64;
        let huge_ns = self.analysis.cost.and_then(|cost| cost.huge_ns);
        let share = match (cost, huge_ns) {
            (Some(cost), Some(huge_ns)) if cost.ns > 0.0 => left * huge_ns / cost.ns,
            _ => left / self.faults.max(1) as f64,
        };
        Some((1.0 - share).max(0.0))
    }

    /// Completes the pattern, with the cost at the end of its sentence.
    fn finish(self) -> Pattern {
        let known = self.analysis.cost_of(self.among).filter(|_| self.is_cost_known);
        let cost = known.map(|cost| {
            let share = self.faults as f64 / self.among.faults().max(1) as f64;
            Cost { ns: cost.ns * share, ..cost }
        });
        let saved_share = self.saved_share(cost);
        let told = cost.map(|cost| {
            let (ns, whole) = (cost.ns, self.analysis.duration_ns as f64);
            // The cost of one fault is measured separately, and may be too high.
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
            saved_share,
        }
    }
}

/// True if there are enough of `faults` to report: a hundred, and one in a hundred.
fn is_many(analysis: &Analysis, faults: u64) -> bool {
    faults >= FEWEST && faults.saturating_mul(100) >= analysis.sums.faults()
}
