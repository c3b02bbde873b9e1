//! `madvise` and its family.
//!
//! Advice is followed, ignored where that is allowed, or answered by moving the memory out of the arena, where the
//! kernel follows it.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_int, c_uint, c_void};
use core::ops::ControlFlow;

use cowslip::Arena;
use cowslip::raw::{Departure, Usage};
use cowslip::units::{VirtRange, page_size_bytes};
use cowslip_sys::process::{self, BlockedSignals};
use cowslip_sys::{Errno, passthrough, user_memory};

use crate::arena::detach;
use crate::arena::ranges::split;
use crate::rt::config::config;
use crate::rt::guard::errno_of;

/// The answer to a request for memory in the arena.
pub(crate) enum Answer {
    Discard,
    /// The kernel is asked, up to the first failure: its effect survives a freeze, or need not.
    Kernel,
    /// An arena behaves this way anyway, or the request may be ignored.
    Nothing,
    /// The arena uses pages of this size there.
    Pages {
        huge: bool,
    },
    /// Like [`Answer::Nothing`], but refused for locked memory.
    Age,
    /// Reverts a request for which memory left the arena.
    Undo,
    /// The memory leaves the arena first, because a freeze would undo the request.
    Leave,
    /// The memory leaves the arena, and children find it empty (`true`), or no longer do.
    Wipe(bool),
    /// Fails as it does for private anonymous memory in the kernel.
    Refuse,
}

// Since Linux 5.18 and 6.13.
const MADV_DONTNEED_LOCKED: c_int = 24;
const MADV_GUARD_INSTALL: c_int = 102;
const MADV_GUARD_REMOVE: c_int = 103;

fn answer(advice: c_int) -> Answer {
    match advice {
        libc::MADV_DONTNEED | MADV_DONTNEED_LOCKED => Answer::Discard,
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => Answer::Kernel,
        libc::MADV_NORMAL
        | libc::MADV_RANDOM
        | libc::MADV_SEQUENTIAL
        | libc::MADV_WILLNEED
        | libc::MADV_COLLAPSE
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE
        | libc::MADV_DONTDUMP
        | libc::MADV_DODUMP => Answer::Nothing,
        libc::MADV_HUGEPAGE => Answer::Pages { huge: true },
        libc::MADV_NOHUGEPAGE => Answer::Pages { huge: false },
        libc::MADV_DOFORK | MADV_GUARD_REMOVE => Answer::Undo,
        libc::MADV_FREE | libc::MADV_COLD | libc::MADV_PAGEOUT => Answer::Age,
        // A machine's RAM is in the children that hold its instants.
        libc::MADV_DONTFORK if config().has_guest_memory => Answer::Nothing,
        libc::MADV_DONTFORK | MADV_GUARD_INSTALL => Answer::Leave,
        libc::MADV_WIPEONFORK => Answer::Wipe(true),
        libc::MADV_KEEPONFORK => Answer::Wipe(false),
        _ => Answer::Refuse,
    }
}

/// Marks pages as old. The kernel refuses this for locked memory, like all advice of this kind. `MADV_COLD` stands for
/// the rest: memory that left may be a file's, and for that the kernel always refuses `MADV_FREE`.
fn age(part: VirtRange) -> Result<(), Errno> {
    // SAFETY: the advice changes no content.
    match unsafe { passthrough::madvise(part.start as *mut c_void, part.len, libc::MADV_COLD) } {
        0 => Ok(()),
        _ => Err(cowslip_sys::errno::current()),
    }
}

/// Answers a request for a range, part by part.
pub(crate) fn request(
    addr: *mut c_void,
    len: usize,
    answer: &Answer,
    kernel: impl Fn(VirtRange) -> c_int,
) -> c_int {
    let asked = |part: VirtRange| match kernel(part) {
        0 => Ok(()),
        _ => Err(cowslip_sys::errno::current()),
    };
    let ours = |arena: &'static Arena, part: VirtRange| {
        let mut whole = Ok(());
        for (part, usage, _) in arena.raw().parts(part) {
            match (usage, answer) {
                (Usage::Free, Answer::Kernel) => return Err(Errno::NOMEM),
                // To the program nothing is mapped there; the other parts are handled all the same.
                (Usage::Free, _) => whole = Err(Errno::NOMEM),
                (Usage::Left, Answer::Wipe(wiped)) => arena.raw().wipe_on_fork(part, *wiped),
                (_, Answer::Kernel) => asked(part)?,
                (Usage::Foreign | Usage::Hole | Usage::Detached, _)
                | (Usage::Left, Answer::Leave | Answer::Undo) => match asked(part) {
                    Err(Errno::NOMEM) => whole = Err(Errno::NOMEM),
                    asked => asked?,
                },
                (Usage::Used | Usage::Left, Answer::Nothing)
                | (Usage::Used, Answer::Age | Answer::Undo | Answer::Wipe(false)) => {}
                (Usage::Used, Answer::Pages { huge }) => arena.raw().prefer_huge(part, *huge),
                (Usage::Left, Answer::Pages { .. }) => {}
                (Usage::Left, Answer::Age) => age(part)?,
                (Usage::Used | Usage::Left, Answer::Refuse) => return Err(Errno::INVAL),
                (Usage::Used | Usage::Left, Answer::Discard) => {
                    // SAFETY: the program discards this content.
                    unsafe { arena.discard(part) }.map_err(|error| errno_of(&error))?;
                }
                (Usage::Used, Answer::Leave) => {
                    detach::range(arena, part, Departure::Advice)?;
                    asked(part)?;
                }
                (Usage::Used, Answer::Wipe(true)) => {
                    detach::range(arena, part, Departure::Advice)?;
                    for (part, usage, _) in arena.raw().parts(part) {
                        match usage {
                            Usage::Left => arena.raw().wipe_on_fork(part, true),
                            _ => asked(part)?,
                        }
                    }
                }
            }
        }
        whole
    };
    split(addr, len, ours, &kernel).unwrap_or_else(|| kernel(VirtRange::new(addr as usize, len)))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: the program's own call, or a part of it.
    let kernel =
        |r: VirtRange| unsafe { passthrough::madvise(r.start as *mut c_void, r.len, advice) };
    request(addr, len, &answer(advice), kernel)
}

/// `MADV_HUGEPAGE` by the bundled malloc, for a block in an arena that it has just handed out.
#[unsafe(no_mangle)]
extern "C" fn cowslip_prefer_huge(addr: *mut c_void, len: usize) {
    let nothing = |_| 0;
    request(addr, len, &Answer::Pages { huge: true }, nothing);
}

/// Advice for another process must not change content; for this one any advice is allowed (Linux 6.13).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn process_madvise(
    pidfd: c_int,
    vectors: *const libc::iovec,
    count: usize,
    advice: c_int,
    flags: c_uint,
) -> isize {
    // SAFETY: the program's own call, or one without vectors.
    let kernel =
        |count| unsafe { passthrough::process_madvise(pidfd, vectors, count, advice, flags) };
    let kept = BlockedSignals::enter();
    let is_ours = (1..=libc::UIO_MAXIOV as usize).contains(&count)
        && user_memory::is_readable(vectors as usize, count * size_of::<libc::iovec>())
        && process::is_own_pidfd(pidfd);
    drop(kept);
    if !is_ours {
        return kernel(count);
    }
    if kernel(0) != 0 {
        return -1;
    }
    let mut done = 0;
    let mut failed = false;
    user_memory::each(vectors as usize, count, |[addr, len]: [u64; 2]| {
        // SAFETY: a part of the program's own call.
        failed = unsafe { madvise(addr as *mut c_void, len as usize, advice) } != 0;
        done += if failed { 0 } else { len as isize };
        if failed { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    if failed && done == 0 { -1 } else { done }
}

/// Extends a range to a page boundary: `mlock(2)` and the like take any address.
pub(crate) fn page_aligned(addr: *const c_void, len: usize) -> (*mut c_void, usize) {
    let before = addr as usize % page_size_bytes();
    (addr.wrapping_byte_sub(before).cast_mut(), len.saturating_add(before))
}
