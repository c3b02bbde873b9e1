//! Explanations: causes of the difference between two traces, as far as they show them.
//!
//! A setting that differs explains nothing if the faults that it would change are the same. The reason that
//! explains the most faults comes first.

mod again;
mod huge_pages;

use cowslip_sys::units::ByteCount;

use super::{Basis, Diff, GroupDiff, Setting};
use crate::analysis::Analysis;
use crate::attribute::FaultKind;
use crate::format::{count, counted};

/// A fault that waits for a device takes at least as long as this many others.
const FAULTS_OF_A_READ: f64 = 100.0;

/// A reason for the difference.
struct Reason {
    /// The number of differing faults that it explains.
    faults: f64,
    sentence: String,
}

type Rule = fn(&Diff, [&Analysis; 2]) -> Option<Reason>;

/// The order for reasons that explain the same faults: a cause comes before its consequence.
const RULES: [Rule; 9] = [
    huge_pages::of_2_mib,
    huge_pages::of_other_maps,
    huge_pages::of_other_sizes,
    arenas,
    allocator,
    forks,
    page_cache,
    again::given_back,
    again::mapped_anew,
];

pub(super) fn explain(diff: &Diff, analyses: [&Analysis; 2]) -> Vec<String> {
    let mut reasons: Vec<Reason> = RULES.iter().filter_map(|rule| rule(diff, analyses)).collect();
    reasons.extend(again::stacks(diff));
    reasons.sort_by(|one, other| other.faults.total_cmp(&one.faults));
    let explained = reasons.first().map_or(0.0, |reason| reason.faults);
    let unexplained = diff.groups.first().filter(|group| explained * 2.0 < group.distance());
    let unexplained = unexplained.map(|group| {
        format!("{}: {}; no rule says why", subject(group), change(diff, group.compared()))
    });
    unexplained.into_iter().chain(reasons.into_iter().map(|reason| reason.sentence)).collect()
}

/// One side lives in Cowslip's arenas.
fn arenas(diff: &Diff, analyses: [&Analysis; 2]) -> Option<Reason> {
    let has_arena = analyses.map(|analysis| {
        analysis.groups.iter().any(|group| group.identity.is_arena() && group.sums.faults() > 0)
    });
    let which = match has_arena {
        [true, false] => "first",
        [false, true] => "second",
        _ => return None,
    };
    Some(Reason {
        // The memory has left its place in the other program.
        faults: diff.groups.first().map_or(0.0, GroupDiff::distance),
        sentence: format!("only the {which} program has its memory in an arena (`cowslip run`)"),
    })
}

/// Copies after forks on one side, and other numbers of forks.
fn forks(diff: &Diff, analyses: [&Analysis; 2]) -> Option<Reason> {
    let kind =
        diff.kinds.iter().find(|kind| kind.kind == FaultKind::CowAfterFork && kind.differs)?;
    let [fewer, more] = analyses.map(|analysis| analysis.forks);
    let forks = if fewer == more {
        counted(more, "fork") + " in each"
    } else {
        format!("{} → {}", counted(fewer, "fork"), counted(more, "fork"))
    };
    let has_arena = analyses
        .iter()
        .any(|analysis| analysis.groups.iter().any(|group| group.identity.is_arena()));
    let copies = diff.kinds.iter().find(|kind| kind.kind == FaultKind::FileCopy && has_arena);
    let copies = copies.map_or_else(String::new, |copies| {
        let copies = change(diff, copies.compared);
        format!("; of an arena they are private copies of its file's pages: {copies}")
    });
    let change = change(diff, kind.compared);
    Some(Reason {
        faults: distance(kind.compared),
        sentence: format!("copy-on-write after fork: {change}, with {forks}{copies}"),
    })
}

/// Files that were read on one side and were in memory on the other.
fn page_cache(diff: &Diff, _: [&Analysis; 2]) -> Option<Reason> {
    let kind = diff.kinds.iter().find(|kind| kind.kind == FaultKind::FileRead && kind.differs)?;
    let [first, second] = kind.compared;
    let which = if first > second { "first" } else { "second" };
    let change = change(diff, kind.compared);
    Some(Reason {
        faults: distance(kind.compared) * FAULTS_OF_A_READ,
        sentence: format!(
            "the {which} run read files from their device, as the page cache was cold: {change}"
        ),
    })
}

/// Another allocator, and other faults in memory that allocators map.
fn allocator(diff: &Diff, _: [&Analysis; 2]) -> Option<Reason> {
    let is_told = |setting: &&Setting| {
        setting.name == "allocator"
            || ["MALLOC", "GLIBC_TUNABLES"].iter().any(|part| setting.name.contains(part))
    };
    let setting = diff.settings.iter().find(is_told)?;
    let group = diff.groups.iter().find(|group| group.place.is_anonymous())?;
    let [first, second] = setting.values.each_ref().map(|value| value.as_deref().unwrap_or("none"));
    let (name, subject, change) = (&setting.name, subject(group), change(diff, group.compared()));
    Some(Reason {
        faults: group.distance(),
        sentence: format!("{name}: {first} → {second}; the most different is {subject}: {change}"),
    })
}

fn distance([first, second]: [f64; 2]) -> f64 {
    (second - first).abs()
}

/// Two numbers of faults, by the basis.
fn change(diff: &Diff, compared: [f64; 2]) -> String {
    let [first, second] = compared.map(|faults| count(faults.round() as u64));
    match diff.basis {
        Basis::PerRun => format!("{first} → {second} faults"),
        Basis::PerSecond => format!("{first} → {second} faults {}", diff.basis),
    }
}

/// A group as the subject of a sentence.
fn subject(group: &GroupDiff) -> String {
    match group.size_bytes {
        Some(size) => format!("{} maps of up to {}", group.place, ByteCount(size)),
        None => group.place.to_string(),
    }
}
