//! Descriptors whose reads write into page frames: `O_DIRECT`, and some file systems always.
//!
//! A descriptor is checked at its first read into an arena, and again after a descriptor was made that may have its
//! number ([`invalidate`]).

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use cowslip_sys::process;
use cowslip_sys::procfs::own;

/// Some descriptor of this process is, or may be, opened with `O_DIRECT`.
static POSSIBLE: AtomicBool = AtomicBool::new(false);

/// Records that a descriptor may be read past the page cache from now on.
pub(crate) fn note_direct() {
    POSSIBLE.store(true, Ordering::Relaxed);
}

/// Kinds are remembered for descriptors below this.
const MOST_REMEMBERED: usize = 4096;
/// The age in which a descriptor was found not to pin pages; making a descriptor starts a new age.
static FOUND_PLAIN: [AtomicU32; MOST_REMEMBERED] = [const { AtomicU32::new(0) }; MOST_REMEMBERED];
static AGE: AtomicU32 = AtomicU32::new(1);

/// Starts a new age: a number may be another file's from now on.
pub(crate) fn invalidate() {
    AGE.fetch_add(1, Ordering::Relaxed);
}

/// Called when `fd` is closed: its number may become another file's.
pub(crate) fn forget(fd: c_int) {
    if let Some(found) = usize::try_from(fd).ok().and_then(|fd| FOUND_PLAIN.get(fd)) {
        found.store(0, Ordering::Relaxed);
    }
}

/// Returns true if a read of `fd` must be checked.
#[inline(always)]
pub(crate) fn may_pin(fd: c_int) -> bool {
    let found = FOUND_PLAIN.get(fd as usize).map(|found| found.load(Ordering::Relaxed));
    is_possible() || found != Some(AGE.load(Ordering::Relaxed))
}

/// Returns true if a read of `fd` writes into page frames.
pub(crate) fn pins(fd: c_int) -> bool {
    if is_possible() && process::is_direct(fd) {
        return true;
    }
    let age = AGE.load(Ordering::Relaxed);
    let found = usize::try_from(fd).ok().and_then(|fd| FOUND_PLAIN.get(fd));
    if found.is_some_and(|found| found.load(Ordering::Relaxed) == age) {
        return false;
    }
    let pins = process::pins_readers(fd);
    if let Some(found) = found.filter(|_| !pins) {
        found.store(age, Ordering::Relaxed);
    }
    pins
}

/// Checks the descriptors that this process had before the library saw its calls.
pub(crate) fn check_all() {
    const FIRST: core::ops::Range<c_int> = 0..1024;
    let check = |fd| {
        if !is_possible() && process::is_direct(fd) {
            note_direct();
        }
    };
    if !own::for_each_descriptor(check) {
        FIRST.for_each(check);
    }
}

#[inline(always)]
fn is_possible() -> bool {
    POSSIBLE.load(Ordering::Relaxed)
}
