//! The library's own allocator: nothing of the program's, nothing of libc's.
//!
//! Blocks of powers of two from 32 bytes to 32 KiB on free lists, carved from 256 KiB mappings; above
//! that, a mapping each. One lock, held over a fork so that the child finds the lists whole.
//!
//! # Safety
//! A block is on a free list or in use, never both; list links are written into free blocks only,
//! which are at least 32 bytes and aligned to their size.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

use cowslip_sys::memory;
use cowslip_sys::memory::Prot;
use cowslip_sys::units::VirtRange;

const SMALLEST_SHIFT: u32 = 5;
const LARGEST_SHIFT: u32 = 15;
const CLASSES: usize = (LARGEST_SHIFT - SMALLEST_SHIFT + 1) as usize;
const CARVED_BYTES: usize = 256 << 10;

/// See the module.
pub(crate) struct Own;

struct Lists {
    held: AtomicBool,
    heads: UnsafeCell<[*mut u8; CLASSES]>,
}

// SAFETY: the heads are touched only while `held` is set by the toucher.
unsafe impl Sync for Lists {}

static LISTS: Lists =
    Lists { held: AtomicBool::new(false), heads: UnsafeCell::new([ptr::null_mut(); CLASSES]) };

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
            // The service thread may run before the one that holds the lock: yielding would not let
            // that one run.
            std::thread::sleep(core::time::Duration::from_micros(20));
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
    let align = cowslip_sys::units::page_size_bytes();
    let Some(len) = cowslip_sys::units::round_up(len, align) else { return ptr::null_mut() };
    let Ok(range) = memory::reserve(len, align) else { return ptr::null_mut() };
    // SAFETY: the range was reserved just now.
    match unsafe { memory::protect(range, Prot::RW) } {
        Ok(()) => range.start as *mut u8,
        Err(_) => ptr::null_mut(),
    }
}

// SAFETY: blocks have the size and alignment of their class, which covers the layout's; mappings are
// page-aligned, and no layout in this library asks for more.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class_of(layout) else { return map(layout.size()) };
        let size = 1usize << (class as u32 + SMALLEST_SHIFT);
        lock();
        // SAFETY: the lock is held; links lie in free blocks.
        let block = unsafe {
            let head = &mut (*LISTS.heads.get())[class];
            if head.is_null() {
                let fresh = map(CARVED_BYTES.max(size));
                if !fresh.is_null() {
                    for i in (0..CARVED_BYTES / size).rev() {
                        let block = fresh.add(i * size);
                        block.cast::<*mut u8>().write(*head);
                        *head = block;
                    }
                }
            }
            let block = *head;
            if !block.is_null() {
                *head = block.cast::<*mut u8>().read();
            }
            block
        };
        unlock();
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(class) = class_of(layout) else {
            let align = cowslip_sys::units::page_size_bytes();
            let len = layout.size().next_multiple_of(align);
            // SAFETY: `alloc` mapped it for this block alone.
            let _ = unsafe { memory::unmap(VirtRange::new(block as usize, len)) };
            return;
        };
        lock();
        // SAFETY: the lock is held; the caller gives the block up.
        unsafe {
            let head = &mut (*LISTS.heads.get())[class];
            block.cast::<*mut u8>().write(*head);
            *head = block;
        }
        unlock();
    }
}
