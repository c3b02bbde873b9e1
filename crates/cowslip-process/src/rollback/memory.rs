//! Pages that differ from those of an instant, copied back.

use cowslip_sys::pagemap::{Entry, Method, Scanner};
use cowslip_sys::procfs::{Mapping, mappings};
use cowslip_sys::target::Target;
use cowslip_sys::units::VirtRange;
use cowslip_sys::{AsFd, BorrowedFd, Result, memfile};

use crate::shared;

/// The most bytes that are looked at, or copied, at once.
const STEP_BYTES: usize = 4 << 20;

/// Copies differing pages from the holder to the program, and returns the number of bytes. `now` is the text of the program's
/// `maps` before its mappings were set back to `maps`.
pub(super) fn copy_back(held: &Target, target: &Target, maps: &str, now: &str) -> Result<u64> {
    let memory = [held.open_file("mem")?, target.open_memory()?];
    let [memory_then, memory_now] = memory.each_ref().map(|memory| memory.as_fd());
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
    let ranges =
        own.flat_map(|mapping| steps(mapping.range).map(move |range| (range, mapping.is_private)));
    for (range, is_private) in ranges {
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
                copied += copy(memory_then, memory_now, run)?;
                run = VirtRange::between(page.start, page.start);
            }
            run = VirtRange::between(run.start, page.end());
        }
        copied += copy(memory_then, memory_now, run)?;
    }
    for range in closed([held, target], maps, now)?.into_iter().flat_map(steps) {
        copied += copy(memory_then, memory_now, range)?;
    }
    Ok(copied)
}

/// Pages of memory without access. It may have had access since, or had before: its content is that of then when it has again,
/// mostly none.
fn closed(processes: [&Target; 2], maps: &str, now: &str) -> Result<Vec<VirtRange>> {
    let is_closed = |mapping: &Mapping<'_>| {
        mapping.is_private && !mapping.is_accessible && !mapping.name.starts_with("[v")
    };
    let mut found = Vec::new();
    for process in processes {
        let pages = Scanner::new(process.open_file("pagemap")?);
        for mapping in mappings(maps).filter(is_closed) {
            // The entries of a large reservation would take seconds: without the other way only what has access now is read.
            let parts = match pages.method() {
                Method::Scan => vec![mapping.range],
                Method::Entries => mappings(now)
                    .filter(|now| now.is_accessible)
                    .map(|now| now.range.intersect(mapping.range))
                    .filter(|part| !part.is_empty())
                    .collect(),
            };
            for part in parts {
                pages.private_runs(part, |run| found.push(run))?;
            }
        }
    }
    Ok(found)
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
    let start = run.start as u64;
    let read = [(then, &mut wanted), (now, &mut found)]
        .map(|(memory, bytes)| memfile::read_exact_at(memory, bytes, start));
    match read {
        [Ok(()), Ok(())] => {}
        // A guard is among them (`MADV_GUARD_INSTALL`).
        _ if run.len > PAGE => {
            let pages = (run.start..run.end()).step_by(PAGE);
            return pages.map(|at| copy(then, now, VirtRange::new(at, PAGE))).sum();
        }
        // It was one then, too.
        [Err(_), Err(_)] => return Ok(0),
        [then, now] => return then.and(now).map(|()| 0),
    }
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
