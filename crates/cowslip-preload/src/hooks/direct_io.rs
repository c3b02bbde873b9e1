//! Reads past the page cache (`O_DIRECT`, `open(2)`): a device writes into page frames, not into a mapping.
//!
//! A thaw copies a page that such a read fills, and loses the bytes that arrive after the copy. The buffer therefore
//! leaves the arena before the read is issued. Other reads pay for a look at a flag, which is set by the first
//! descriptor that may be of this kind; from then on, a read into an arena asks for the kind of its descriptor
//! (`F_GETFL`).
//!
//! Some file systems do this with every read (`process::pins_readers`). A descriptor is checked for that at its first
//! read into an arena ([`descriptor_kinds`](crate::rt::descriptor_kinds)).
//!
//! Reads inside libc are not seen: [`posix_aio`](crate::hooks::posix_aio), [`stdio`](crate::hooks::stdio).
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_int, c_long, c_void};

use cowslip::raw::Departure;
use cowslip_sys::process;

use crate::arena::detach;
use crate::arena::registry::{arena_part, arenas};
use crate::hooks::proc_mem::{self, is_address};
use crate::rt::descriptor_kinds::{may_pin, pins};
use crate::rt::next_symbol::interpose;

/// Called before `fd` is read into a buffer.
pub(crate) fn before_read(fd: c_int, addr: usize, len: usize) {
    if arena_part(addr, len).is_some() && pins(fd) {
        process::uncancelled(|| detach::before_use(addr, len, Departure::DirectIo));
    }
}

/// Called before `fd` is read into `count` buffers.
fn before_vector_read(fd: c_int, buffers: usize, count: c_int) {
    let count = usize::try_from(count).unwrap_or(0);
    if arenas().next().is_some() && pins(fd) {
        process::uncancelled(|| detach::before_vector_use(buffers, count, Departure::DirectIo));
    }
}

interpose! {
    [read __read](fd: c_int, buffer: *mut c_void, len: usize) -> isize, if may_pin(fd) => before_read(fd, buffer as usize, len);
    [__read_chk](fd: c_int, buffer: *mut c_void, len: usize, room: usize) -> isize, if may_pin(fd) => before_read(fd, buffer as usize, len);
    [pread pread64 __pread64](fd: c_int, buffer: *mut c_void, len: usize, offset: i64) -> isize, if may_pin(fd) || is_address(offset) => {
        before_read(fd, buffer as usize, len);
        proc_mem::before_access(offset, len);
    };
    [__pread_chk __pread64_chk](fd: c_int, buffer: *mut c_void, len: usize, offset: i64, room: usize) -> isize, if may_pin(fd) || is_address(offset) => {
        before_read(fd, buffer as usize, len);
        proc_mem::before_access(offset, len);
    };
    [readv](fd: c_int, buffers: *const libc::iovec, count: c_int) -> isize, if may_pin(fd) => before_vector_read(fd, buffers as usize, count);
    [preadv preadv64](fd: c_int, buffers: *const libc::iovec, count: c_int, offset: i64) -> isize, if may_pin(fd) || is_address(offset) => {
        before_vector_read(fd, buffers as usize, count);
        proc_mem::before_access(offset, 1);
    };
    [preadv2 preadv64v2](fd: c_int, buffers: *const libc::iovec, count: c_int, offset: i64, how: c_int) -> isize, if may_pin(fd) || is_address(offset) => {
        before_vector_read(fd, buffers as usize, count);
        proc_mem::before_access(offset, 1);
    };
}

/// The same for `syscall(2)`.
#[cfg(target_arch = "x86_64")]
pub(crate) fn before_call(number: c_long, a: c_long, b: c_long, c: c_long) {
    match number {
        libc::SYS_read | libc::SYS_pread64 if may_pin(a as c_int) => {
            before_read(a as c_int, b as usize, c as usize);
        }
        libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 if may_pin(a as c_int) => {
            before_vector_read(a as c_int, b as usize, c as c_int);
        }
        _ => {}
    }
}
