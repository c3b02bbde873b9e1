//! The library's own allocator. It uses neither the program's memory nor libc's.
//!
//! Blocks of powers of two from 32 bytes to 32 KiB are on free lists. They are carved from 256 KiB mappings a page at a
//! time, because every fork copies the entries of touched pages. Larger blocks have a mapping each. One lock is held
//! over a fork, so that the child finds the lists whole.
//!
//! # Safety
//! A block is on a free list or in use, never both. List links are written into free blocks only, which are at least 32
//! bytes and aligned to their size. Memory that is not carved yet is not accessed.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

use cowslip_sys::memory;
use cowslip_sys::memory::Prot;
use cowslip_sys::units::{VirtRange, page_size_bytes};
use cowslip_sys::waiting;

const SMALLEST_SHIFT: u32 = 5;
const LARGEST_SHIFT: u32 = 15;
const CLASSES: usize = (LARGEST_SHIFT - SMALLEST_SHIFT + 1) as usize;
const CARVED_BYTES: usize = 256 << 10;

/// See the module.
pub(crate) struct OwnAllocator;

struct Lists {
    held: AtomicBool,
    blocks: UnsafeCell<Blocks>,
}

struct Blocks {
    heads: [*mut u8; CLASSES],
    /// The rest of the last mapping.
    uncarved: VirtRange,
}

// SAFETY: the blocks are accessed only by the thread that has set `held`.
unsafe impl Sync for Lists {}

#[unsafe(link_section = "cowslip_fork_data")]
static LISTS: Lists = Lists {
    held: AtomicBool::new(false),
    blocks: UnsafeCell::new(Blocks {
        heads: [ptr::null_mut(); CLASSES],
        uncarved: VirtRange::new(0, 0),
    }),
};

/// Returns false if the lock is held for longer than any thread needs it: by the thread that this call has interrupted.
pub(crate) fn is_lockable() -> bool {
    const TRIES: u32 = 500;
    (0..TRIES).any(|_| {
        let is_free = !LISTS.held.load(Ordering::Relaxed);
        if !is_free {
            let _ = waiting::nap(core::time::Duration::from_micros(20));
        }
        is_free
    })
}

/// Keeps other threads out of the allocator, over a fork.
pub(crate) fn lock() {
    let mut tries = 0;
    while LISTS
        .held
        .compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed)
        .is_err()
    {
        tries += 1;
        if tries % 100 == 0 {
            // The service thread may have a higher priority than the lock's holder, which yielding would not let run.
            let _ = waiting::nap(core::time::Duration::from_micros(20));
        }
        core::hint::spin_loop();
    }
}

/// Ends [`lock`].
pub(crate) fn unlock() {
    LISTS.held.store(false, Ordering::Release);
}

fn class_of(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(1 << SMALLEST_SHIFT).next_power_of_two();
    let shift = bytes.trailing_zeros();
    (shift <= LARGEST_SHIFT).then_some((shift - SMALLEST_SHIFT) as usize)
}

fn map(len: usize) -> *mut u8 {
    let align = page_size_bytes();
    let Some(len) = cowslip_sys::units::round_up(len, align) else { return ptr::null_mut() };
    let Ok(range) = memory::reserve_apart(len, align) else { return ptr::null_mut() };
    // SAFETY: the range was reserved just now.
    match unsafe { memory::protect(range, Prot::RW) } {
        Ok(()) => range.start as *mut u8,
        Err(_) => ptr::null_mut(),
    }
}

impl Blocks {
    /// Puts fresh blocks of a class on its list: a page of them, or a single larger one.
    fn carve(&mut self, class: usize, size: usize) {
        let len = size.max(page_size_bytes());
        let aligned = |from: usize| from.next_multiple_of(len);
        if aligned(self.uncarved.start) + len > self.uncarved.end() {
            let fresh = map(CARVED_BYTES);
            if fresh.is_null() {
                return;
            }
            self.uncarved = VirtRange::new(fresh as usize, CARVED_BYTES);
        }
        let start = aligned(self.uncarved.start);
        self.uncarved = VirtRange::between(start + len, self.uncarved.end());
        for block in (start..start + len).step_by(size).rev() {
            // SAFETY: in a mapping of ours, carved only now.
            unsafe { self.put(class, block as *mut u8) };
        }
    }

    /// # Safety
    /// A block of this class that is not in use.
    unsafe fn put(&mut self, class: usize, block: *mut u8) {
        // SAFETY: a free block has room for a link, which its alignment fits.
        unsafe { block.cast::<*mut u8>().write(self.heads[class]) };
        self.heads[class] = block;
    }
}

// SAFETY: blocks have the size and alignment of their class, which covers the layout's; mappings are
// page-aligned, and no layout in this library asks for more.
unsafe impl GlobalAlloc for OwnAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class_of(layout) else { return map(layout.size()) };
        let size = 1usize << (class as u32 + SMALLEST_SHIFT);
        lock();
        // SAFETY: the lock is held; links lie in free blocks.
        let block = unsafe {
            let blocks = &mut *LISTS.blocks.get();
            if blocks.heads[class].is_null() {
                blocks.carve(class, size);
            }
            let block = blocks.heads[class];
            if !block.is_null() {
                blocks.heads[class] = block.cast::<*mut u8>().read();
            }
            block
        };
        unlock();
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promised.
        let block = unsafe { self.alloc(layout) };
        // A fresh mapping is zero already, and a fork need not copy the tables of pages that were not touched.
        if class_of(layout).is_some() && !block.is_null() {
            // SAFETY: allocated just now, as long as the layout says.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(class) = class_of(layout) else {
            let len = layout.size().next_multiple_of(page_size_bytes());
            // SAFETY: `alloc` mapped it for this block alone.
            let _ = unsafe { memory::unmap(VirtRange::new(block as usize, len)) };
            return;
        };
        lock();
        // SAFETY: the lock is held; the caller no longer uses the block.
        unsafe { (*LISTS.blocks.get()).put(class, block) };
        unlock();
    }
}
