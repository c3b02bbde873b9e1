#![allow(unsafe_code)]
//! An allocator for commands that gives running out of memory an exit code. The standard library's raises `SIGABRT`.
//!
//! # Safety
//! All calls go to the system's allocator, with the caller's arguments.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{self, Write};

use crate::AsFd;
use crate::exit_code::FAILED;
use crate::process::{exit_now, write_once};

/// The system's allocator, as the `#[global_allocator]` of the command with this name.
#[derive(Debug)]
pub struct CommandAllocator(pub &'static str);

impl CommandAllocator {
    fn given(&self, memory: *mut u8, size_bytes: usize) -> *mut u8 {
        if memory.is_null() {
            self.end(size_bytes);
        }
        memory
    }

    /// Ends the command without allocating.
    #[cold]
    fn end(&self, size_bytes: usize) -> ! {
        let mut message = [0; 128];
        let mut room = &mut message[..];
        let _ = writeln!(room, "{}: memory ran out: {size_bytes} bytes are not to be had", self.0);
        let left = room.len();
        let said = message.len() - left;
        let _ = write_once(io::stderr().as_fd(), &message[..said]);
        exit_now(FAILED.into())
    }
}

// SAFETY: see the module.
unsafe impl GlobalAlloc for CommandAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: upheld by the caller.
        self.given(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: upheld by the caller.
        self.given(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size_bytes: usize) -> *mut u8 {
        // SAFETY: upheld by the caller.
        self.given(unsafe { System.realloc(memory, layout, size_bytes) }, size_bytes)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: upheld by the caller.
        unsafe { System.dealloc(memory, layout) }
    }
}
