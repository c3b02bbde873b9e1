#![allow(unsafe_code)]
//! System calls passed on unchanged for a program: the arguments are the program's, the answer and
//! `errno` the kernel's.
//!
//! # Safety
//! A caller passes on exactly the program's request: the call has the effect that the program would
//! have got without the preload library.

use core::ffi::{c_int, c_long, c_uint, c_ulong, c_void};

/// libc's `syscall(2)`, or an equivalent: a preload library may stand in front of libc's.
#[cfg(target_arch = "x86_64")]
pub(crate) fn by_number() -> unsafe extern "C" fn(c_long, ...) -> c_long {
    // SAFETY: integers and pointers are passed in the same places as to a function that takes them all; the kernel
    // looks at none beyond those that are given.
    unsafe { core::mem::transmute(syscall as *const c_void) }
}

/// libc's own.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn by_number() -> unsafe extern "C" fn(c_long, ...) -> c_long {
    libc::syscall
}

macro_rules! pass {
    ($(#[$doc:meta])* $name:ident($($arg:ident: $kind:ty),*) -> $out:ty = $number:ident) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// See the module.
        pub unsafe fn $name($($arg: $kind),*) -> $out {
            // SAFETY: the program's own arguments to the call that it made.
            unsafe { by_number()(libc::$number, $($arg),*) as $out }
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
pass!(/// `unshare(2)`
    unshare(flags: c_int) -> c_int = SYS_unshare);
pass!(/// `setns(2)`
    setns(fd: c_int, kind: c_int) -> c_int = SYS_setns);
pass!(/// `capset(2)`
    capset(header: *mut c_void, data: *const c_void) -> c_int = SYS_capset);
pass!(/// `dup3(2)`
    dup3(from: c_int, to: c_int, flags: c_int) -> c_int = SYS_dup3);
pass!(/// `mincore(2)`
    mincore(addr: *mut c_void, len: usize, residence: *mut u8) -> c_int = SYS_mincore);
pass!(/// `shmat(2)`
    shmat(id: c_int, addr: *const c_void, flags: c_int) -> *mut c_void = SYS_shmat);
pass!(/// `process_madvise(2)`
    process_madvise(pidfd: c_int, vectors: *const libc::iovec, count: usize, advice: c_int, flags: c_uint) -> isize = SYS_process_madvise);
pass!(/// `msync(2)`
    msync(addr: *mut c_void, len: usize, flags: c_int) -> c_int = SYS_msync);
pass!(/// `mlock(2)`
    mlock(addr: *mut c_void, len: usize) -> c_int = SYS_mlock);
pass!(/// `mlock2(2)`
    mlock2(addr: *mut c_void, len: usize, flags: u32) -> c_int = SYS_mlock2);
pass!(/// `munlock(2)`
    munlock(addr: *mut c_void, len: usize) -> c_int = SYS_munlock);
pass!(/// `mlockall(2)`
    mlockall(flags: c_int) -> c_int = SYS_mlockall);
pass!(/// `pkey_mprotect(2)`
    pkey_mprotect(addr: *mut c_void, len: usize, prot: c_int, key: c_int) -> c_int = SYS_pkey_mprotect);
pass!(/// `ioctl(2)`
    ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int = SYS_ioctl);
pass!(/// `remap_file_pages(2)`
    remap_file_pages(addr: *mut c_void, len: usize, prot: c_int, page: usize, flags: c_int) -> c_int = SYS_remap_file_pages);
pass!(/// `mseal(2)`
    mseal(addr: *mut c_void, len: usize, flags: c_ulong) -> c_int = SYS_mseal);
pass!(/// `prlimit64(2)`
    prlimit(pid: c_int, resource: c_uint, new: *const c_void, old: *mut c_void) -> c_int = SYS_prlimit64);

/// `syscall(2)`, equivalent to libc's.
///
/// # Safety
/// See the module.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    core::arch::naked_asm!(
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 2f",
        "ret",
        "2:",
        "mov rdi, rax",
        "jmp {fail}",
        fail = sym fail,
    )
}

#[cfg(target_arch = "x86_64")]
extern "C" fn fail(answer: c_long) -> c_long {
    // SAFETY: errno is a thread-local integer that is always there.
    unsafe { *libc::__errno_location() = -answer as c_int };
    -1
}
