//! Explanations: which difference of two traces' settings goes with which difference of their faults.
//!
//! Only what both are seen of is said: a setting that differs explains nothing if the faults that it would
//! change are the same.

use cowslip_sys::units::ByteCount;

use super::{Diff, GroupDiff, GroupSide, Setting};
use crate::analysis::Analysis;
use crate::attribute::FaultKind;
use crate::format::{count, counted};

pub(super) fn explain(diff: &Diff, analyses: [&Analysis; 2]) -> Vec<String> {
    let rules = [huge_pages, arenas, forks, page_cache, allocator];
    rules.iter().filter_map(|rule| rule(diff, analyses)).collect()
}

/// Base pages on one side, huge ones on the other, and a setting of huge pages differs.
fn huge_pages(diff: &Diff, _: [&Analysis; 2]) -> Option<String> {
    let turned = |group: &&GroupDiff| {
        let [Some(first), Some(second)] = &group.sides else { return false };
        is_base(first) && is_huge(second) || is_base(second) && is_huge(first)
    };
    let group = diff.groups.iter().find(turned)?;
    let sides = group.sides.each_ref().map(|side| side.as_ref().expect("both are there"));
    let each = sides.map(|side| counted(side.shape.per_mapping[1], "fault"));
    let what = format!("{} took {} each, then {}", subject(group), each[0], each[1]);
    let setting = diff.settings.iter().find(|setting| is_of_huge_pages(setting))?;
    let [first, second] = setting.values.each_ref().map(|value| value.as_deref().unwrap_or("none"));
    let all: u64 = diff
        .groups
        .iter()
        .filter(turned)
        .map(|group| {
            let [first, second] = group.compared();
            (second - first).abs() as u64
        })
        .sum();
    Some(format!(
        "huge pages: {} {first} → {second}; {what} ({} of the faults that differ)",
        setting.name,
        count(all)
    ))
}

fn is_of_huge_pages(setting: &Setting) -> bool {
    ["/enabled", "/shmem_enabled", "/defrag"].iter().any(|end| setting.name.ends_with(end))
        || setting.name.contains("TRANSPARENT_HUGEPAGE")
}

/// Many faults in each mapping, in places where a huge page fits.
fn is_base(side: &GroupSide) -> bool {
    let shape = &side.shape;
    shape.came_huge == 0 && shape.huge_further * 2 > shape.arrivals
}

/// Huge pages by the events, or never a second fault where one fits.
fn is_huge(side: &GroupSide) -> bool {
    let shape = &side.shape;
    shape.came_huge * 2 > shape.arrivals || (shape.huge_first > 0 && shape.huge_further == 0)
}

/// One side lives in Cowslip's arenas.
fn arenas(_: &Diff, analyses: [&Analysis; 2]) -> Option<String> {
    let has_arena = analyses.map(|analysis| {
        analysis.groups.iter().any(|it| it.identity.is_arena() && it.sums.faults() > 0)
    });
    let which = match has_arena {
        [true, false] => "first",
        [false, true] => "second",
        _ => return None,
    };
    Some(format!("only the {which} program has its memory in an arena (`cowslip run`)"))
}

/// Copies after forks on one side, and other numbers of forks.
fn forks(diff: &Diff, analyses: [&Analysis; 2]) -> Option<String> {
    let kind = diff.kinds.iter().find(|it| it.kind == FaultKind::CowAfterFork && it.differs)?;
    let [first, second] = kind.compared.map(|faults| count(faults as u64));
    let [fewer, more] = analyses.map(|analysis| analysis.forks);
    let forks = if fewer == more {
        counted(more, "fork") + " in each"
    } else {
        format!("{} → {}", counted(fewer, "fork"), counted(more, "fork"))
    };
    let has_arena = analyses.iter().any(|it| it.groups.iter().any(|it| it.identity.is_arena()));
    let copies = diff.kinds.iter().find(|it| it.kind == FaultKind::FileCopy && has_arena);
    let copies = copies.map_or_else(String::new, |copies| {
        let [first, second] = copies.compared.map(|faults| count(faults as u64));
        format!("; of an arena they are private copies of its file's pages: {first} → {second}")
    });
    Some(format!("copy-on-write after fork: {first} → {second} faults, with {forks}{copies}"))
}

/// Files that were read on one side and were in memory on the other.
fn page_cache(diff: &Diff, _: [&Analysis; 2]) -> Option<String> {
    let kind = diff.kinds.iter().find(|it| it.kind == FaultKind::FileRead && it.differs)?;
    let [first, second] = kind.compared;
    let which = if first > second { "first" } else { "second" };
    Some(format!("the {which} run read files from their device: the page cache was cold"))
}

/// Another allocator, and other faults in memory that allocators map.
fn allocator(diff: &Diff, _: [&Analysis; 2]) -> Option<String> {
    let is_told = |setting: &&Setting| {
        setting.name == "allocator"
            || ["MALLOC", "GLIBC_TUNABLES"].iter().any(|part| setting.name.contains(part))
    };
    let setting = diff.settings.iter().find(is_told)?;
    let is_memory = |group: &&GroupDiff| group.place.is_anonymous();
    let group = diff.groups.iter().find(is_memory)?;
    let [first, second] = setting.values.each_ref().map(|value| value.as_deref().unwrap_or("none"));
    let name = &setting.name;
    Some(format!("{name}: {first} → {second}; the most different is {}", subject(group)))
}

/// A group as the subject of a sentence.
fn subject(group: &GroupDiff) -> String {
    match group.size_bytes {
        Some(size) => format!("{} maps of up to {}", group.place, ByteCount(size)),
        None => group.place.to_string(),
    }
}
