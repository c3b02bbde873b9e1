//! A fork returns in the parent when its child has emptied what it is to find empty.
//!
//! The kernel empties anonymous memory with `MADV_WIPEONFORK` before anybody sees the child. What left the arena without a
//! guard is a file's mapping still (`Usage::Left`), which the child empties itself, in its handler. Until then its parent
//! could write there (`process_vm_writev(2)`), and lose that. So the parent waits for a word in a page that both share,
//! only where there is such memory.
//!
//! Each such fork has a page of its own: a child that comes too late says so to nobody.
//!
//! # Safety
//! The page holds one atomic, which is all that anybody accesses there. Parent and child unmap it each for itself, the
//! parent when it waits no more, the child before it runs another thread. The locks of a fork are held around all of it,
//! so nobody else has a reference to it.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;

use cowslip_sys::units::{VirtRange, page_size_bytes};
use cowslip_sys::{memory, process, waiting};

/// The start of the page of the fork under way; 0: there is none.
static PAGE: AtomicUsize = AtomicUsize::new(0);

const NAP: Duration = Duration::from_micros(20);
const MOST_NS: u64 = 100_000_000;

/// Before a fork, by the thread that holds the locks.
pub(crate) fn prepare(is_awaited: bool) {
    let page = if is_awaited { memory::map_shared_page().ok() } else { None };
    PAGE.store(page.map_or(0, |page| page.start), Ordering::Relaxed);
}

/// Calls `act` with the word, once a fork in either process.
fn meet(act: impl FnOnce(&AtomicBool)) {
    let page = PAGE.swap(0, Ordering::Relaxed);
    if page == 0 {
        return;
    }
    // SAFETY: see the module.
    act(unsafe { &*(page as *const AtomicBool) });
    // SAFETY: see the module.
    let _ = unsafe { memory::unmap(VirtRange::new(page, page_size_bytes())) };
}

/// In the child, when all is as it is to be.
pub(crate) fn come() {
    meet(|has_come| has_come.store(true, Ordering::Release));
}

/// In the parent, with the locks still held. Not for ever: the child may have been killed, or there may be none.
pub(crate) fn wait() {
    meet(|has_come| {
        let until_ns = process::now_ns() + MOST_NS;
        while !has_come.load(Ordering::Acquire) && process::now_ns() < until_ns {
            if waiting::nap(NAP).is_err() {
                break;
            }
        }
    });
}
