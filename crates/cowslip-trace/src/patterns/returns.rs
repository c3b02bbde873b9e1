//! Memory that is given back and taken again.

use cowslip_sys::units::ByteCount;

use super::{Draft, Pattern, PatternName, is_many};
use crate::analysis::{Analysis, Group};
use crate::attribute::{FaultKind, Place};
use crate::format::{count, counted, mappings};

/// Fewer maps are not churn.
const FEWEST_MAPS: u64 = 16;

/// Memory given back with `madvise`, and touched again.
pub(super) fn purging(analysis: &Analysis, group: &Group) -> Option<Pattern> {
    let faults = group.sums.faults_of_kind(FaultKind::Refault);
    if !is_many(analysis, faults) {
        return None;
    }
    let times = counted(analysis.scaled(faults), "fault");
    let draft = Draft {
        analysis,
        name: PatternName::Purging,
        group: Some(group),
        faults,
        among: &group.sums,
        evidence: format!("{}, {times} on memory that madvise had given back", mappings(group)),
        is_cost_known: true,
        advice: Some(match allocator(analysis) {
            Some("jemalloc") => "keep it longer: MALLOC_CONF=dirty_decay_ms:60000".into(),
            Some("tcmalloc") => "keep it longer: TCMALLOC_RELEASE_RATE=0".into(),
            _ => "give it back later, or less of it (the allocator's purging or decay time)".into(),
        }),
        faults_with_huge_pages: None,
    };
    Some(draft.finish())
}

/// Memory unmapped, and mapped anew.
pub(super) fn churn(analysis: &Analysis, group: &Group) -> Option<Pattern> {
    let (place, shape) = (&group.identity.place, &group.shape);
    let is_heap = *place == Place::Heap;
    let is_again = group.unmapped_bytes >= group.mapped_bytes / 2;
    let has_many = is_heap || group.mappings >= FEWEST_MAPS;
    if !place.begins_empty() || !has_many || !is_again || !is_many(analysis, shape.arrivals) {
        return None;
    }
    let back = ByteCount(group.unmapped_bytes);
    let evidence = if is_heap {
        format!("the heap, {back} given back by brk and taken again")
    } else {
        let maps = count(group.mappings);
        format!("{}, {maps} of them, {back} unmapped again", mappings(group))
    };
    let touches = counted(analysis.scaled(shape.arrivals), "fault");
    let draft = Draft {
        analysis,
        name: PatternName::Churn,
        group: Some(group),
        faults: shape.arrivals,
        among: &group.sums,
        evidence: format!("{evidence}, {touches} to fill new ones"),
        is_cost_known: true,
        advice: Some(match (allocator(analysis), is_heap) {
            (Some("glibc"), true) => {
                "keep the heap's top: MALLOC_TRIM_THRESHOLD_=1073741824".into()
            }
            (Some("glibc"), false) if is_mapped_by_libc(group) => {
                "let malloc reuse it: MALLOC_MMAP_THRESHOLD_=1073741824 \
                 MALLOC_TRIM_THRESHOLD_=1073741824"
                    .into()
            }
            _ => "keep it and use it again instead of mapping it anew".into(),
        }),
        faults_with_huge_pages: None,
    };
    Some(draft.finish())
}

/// The allocator's name, as far as its libraries show.
fn allocator(analysis: &Analysis) -> Option<&'static str> {
    let told = analysis.header.allocator.as_deref()?.to_ascii_lowercase();
    ["jemalloc", "tcmalloc", "mimalloc", "glibc"].into_iter().find(|name| told.contains(name))
}

/// True if malloc mapped it, not the program itself: the two innermost frames are in libc.
fn is_mapped_by_libc(group: &Group) -> bool {
    let is_libc = |module: &str| module.contains("/libc.so") || module.contains("/libc-");
    let frames = group.identity.mapped_by.iter().take(2);
    frames.filter(|frame| frame.module.as_deref().is_some_and(is_libc)).count() == 2
}
