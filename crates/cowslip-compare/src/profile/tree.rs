//! Call stacks of good and bad runs as one tree.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{ProfileRow, ProfiledRun};

/// Functions with a smaller part of the slower side's time are left out.
const NARROWEST: f64 = 1.0 / 500.0;

/// A function, called by those above it in the tree.
#[derive(Clone, Debug)]
pub struct CallTree {
    /// Its time, with that of the functions that it calls.
    pub row: ProfileRow,
    /// The functions that it calls, by name.
    pub callees: Vec<CallTree>,
}

/// Seconds of each run of both sides.
struct Node {
    seconds: [Vec<f64>; 2],
    callees: BTreeMap<Arc<str>, Node>,
}

impl Node {
    fn new(runs: [usize; 2]) -> Self {
        Self { seconds: runs.map(|count| vec![0.0; count]), callees: BTreeMap::new() }
    }

    fn finish(self, name: Arc<str>, least: f64, alpha: f64) -> CallTree {
        let row = ProfileRow::new(name, &self.seconds, alpha);
        let callees = self.callees.into_iter().map(|(name, node)| node.finish(name, least, alpha));
        let is_wide = |tree: &CallTree| tree.row.means.0.max(tree.row.means.1) >= least;
        CallTree { row, callees: callees.filter(is_wide).collect() }
    }
}

impl CallTree {
    pub(super) fn new(sides: [&[ProfiledRun]; 2], all: &ProfileRow, alpha: f64) -> Self {
        let runs = sides.map(<[ProfiledRun]>::len);
        let mut root = Node::new(runs);
        for (side, profiles) in sides.into_iter().enumerate() {
            for (run, profile) in profiles.iter().enumerate() {
                for (_, functions, seconds) in &profile.stacks {
                    let mut at = &mut root;
                    at.seconds[side][run] += seconds;
                    for name in functions.iter().rev() {
                        at = at.callees.entry(name.clone()).or_insert_with(|| Node::new(runs));
                        at.seconds[side][run] += seconds;
                    }
                }
            }
        }
        root.finish(all.name.clone(), NARROWEST * all.means.0.max(all.means.1), alpha)
    }
}
