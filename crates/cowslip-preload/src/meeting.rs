//! A fork returns in the parent when its child has emptied what it is to find empty.
//!
//! The kernel empties anonymous memory with `MADV_WIPEONFORK` before anybody sees the child. What left the arena without a
//! guard is a file's mapping still (`Usage::Left`), which the child empties itself, in its handler. Until then its parent
//! could write there (`process_vm_writev(2)`), and lose that. So the parent waits for a word in a page that both share,
//! only where there is such memory.
//!
//! # Safety
//! The page holds one atomic, which is all that anybody accesses there. A parent never unmaps it; its child does once it
//! has come, before it runs another thread.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;

use cowslip_sys::units::{VirtRange, page_size_bytes};
use cowslip_sys::{memory, waiting};

/// The start of the shared page; 0: there is none.
static PAGE: AtomicUsize = AtomicUsize::new(0);
/// The child of the fork under way is waited for.
static IS_AWAITED: AtomicBool = AtomicBool::new(false);

const NAP: Duration = Duration::from_micros(20);
/// A tenth of a second, and more where naps are longer.
const MOST_NAPS: u32 = 5000;

fn has_come() -> Option<&'static AtomicBool> {
    let page = PAGE.load(Ordering::Relaxed);
    // SAFETY: see the module.
    (page != 0).then(|| unsafe { &*(page as *const AtomicBool) })
}

/// Before a fork, by the thread that holds the locks.
pub(crate) fn prepare(is_awaited: bool) {
    IS_AWAITED.store(is_awaited, Ordering::Relaxed);
    if is_awaited && PAGE.load(Ordering::Relaxed) == 0 {
        let page = memory::map_shared_page().map_or(0, |page| page.start);
        PAGE.store(page, Ordering::Relaxed);
    }
    if let Some(has_come) = has_come() {
        has_come.store(false, Ordering::Relaxed);
    }
}

/// In the child, when all is as it is to be.
pub(crate) fn come() {
    let Some(word) = has_come() else { return };
    word.store(true, Ordering::Release);
    let page = VirtRange::new(PAGE.swap(0, Ordering::Relaxed), page_size_bytes());
    // SAFETY: see the module.
    let _ = unsafe { memory::unmap(page) };
}

/// In the parent, with the locks still held. Not for ever: the child may have been killed, or there may be none.
pub(crate) fn wait() {
    let Some(has_come) = has_come().filter(|_| IS_AWAITED.load(Ordering::Relaxed)) else { return };
    for _ in 0..MOST_NAPS {
        if has_come.load(Ordering::Acquire) || waiting::nap(NAP).is_err() {
            return;
        }
    }
}
