//! The state of the set-up: an arena is made once at most, and not at all once memory is kept out.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use core::time::Duration;

use cowslip_sys::{process, waiting};

const UNTRIED: u8 = 0;
const IN_PROGRESS: u8 = 1;
const DONE: u8 = 2;
#[unsafe(link_section = "cowslip_fork_data")]
static SETUP: AtomicU8 = AtomicU8::new(UNTRIED);

/// Bytes that the process has mapped so far without an arena. A fork copies the page tables of little memory in the
/// time that a freeze takes, and most processes end before they need more.
#[unsafe(link_section = "cowslip_fork_data")]
static ELSEWHERE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The value of [`ELSEWHERE_BYTES`] at which the use of memory is looked at again.
#[unsafe(link_section = "cowslip_fork_data")]
static LOOK_AT_BYTES: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn is_untried() -> bool {
    SETUP.load(Ordering::Relaxed) == UNTRIED
}

/// Returns true to the one thread that sets an arena up, which [ends](end) the set-up.
pub(crate) fn begin() -> bool {
    SETUP.compare_exchange(UNTRIED, IN_PROGRESS, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

/// Ends [`begin`], with an arena or without.
pub(crate) fn end() {
    SETUP.store(DONE, Ordering::Release);
}

/// Counts a mapping that has no arena, and returns the bytes of all.
pub(crate) fn count_elsewhere(len: usize) -> usize {
    ELSEWHERE_BYTES.fetch_add(len, Ordering::Relaxed).saturating_add(len)
}

/// Returns true if as much was mapped since the last [`look_again_after`] as it said.
pub(crate) fn is_time_to_look(elsewhere: usize) -> bool {
    elsewhere >= LOOK_AT_BYTES.load(Ordering::Relaxed)
}

/// Puts the next look at the use of memory off until so many more bytes are mapped.
pub(crate) fn look_again_after(elsewhere: usize, more: usize) {
    LOOK_AT_BYTES.store(elsewhere.saturating_add(more), Ordering::Relaxed);
}

/// Called in a child: it may have an arena of its own if there is room for one more.
pub(crate) fn begin_child(has_room: bool) {
    SETUP.store(if has_room { UNTRIED } else { DONE }, Ordering::Relaxed);
    ELSEWHERE_BYTES.store(0, Ordering::Relaxed);
    LOOK_AT_BYTES.store(0, Ordering::Relaxed);
}

/// Waits for the arena that another thread may be making. None is made after that once [closed](is_closed).
pub(crate) fn wait_until_done() {
    const NAP: Duration = Duration::from_micros(50);
    /// In a child that was forked past us, the thread that makes it may not exist.
    const MOST_NS: u64 = 1_000_000_000;
    let until_ns = process::now_ns() + MOST_NS;
    while SETUP.load(Ordering::SeqCst) == IN_PROGRESS && process::now_ns() < until_ns {
        if waiting::nap(NAP).is_err() {
            break;
        }
    }
}

/// No memory goes into an arena any more, in this process and in its children.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Returns true once [`close`] was called.
pub(crate) fn is_closed() -> bool {
    CLOSED.load(Ordering::SeqCst)
}

/// Keeps new memory out from now on. Returns true if it was kept out before.
pub(crate) fn close() -> bool {
    CLOSED.swap(true, Ordering::SeqCst)
}
