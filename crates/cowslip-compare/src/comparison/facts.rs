//! Settings that differ between good and bad runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;

use crate::inputs::Run;

/// A known fact about the runs that differs between the sides.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FactDifference {
    /// Such as `thp.enabled`.
    pub name: String,
    /// Its values in the good runs.
    pub good: BTreeSet<String>,
    /// Its values in the bad runs.
    pub bad: BTreeSet<String>,
}

pub(super) fn differences(good: &[Run], bad: &[Run]) -> Vec<FactDifference> {
    let names: BTreeSet<&String> =
        [good, bad].into_iter().flat_map(all).flat_map(|facts| facts.keys()).collect();
    let of = |runs: &[Run], name: &String| -> BTreeSet<String> {
        all(runs).filter_map(|facts| facts.get(name)).cloned().collect()
    };
    let both = names.into_iter().map(|name| (name, of(good, name), of(bad, name)));
    both.filter(|(_, good, bad)| good != bad)
        .map(|(name, good, bad)| FactDifference { name: name.clone(), good, bad })
        .collect()
}

/// The facts of runs, once for neighbours that share them.
fn all(runs: &[Run]) -> impl Iterator<Item = &BTreeMap<String, String>> {
    runs.chunk_by(|one, other| Arc::ptr_eq(&one.facts, &other.facts)).map(|runs| &*runs[0].facts)
}
