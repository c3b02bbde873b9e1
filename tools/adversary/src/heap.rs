//! The performer's own memory: its model must not lie in the memory that it checks, and its locks must not be
//! held when another thread forks.
//!
//! While performing, memory comes from a static array, in slabs for each thread, and is never returned: a
//! program runs for less than a second. The driver uses the system's allocator.
#![allow(unsafe_code)]

use core::alloc::{GlobalAlloc, Layout};
use core::cell::{Cell, UnsafeCell};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::alloc::System;

const SIZE: usize = 512 << 20;
const SLAB: usize = 256 << 10;

#[repr(align(4096))]
struct Store(UnsafeCell<[u8; SIZE]>);

// SAFETY: `NEXT` gives each part of it to one caller.
unsafe impl Sync for Store {}

static STORE: Store = Store(UnsafeCell::new([0; SIZE]));
static NEXT: AtomicUsize = AtomicUsize::new(0);
static PERFORMING: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The rest of this thread's slab: offsets in the store.
    static REST: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

pub(crate) struct Own;

/// Uses the store from now on.
pub(crate) fn perform() {
    PERFORMING.store(true, Relaxed);
}

fn take(layout: Layout) -> usize {
    assert!(layout.align() <= 4096, "the store has no memory that is aligned further");
    let (at, end) = REST.get();
    let start = at.next_multiple_of(layout.align());
    if start + layout.size() <= end {
        REST.set((start + layout.size(), end));
        return start;
    }
    let size = SLAB.max(layout.size().next_multiple_of(4096));
    let start = NEXT.fetch_add(size, Relaxed);
    assert!(start + size <= SIZE, "the performer's memory is used up");
    REST.set((start + layout.size(), start + size));
    start
}

// SAFETY: memory is handed out aligned, long enough and only once; memory from `System` goes back there, if
// anywhere.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if PERFORMING.load(Relaxed) {
            STORE.0.get().cast::<u8>().wrapping_add(take(layout))
        } else {
            // SAFETY: the caller keeps the contract of `alloc`.
            unsafe { System.alloc(layout) }
        }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let store = STORE.0.get() as usize;
        if !(store..store + SIZE).contains(&(at as usize)) && !PERFORMING.load(Relaxed) {
            // SAFETY: it is not from the store, and therefore from `System`.
            unsafe { System.dealloc(at, layout) }
        }
    }
}
