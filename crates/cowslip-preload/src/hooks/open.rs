//! `open`, `fcntl` and their families: a descriptor that is made may be read past the page cache
//! ([`descriptor_kinds`](crate::rt::descriptor_kinds)).
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_char, c_int, c_long, c_uint, c_void};

use crate::rt::descriptor_kinds::{invalidate, note_direct};
use crate::rt::next_symbol::interpose;

/// Called before a descriptor is made.
pub(crate) fn before_open(flags: c_int) {
    invalidate();
    if is_direct(flags) {
        note_direct();
    }
}

fn makes_descriptor(command: c_int) -> bool {
    matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC)
}

fn before_fcntl(command: c_int, argument: usize) {
    invalidate();
    if sets_direct(command, argument) {
        note_direct();
    }
}

fn is_direct(flags: c_int) -> bool {
    flags & libc::O_DIRECT != 0
}

fn sets_direct(command: c_int, argument: usize) -> bool {
    command == libc::F_SETFL && is_direct(argument as c_int)
}

interpose! {
    [open open64 __open __open64](path: *const c_char, flags: c_int, mode: c_uint) -> c_int, if true => before_open(flags);
    [__open_2 __open64_2](path: *const c_char, flags: c_int) -> c_int, if true => before_open(flags);
    [openat openat64](folder: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int, if true => before_open(flags);
    [__openat_2 __openat64_2](folder: c_int, path: *const c_char, flags: c_int) -> c_int, if true => before_open(flags);
    [open_by_handle_at](mount: c_int, handle: *mut c_void, flags: c_int) -> c_int, if true => before_open(flags);
    [mkostemp mkostemp64](template: *mut c_char, flags: c_int) -> c_int, if true => before_open(flags);
    [mkostemps mkostemps64](template: *mut c_char, suffix: c_int, flags: c_int) -> c_int, if true => before_open(flags);
    [pidfd_getfd](pidfd: c_int, target: c_int, flags: c_uint) -> c_int, if true => before_open(libc::O_DIRECT);
    [creat creat64](path: *const c_char, mode: c_uint) -> c_int, if true => invalidate();
    [mkstemp mkstemp64](template: *mut c_char) -> c_int, if true => invalidate();
    [mkstemps mkstemps64](template: *mut c_char, suffix: c_int) -> c_int, if true => invalidate();
    [dup](fd: c_int) -> c_int, if true => invalidate();
    [fcntl fcntl64 __fcntl](fd: c_int, command: c_int, argument: usize) -> c_int, if sets_direct(command, argument) || makes_descriptor(command) => before_fcntl(command, argument);
}

/// The same for `syscall(2)`.
#[cfg(target_arch = "x86_64")]
pub(crate) fn before_call(number: c_long, b: c_long, c: c_long) {
    match number {
        libc::SYS_open => before_open(b as c_int),
        libc::SYS_openat | libc::SYS_open_by_handle_at => before_open(c as c_int),
        libc::SYS_creat | libc::SYS_dup => invalidate(),
        libc::SYS_fcntl if sets_direct(b as c_int, c as usize) || makes_descriptor(b as c_int) => {
            before_fcntl(b as c_int, c as usize);
        }
        // The flags lie behind a pointer, or the kernel returns descriptors.
        libc::SYS_openat2 | libc::SYS_pidfd_getfd | libc::SYS_recvmsg | libc::SYS_recvmmsg => {
            before_open(libc::O_DIRECT);
        }
        _ => {}
    }
}
