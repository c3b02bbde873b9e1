//! Memory that is read or written as a file, `/proc/self/mem` (`proc_pid_mem(5)`), or like another
//! process' (`process_vm_writev(2)`).
//!
//! The kernel then ignores the protection of private memory, but an arena's is shared while it is live; nor does it
//! wait for a freeze. Such memory therefore leaves the arena first. The offset shows it: no file has a byte at an
//! offset that is an arena's address.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_int, c_long, c_void};

use cowslip::raw::Departure;
use cowslip_sys::process;

use crate::arena::detach;
use crate::arena::registry::{arena_part, arenas};
use crate::rt::next_symbol::interpose;

/// Returns true if an offset can be an arena's address: no file has 256 TiB, and no arena lies below 1 TiB.
#[inline(always)]
pub(crate) fn is_address(offset: i64) -> bool {
    offset >> 40 > 0
}

/// Called before `len` bytes at `offset` of a file are read or written.
pub(crate) fn before_access(offset: i64, len: usize) {
    let addr = offset as usize;
    if is_address(offset) && arena_part(addr, len.max(1)).is_some() {
        process::uncancelled(|| detach::before_use(addr, len.max(1), Departure::ProcMem));
    }
}

/// The same for `syscall(2)`.
#[cfg(target_arch = "x86_64")]
pub(crate) fn before_call(number: c_long, b: c_long, c: c_long, d: c_long) {
    match number {
        libc::SYS_pread64 | libc::SYS_pwrite64 => before_access(d, c as usize),
        libc::SYS_preadv | libc::SYS_preadv2 | libc::SYS_pwritev | libc::SYS_pwritev2 => {
            before_access(d, 1);
        }
        libc::SYS_lseek => before_access(b, 1),
        _ => {}
    }
}

/// Called before a process writes to these places in `target`. The kernel holds their page frames
/// while it waits for the source, and a freeze by another thread would keep the bytes that arrive
/// after it for the child alone.
pub(crate) fn before_write(target: c_int, places: usize, count: usize) {
    process::uncancelled(|| {
        if arenas().next().is_some() && process::is_own_task(target) {
            detach::before_vector_use(places, count, Departure::ProcMem);
        }
    });
}

interpose! {
    [pwrite pwrite64 __pwrite64](fd: c_int, buffer: *const c_void, len: usize, offset: i64) -> isize, if is_address(offset) => before_access(offset, len);
    [pwritev pwritev64](fd: c_int, buffers: *const libc::iovec, count: c_int, offset: i64) -> isize, if is_address(offset) => before_access(offset, 1);
    [pwritev2 pwritev64v2](fd: c_int, buffers: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize, if is_address(offset) => before_access(offset, 1);
    [process_vm_writev](target: c_int, from: *const libc::iovec, from_count: usize, places: *const libc::iovec, count: usize, flags: usize) -> isize, if true => before_write(target, places as usize, count);
    [lseek lseek64](fd: c_int, offset: i64, whence: c_int) -> i64, if is_address(offset) => before_access(offset, 1);
}
