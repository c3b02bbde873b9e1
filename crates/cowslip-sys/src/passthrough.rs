#![allow(unsafe_code)]
//! System calls handed on for a program, unchanged: arguments are the program's own, the answer and
//! `errno` are the kernel's.
//!
//! # Safety
//! A caller hands on exactly what the program asked for: what the call does is what the program
//! would have got without the preload library.

use core::ffi::{c_int, c_void};

macro_rules! pass {
    ($(#[$doc:meta])* $name:ident($($arg:ident: $kind:ty),*) -> $out:ty = $number:ident) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// See the module.
        pub unsafe fn $name($($arg: $kind),*) -> $out {
            // SAFETY: the program's own arguments to the call it made.
            unsafe { libc::syscall(libc::$number, $($arg),*) as $out }
        }
    };
}

pass!(/// `mmap(2)`
    mmap(addr: *mut c_void, len: usize, prot: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void = SYS_mmap);
pass!(/// `munmap(2)`
    munmap(addr: *mut c_void, len: usize) -> c_int = SYS_munmap);
pass!(/// `mremap(2)`
    mremap(addr: *mut c_void, old: usize, new: usize, flags: c_int, to: *mut c_void) -> *mut c_void = SYS_mremap);
pass!(/// `mprotect(2)`
    mprotect(addr: *mut c_void, len: usize, prot: c_int) -> c_int = SYS_mprotect);
pass!(/// `madvise(2)`
    madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int = SYS_madvise);
pass!(/// `prctl(2)`
    prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int = SYS_prctl);
pass!(/// `close(2)`
    close(fd: c_int) -> c_int = SYS_close);
pass!(/// `close_range(2)`
    close_range(first: u32, last: u32, flags: c_int) -> c_int = SYS_close_range);
pass!(/// `dup3(2)`
    dup3(from: c_int, to: c_int, flags: c_int) -> c_int = SYS_dup3);
