//! Mappings of two traces side by side.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Basis, GroupDiff, GroupSide};
use crate::analysis::{Analysis, Group, Shape, Sums};
use crate::attribute::Place;
use crate::symbols::Names;

/// The identity of a mapping in either trace.
type Key = (Place, Option<u64>, Vec<Arc<str>>);

pub(super) fn align(
    analyses: [&Analysis; 2],
    names: [&mut Names; 2],
    basis: Basis,
) -> Vec<GroupDiff> {
    let tells_callers = |analysis: &Analysis| {
        analysis.groups.iter().any(|group| !group.identity.mapped_by.is_empty())
    };
    let with_callers = analyses.iter().all(|analysis| tells_callers(analysis));
    let mut all: BTreeMap<Key, [Option<GroupSide>; 2]> = BTreeMap::new();
    for (side, (analysis, names)) in analyses.into_iter().zip(names).enumerate() {
        let mut together: BTreeMap<Key, Vec<&Group>> = BTreeMap::new();
        for group in &analysis.groups {
            let identity = &group.identity;
            let key = match identity.is_arena() {
                true => (Place::Arena, None, Vec::new()),
                false => {
                    let callers = if with_callers { &*identity.mapped_by } else { &[] };
                    (identity.place.clone(), identity.size_bytes, names.functions(callers))
                }
            };
            together.entry(key).or_default().push(group);
        }
        for (key, groups) in together {
            all.entry(key).or_default()[side] = Some(sum(&groups, analysis, basis));
        }
    }
    let diff =
        |((place, size_bytes, mapped_by), sides)| GroupDiff { place, size_bytes, mapped_by, sides };
    all.into_iter().map(diff).collect()
}

/// Sums up groups with the same key; the shape is that of the largest.
fn sum(groups: &[&Group], analysis: &Analysis, basis: Basis) -> GroupSide {
    let mut sums = Sums::default();
    groups.iter().for_each(|group| sums += &group.sums);
    let largest = groups.iter().max_by_key(|group| group.sums.faults());
    let total = |count: fn(&Group) -> u64| {
        groups.iter().fold(0, |sum: u64, group| sum.saturating_add(count(group)))
    };
    GroupSide {
        mappings: total(|group| group.mappings),
        mapped_bytes: total(|group| group.mapped_bytes),
        unmapped_bytes: total(|group| group.unmapped_bytes),
        huge_advice: total(|group| group.huge_advice),
        faults: analysis.scaled(sums.faults()),
        compared: basis.compared(analysis, sums.faults()),
        kind: sums.kinds().first().map(|(kind, _)| *kind),
        shape: largest.map_or(Shape::default(), |group| group.shape.clone()),
    }
}
