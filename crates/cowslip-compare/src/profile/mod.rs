//! Processor time by function in good and bad runs: the function in which the difference arose.

mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;

use crate::stats::{Estimate, difference};
pub use tree::CallTree;

/// The part of the difference that the function must have that explains it.
const EXPLAINS: f64 = 0.6;
/// Functions of one chain take nearly the same time.
const NEARLY: f64 = 1.1;
/// Functions with less of the difference are not listed, and no more than this number.
const LEAST: f64 = 0.02;
const MOST: usize = 10;

/// The sampled processor time of a run.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ProfiledRun {
    /// Call stacks, the innermost function first, with the name of their thread and their seconds.
    pub stacks: Vec<(Arc<str>, Vec<Arc<str>>, f64)>,
}

/// Seconds a run of something, on both sides.
#[derive(Clone, Debug, Serialize)]
pub struct ProfileRow {
    /// The function or the thread.
    pub name: Arc<str>,
    /// Mean seconds in good and bad runs.
    pub means: (f64, f64),
    /// The seconds that bad runs have more, with Welch's interval unless both sides are constant.
    pub added: Estimate,
}

/// The difference of processor time by function.
///
/// ```
/// use cowslip_compare::profile::{ProfileDifference, ProfiledRun};
///
/// let run = |parse: f64| {
///     let stack = |names: &[&str], seconds| ("app".into(), names.iter().map(|name| (*name).into()).collect(), seconds);
///     ProfiledRun { stacks: vec![stack(&["parse", "load", "main"], parse), stack(&["save", "main"], 0.1)] }
/// };
/// let difference = ProfileDifference::new(&[run(0.2), run(0.21)], &[run(0.4), run(0.41)], 0.05).unwrap();
/// assert_eq!(&*difference.tree.callees[0].row.name, "main");
/// assert_eq!(difference.path.iter().map(|name| &**name).collect::<Vec<_>>(), ["parse", "load", "main"]);
/// ```
#[derive(Clone, Debug, Serialize)]
pub struct ProfileDifference {
    /// The number of runs of each side.
    pub runs: (usize, usize),
    /// All of the sampled time.
    pub all: ProfileRow,
    /// The function that explains the difference, and its callers; empty if none does.
    pub path: Vec<Arc<str>>,
    /// The time in that function and in those that it calls.
    pub explained: Option<ProfileRow>,
    /// Time in functions themselves, the greatest difference first.
    pub functions: Vec<ProfileRow>,
    /// Time of threads by name, if there are several names.
    pub threads: Vec<ProfileRow>,
    /// All call stacks.
    #[serde(skip)]
    pub tree: CallTree,
}

/// Seconds by name, of each run of both sides.
#[derive(Default)]
struct Seconds(BTreeMap<Arc<str>, [Vec<f64>; 2]>);

impl Seconds {
    fn add(&mut self, name: &Arc<str>, side: usize, run: usize, seconds: f64) {
        let values = &mut self.0.entry(name.clone()).or_default()[side];
        values.resize(values.len().max(run + 1), 0.0);
        values[run] += seconds;
    }

    fn rows(self, runs: [usize; 2], alpha: f64) -> Vec<ProfileRow> {
        let row = |(name, mut values): (Arc<str>, [Vec<f64>; 2])| {
            for (side, count) in values.iter_mut().zip(runs) {
                side.resize(count, 0.0);
            }
            ProfileRow::new(name, &values, alpha)
        };
        let mut rows: Vec<ProfileRow> = self.0.into_iter().map(row).collect();
        rows.sort_by(|one, other| other.added.value.abs().total_cmp(&one.added.value.abs()));
        rows
    }
}

impl ProfileRow {
    fn new(name: Arc<str>, values: &[Vec<f64>; 2], alpha: f64) -> Self {
        let mean = |side: &[f64]| side.iter().sum::<f64>() / side.len() as f64;
        let means = (mean(&values[0]), mean(&values[1]));
        Self { name, means, added: difference(&values[0], &values[1], alpha) }
    }
}

impl ProfileDifference {
    /// Compares runs; `None` without runs on a side.
    pub fn new(good: &[ProfiledRun], bad: &[ProfiledRun], alpha: f64) -> Option<Self> {
        let runs = [good.len(), bad.len()];
        if runs.contains(&0) {
            return None;
        }
        let [mut alone, mut with_called, mut threads] = [(); 3].map(|()| Seconds::default());
        let mut callers: BTreeMap<(Arc<str>, Arc<str>), f64> = BTreeMap::new();
        let mut depths: BTreeMap<Arc<str>, Depth> = BTreeMap::new();
        let mut all = [vec![0.0; runs[0]], vec![0.0; runs[1]]];
        for (side, runs) in [good, bad].into_iter().enumerate() {
            let weight = [-1.0, 1.0][side] / runs.len() as f64;
            for (run, profile) in runs.iter().enumerate() {
                for (thread, functions, seconds) in &profile.stacks {
                    all[side][run] += seconds;
                    threads.add(thread, side, run, *seconds);
                    if let Some(innermost) = functions.first() {
                        alone.add(innermost, side, run, *seconds);
                    }
                    // A function that calls itself counts once.
                    let once: BTreeSet<&Arc<str>> = functions.iter().collect();
                    once.iter().for_each(|name| with_called.add(name, side, run, *seconds));
                    for (callers, name) in functions.iter().rev().enumerate() {
                        let depth = depths.entry(name.clone()).or_default();
                        depth.callers += callers as f64 * seconds;
                        depth.seconds += seconds;
                    }
                    let pairs: BTreeSet<(&Arc<str>, &Arc<str>)> =
                        functions.windows(2).map(|two| (&two[0], &two[1])).collect();
                    for (called, caller) in pairs {
                        *callers.entry((called.clone(), caller.clone())).or_default() +=
                            weight * seconds;
                    }
                }
            }
        }
        let all = ProfileRow::new("all".into(), &all, alpha);
        let tree = CallTree::new([good, bad], &all, alpha);
        let added = all.added.value;
        let explained = explained(with_called.rows(runs, alpha), added, &depths);
        let path = explained.as_ref().map_or(Vec::new(), |row| path(&row.name, added, &callers));
        let mut functions = alone.rows(runs, alpha);
        functions.retain(|row| row.added.value.abs() >= LEAST * added.abs());
        functions.truncate(MOST);
        let mut threads = threads.rows(runs, alpha);
        if threads.len() < 2 {
            threads.clear();
        }
        threads.truncate(MOST);
        Some(Self { runs: (runs[0], runs[1]), all, path, explained, functions, threads, tree })
    }
}

/// The number of a function's callers, as a mean over its seconds.
#[derive(Clone, Copy, Default)]
struct Depth {
    callers: f64,
    seconds: f64,
}

/// The most specific function with most of the difference: it takes little more time than any other such function, and
/// of those it has the most callers. A caller that a stack lacks now and then takes
/// less than its callee.
fn explained(
    rows: Vec<ProfileRow>,
    added: f64,
    depths: &BTreeMap<Arc<str>, Depth>,
) -> Option<ProfileRow> {
    let time = |row: &ProfileRow| row.means.0 + row.means.1;
    let depth = |row: &ProfileRow| {
        depths
            .get(&row.name)
            .map_or(0.0, |depth| depth.callers / depth.seconds.max(f64::MIN_POSITIVE))
    };
    let has_most = |row: &ProfileRow| added != 0.0 && row.added.value / added >= EXPLAINS;
    let rows: Vec<ProfileRow> = rows.into_iter().filter(has_most).collect();
    let least = rows.iter().map(time).fold(f64::INFINITY, f64::min);
    rows.into_iter()
        .filter(|row| time(row) <= NEARLY * least)
        .max_by(|one, other| depth(one).total_cmp(&depth(other)))
}

/// A function and its callers, each the one with most of the difference.
fn path(
    function: &Arc<str>,
    added: f64,
    callers: &BTreeMap<(Arc<str>, Arc<str>), f64>,
) -> Vec<Arc<str>> {
    let mut path = vec![function.clone()];
    loop {
        let last = path.last().expect("it begins with one");
        let of_last = callers
            .range((last.clone(), "".into())..)
            .take_while(|((called, _), _)| called == last)
            .filter(|((_, caller), _)| !path.contains(caller));
        match of_last.max_by(|one, other| (one.1 / added).total_cmp(&(other.1 / added))) {
            Some(((_, caller), _)) => path.push(caller.clone()),
            None => return path,
        }
    }
}
