//! A fork returns in the parent only after its child has emptied the memory that it must find empty.
//!
//! The kernel empties anonymous memory with `MADV_WIPEONFORK` before the child can be seen. Memory that left the arena
//! without a guard is still a file's mapping (`Usage::Left`), which the child empties itself, in its handler. Until
//! then its parent could write there (`process_vm_writev(2)`), and the write would be lost. Only where there is such
//! memory, the parent therefore waits for a word in a page that both share.
//!
//! Each such fork has a page of its own: a child that comes too late disturbs no other fork.
//!
//! # Safety
//! The page holds one atomic, the only thing accessed there. Parent and child each unmap their own mapping, the parent
//! when it no longer waits, the child before it runs another thread. The locks of a fork are held around all of it, so
//! no other thread has a reference to it.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;

use cowslip_sys::units::{VirtRange, page_size_bytes};
use cowslip_sys::{memory, process, waiting};

/// The start of the page for the fork in progress, or 0.
#[unsafe(link_section = "cowslip_fork_data")]
static PAGE: AtomicUsize = AtomicUsize::new(0);

const NAP: Duration = Duration::from_micros(20);
const MOST_NS: u64 = 100_000_000;

/// The child of the fork in progress empties memory.
#[unsafe(link_section = "cowslip_fork_data")]
static IS_AWAITED: AtomicBool = AtomicBool::new(false);

/// Called before a fork, by the thread that holds the locks.
pub(crate) fn prepare(is_awaited: bool) {
    // Written only when it changes: a write copies the page.
    if IS_AWAITED.load(Ordering::Relaxed) != is_awaited {
        IS_AWAITED.store(is_awaited, Ordering::Relaxed);
    }
    let page = if is_awaited { memory::map_shared_page().ok() } else { None };
    PAGE.store(page.map_or(0, |page| page.start), Ordering::Relaxed);
}

/// Returns true if the child of the fork in progress empties memory.
pub(crate) fn is_awaited() -> bool {
    IS_AWAITED.load(Ordering::Relaxed)
}

/// Called where there is no child.
pub(crate) fn give_up() {
    take(|_| ());
}

/// Calls `act` with the word, once per fork in either process.
fn take(act: impl FnOnce(&AtomicBool)) {
    let page = PAGE.load(Ordering::Relaxed);
    if page == 0 {
        return;
    }
    PAGE.store(0, Ordering::Relaxed);
    // SAFETY: see the module.
    act(unsafe { &*(page as *const AtomicBool) });
    // SAFETY: see the module.
    let _ = unsafe { memory::unmap(VirtRange::new(page, page_size_bytes())) };
}

/// Called in the child, when its memory is in its final state.
pub(crate) fn arrive() {
    take(|has_arrived| has_arrived.store(true, Ordering::Release));
}

/// Called in the parent, with the locks still held. The wait is bounded: the child may have been killed, or there may
/// be none.
pub(crate) fn wait() {
    take(|has_arrived| {
        let until_ns = process::now_ns() + MOST_NS;
        while !has_arrived.load(Ordering::Acquire) && process::now_ns() < until_ns {
            if waiting::nap(NAP).is_err() {
                break;
            }
        }
    });
}
