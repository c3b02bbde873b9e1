//! Pages that differ from those of an instant, copied back.

use cowslip_sys::pagemap::{Entry, Scanner};
use cowslip_sys::procfs::mappings;
use cowslip_sys::target::Target;
use cowslip_sys::units::VirtRange;
use cowslip_sys::{AsFd, BorrowedFd, Result, memfile};

use crate::shared;

/// The most bytes that are looked at, or copied, at once.
const STEP_BYTES: usize = 4 << 20;

/// Copies differing pages from the holder to the program, and returns the number of bytes.
pub(super) fn copy_back(held: &Target, target: &Target, maps: &str) -> Result<u64> {
    let memory = [held.open_file("mem")?, target.open_memory()?];
    let [then, now] = memory.each_ref().map(|memory| memory.as_fd());
    let scanners =
        [held, target].map(|process| process.open_file("pagemap").map(Scanner::with_entries));
    let [scan_then, scan_now] = scanners;
    let (scan_then, scan_now) = (scan_then?, scan_now?);
    let mut copied = 0;
    let (mut old, mut new) = (Vec::new(), Vec::new());
    let own = mappings(maps).filter(|mapping| {
        // The holder has shared memory of its own.
        let is_own = mapping.is_private || shared::is_unnamed(mapping);
        is_own && mapping.is_accessible && !mapping.name.starts_with("[v")
    });
    let steps =
        own.flat_map(|mapping| steps(mapping.range).map(move |range| (range, mapping.is_private)));
    for (range, is_private) in steps {
        old.clear();
        new.clear();
        scan_then.entries(range, |_, entry| old.push(entry))?;
        let mut run = VirtRange::between(range.start, range.start);
        scan_now.entries(range, |page, entry| new.push((page, entry)))?;
        for (&then_entry, &(page, now_entry)) in old.iter().zip(&new) {
            if is_private && !may_differ(then_entry, now_entry) {
                continue;
            }
            if run.end() != page.start {
                copied += copy(then, now, run)?;
                run = VirtRange::between(page.start, page.start);
            }
            run = VirtRange::between(run.start, page.end());
        }
        copied += copy(then, now, run)?;
    }
    Ok(copied)
}

fn steps(range: VirtRange) -> impl Iterator<Item = VirtRange> {
    (range.start..range.end())
        .step_by(STEP_BYTES)
        .map(move |start| VirtRange::between(start, range.end().min(start + STEP_BYTES)))
}

/// False if two pages are known to have the same content: one frame, or both the file's.
fn may_differ(then: Entry, now: Entry) -> bool {
    let is_unwritten = |entry: Entry| entry.is_empty() || entry.is_file();
    if is_unwritten(then) && is_unwritten(now) {
        return false;
    }
    match (then.frame(), now.frame()) {
        (Some(one), Some(other)) => one != other,
        _ => true,
    }
}

/// Copies the pages of a run that differ.
fn copy(then: BorrowedFd<'_>, now: BorrowedFd<'_>, run: VirtRange) -> Result<u64> {
    const PAGE: usize = 4096;
    if run.is_empty() {
        return Ok(0);
    }
    let [mut wanted, mut found] = [vec![0; run.len], vec![0; run.len]];
    memfile::read_exact_at(then, &mut wanted, run.start as u64)?;
    memfile::read_exact_at(now, &mut found, run.start as u64)?;
    let mut copied = 0;
    let mut at = 0;
    while at < run.len {
        let differs = |page: usize| wanted[page..page + PAGE] != found[page..page + PAGE];
        let first = at;
        while at < run.len && differs(at) {
            at += PAGE;
        }
        if at > first {
            memfile::write_at(now, &wanted[first..at], (run.start + first) as u64)?;
            copied += (at - first) as u64;
        }
        at += PAGE;
    }
    Ok(copied)
}
