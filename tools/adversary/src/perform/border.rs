//! Rights given up. Afterwards a child continues with the memory of its fork, or is hostile: with calls that
//! no library sees it unmaps the mappings that count it as a reader, extends mappings of files, and looks for
//! later writes.
#![allow(unsafe_code)]

use core::ffi::c_long;
use core::sync::atomic::Ordering::Relaxed;

use super::threads::ALIVE;
use super::{Me, SKIP};
use crate::program::Call;
use crate::shared::{PROCESSES, THREADS, shared};
use crate::sys;
use crate::words::{self, PAGE};

/// The length by which a mapping is extended.
const REACH: usize = 16 << 20;
/// The most to look at in one mapping, and in all of them: an arena is long.
const MOST_OF_ONE: usize = 32 << 20;
const MOST: usize = 256 << 20;
/// Searches for later words in one life.
const LOOKS: usize = 3;

/// The call that each thread of each process was in at a process' birth, plus one; 0 if there was none.
pub(crate) type Places = [[u32; THREADS]; PROCESSES];

/// No calls yet.
pub(super) const NOWHERE: Places = [[0; THREADS]; PROCESSES];

/// The present calls.
pub(super) fn places() -> Places {
    let mut places = NOWHERE;
    for (process, thread, call, _) in shared().places() {
        places[process][thread] = call as u32 + 1;
    }
    places
}

impl Me {
    pub(super) fn border(&mut self, call: &Call) -> Option<()> {
        let changed = match call.word(1) {
            "no-new-privileges" => sys::no_new_privileges(),
            // It changes nothing, which a library cannot know. libc's function waits for all threads that
            // libc knows: in a child that libc did not fork, those of the parent.
            _ if self.may_allocate && self.is_alone() => sys::same_users(),
            _ => sys::same_users_of_thread(),
        };
        self.expect("a change of rights", changed, Ok(0));
        if call.word(2) != "hostile" {
            return Some(());
        }
        let has_others = !self.children.is_empty() || self.signals.is_some();
        // Its parent may have written to its memory.
        let was_given = shared().letters(self.process).next().is_some();
        if self.process == 0 || !self.is_alone() || has_others || was_given || !self.may_open {
            return SKIP;
        }
        shared().totals.calls.fetch_add(1, Relaxed);
        let mappings = longer_mappings().unwrap_or_default();
        for _ in 0..LOOKS {
            sys::pause(call.number(0));
            mappings.iter().for_each(|mapping| self.look_for_later(*mapping));
        }
        sys::leave(0)
    }

    fn is_alone(&self) -> bool {
        ALIVE.load(Relaxed) == 1 && self.threads.is_empty()
    }

    /// Fails if a page begins with a word that was written after this process was forked.
    fn look_for_later(&self, (start, len): (usize, usize)) {
        let mut word = 0_u64;
        let buffer = (&raw mut word) as usize;
        for at in (start..start + len).step_by(PAGE) {
            if sys::process_vm_readv(sys::pid(), buffer, at, size_of::<u64>()).is_err() {
                continue;
            }
            let Some((process, thread, call)) = words::writer(word) else { continue };
            let Some(known) = self.born_at.get(process).and_then(|threads| threads.get(thread))
            else {
                continue;
            };
            if process != self.process && *known > 0 && call >= *known as usize {
                let what = format!(
                    "a hostile child sees at {at:#x} what process {process} thread {thread} wrote in call {call}, \
                     and was forked in call {}",
                    known - 1
                );
                self.fail(&what);
            }
        }
    }
}

/// Extends mappings of unnamed files, and unmaps the counts of readers, except where this thread's own data
/// lies. Returns the extended mappings.
fn longer_mappings() -> std::io::Result<Vec<(usize, usize)>> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let (mut longer, mut left) = (Vec::new(), MOST);
    // SAFETY: it returns the address of a thread's own integer.
    let own = [(&raw const maps) as usize, unsafe { libc::__errno_location() } as usize];
    for line in maps.lines() {
        let mut fields = line.split_whitespace();
        let range = fields.next().and_then(|field| field.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16).ok();
        let Some((start, end)) = range.and_then(|(a, b)| number(a).zip(number(b))) else {
            continue;
        };
        if own.iter().any(|at| (start..end).contains(at)) {
            continue;
        }
        let path = fields.nth(4).unwrap_or_default();
        if path.starts_with("/memfd:cowslip-readers") || path.starts_with("/memfd:cowslip-users") {
            raw(libc::SYS_munmap, [start, end - start, 0, 0]);
        } else if path == "/memfd:cowslip" || path.starts_with("/#") {
            let len = end - start;
            let longer_len = len + REACH;
            let arguments = [start, len, longer_len, libc::MREMAP_MAYMOVE as usize];
            let moved = raw(libc::SYS_mremap, arguments);
            if moved > 0 && left > 0 {
                let looked_at = longer_len.min(MOST_OF_ONE).min(left);
                left -= looked_at;
                longer.push((moved as usize, looked_at));
            }
        }
    }
    Ok(longer)
}

/// A call that no library sees: its result, or a negative errno.
#[cfg(target_arch = "x86_64")]
fn raw(number: c_long, arguments: [usize; 4]) -> isize {
    let [a, b, c, d] = arguments;
    let answer;
    // SAFETY: munmap(2) and mremap(2) apply to mappings without anything that this process uses from here on.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    answer
}

#[cfg(not(target_arch = "x86_64"))]
fn raw(_: c_long, _: [usize; 4]) -> isize {
    -1
}
