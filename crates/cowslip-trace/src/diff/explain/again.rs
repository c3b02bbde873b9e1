//! Memory that is given back and taken again, and stacks that grow.

use cowslip_sys::units::ByteCount;

use super::{Reason, change, distance, subject};
use crate::analysis::Analysis;
use crate::attribute::{FaultKind, Place};
use crate::diff::{Diff, FACTOR, GroupDiff, GroupSide};
use crate::format::count;

/// Fewer maps of one identity do not count as mapped anew.
const FEWEST_MAPS: u64 = 16;
/// A heap that gave back less is taken to have done so once.
const LEAST_HEAP_BYTES: u64 = 1 << 20;

/// Memory given back with `madvise`, and touched again.
pub(super) fn given_back(diff: &Diff, _: [&Analysis; 2]) -> Option<Reason> {
    let kind = diff.kinds.iter().find(|kind| kind.kind == FaultKind::Refault && kind.differs)?;
    let is_of_it = |group: &&GroupDiff| {
        let mut kinds = group.sides.iter().flatten().filter_map(|side| side.kind);
        kinds.any(|kind| kind == FaultKind::Refault)
    };
    let most = diff.groups.iter().find(is_of_it);
    let most = most.map_or_else(String::new, |group| format!(", most of it in {}", subject(group)));
    let change = change(diff, kind.compared);
    Some(Reason {
        faults: distance(kind.compared),
        sentence: format!("memory that madvise gave back is touched again{most}: {change}"),
    })
}

/// Memory unmapped, and mapped anew.
pub(super) fn mapped_anew(diff: &Diff, _: [&Analysis; 2]) -> Option<Reason> {
    let anew: Vec<_> = diff.groups.iter().filter(|group| is_mapped_anew(group)).collect();
    let group = anew.first()?;
    let side = |number: fn(&GroupSide) -> u64| {
        group.sides.each_ref().map(|side| side.as_ref().map_or(0, number))
    };
    let bytes = side(|side| side.unmapped_bytes).map(ByteCount);
    let [fewer, more] = side(|side| side.mappings).map(count);
    let times = if group.place == Place::Heap {
        format!("the heap is given back and taken again, {} → {}", bytes[0], bytes[1])
    } else {
        let bytes = format!("{} → {} unmapped again", bytes[0], bytes[1]);
        format!("{} are mapped anew, {fewer} → {more} times, {bytes}", subject(group))
    };
    Some(Reason {
        faults: anew.iter().map(|group| group.distance()).sum(),
        sentence: format!("{times}: {}", change(diff, group.compared())),
    })
}

fn is_mapped_anew(group: &GroupDiff) -> bool {
    let [first, second] = group.compared();
    let more = usize::from(second > first);
    let Some(side) = &group.sides[more] else { return false };
    let other = |number: fn(&GroupSide) -> u64| group.sides[1 - more].as_ref().map_or(0, number);
    let is_more = |now: u64, before: u64| now as f64 >= before as f64 * FACTOR;
    match group.place {
        Place::Heap => {
            side.unmapped_bytes >= LEAST_HEAP_BYTES
                && is_more(side.unmapped_bytes, other(|side| side.unmapped_bytes))
        }
        Place::Stack | Place::ThreadStack => false,
        _ if group.place.begins_empty() => {
            side.mappings >= FEWEST_MAPS
                && side.unmapped_bytes >= side.mapped_bytes / 2
                && is_more(side.mappings, other(|side| side.mappings))
        }
        _ => false,
    }
}

/// Stacks that become deeper or more numerous.
pub(super) fn stacks(diff: &Diff) -> Option<Reason> {
    let is_stack = |group: &&GroupDiff| matches!(group.place, Place::Stack | Place::ThreadStack);
    let group = diff.groups.iter().find(is_stack)?;
    let which =
        if group.place == Place::Stack { "the stack grows" } else { "threads' stacks grow" };
    Some(Reason {
        faults: group.distance(),
        sentence: format!("{which}: {}", change(diff, group.compared())),
    })
}
