//! Pages that the kernel reads after the call that lent them: `vmsplice(2)`, and sends with
//! `MSG_ZEROCOPY`.
//!
//! The kernel keeps the page frames for the reader, even if the program unmaps them. An arena would
//! clear them for the next user, or write to them after a child has ended. The buffer therefore
//! leaves the arena before the call.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_int, c_long, c_uint, c_void};

use cowslip::raw::Departure;
use cowslip_sys::{process, user_memory};

use crate::arena::detach;
use crate::arena::registry::arenas;
use crate::rt::next_symbol::interpose;

#[inline(always)]
fn lends(flags: c_int) -> bool {
    const MSG_ZEROCOPY: c_int = 0x400_0000;
    flags & MSG_ZEROCOPY != 0
}

fn before_buffer(addr: usize, len: usize) {
    process::uncancelled(|| detach::before_use(addr, len, Departure::Lent));
}

fn before_buffers(buffers: usize, count: usize) {
    process::uncancelled(|| detach::before_vector_use(buffers, count, Departure::Lent));
}

/// Called before `count` messages are sent, `step` bytes apart. The kernel sends at most
/// `UIO_MAXIOV` of them.
fn before_messages(messages: usize, count: usize, step: usize) {
    /// `struct msghdr`: the buffers and their number follow a name and its length.
    const BUFFERS_AT: usize = 16;
    if arenas().next().is_none() {
        return;
    }
    for i in 0..count.min(libc::UIO_MAXIOV as usize) {
        let at = messages.wrapping_add(i * step + BUFFERS_AT);
        let Some([buffers, count]) = user_memory::read::<[u64; 2]>(at) else { return };
        before_buffers(buffers as usize, count as usize);
    }
}

fn before_message(message: usize) {
    before_messages(message, 1, 0);
}

interpose! {
    [vmsplice](pipe: c_int, buffers: *const libc::iovec, count: usize, flags: c_uint) -> isize, if true => before_buffers(buffers as usize, count);
    [send __send](fd: c_int, buffer: *const c_void, len: usize, flags: c_int) -> isize, if lends(flags) => before_buffer(buffer as usize, len);
    [sendto](fd: c_int, buffer: *const c_void, len: usize, flags: c_int, to: *const c_void, to_len: c_uint) -> isize, if lends(flags) => before_buffer(buffer as usize, len);
    [sendmsg](fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize, if lends(flags) => before_message(message as usize);
    [sendmmsg](fd: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int) -> c_int, if lends(flags) => before_messages(messages as usize, count as usize, size_of::<libc::mmsghdr>());
}

/// The same for `syscall(2)`.
#[cfg(target_arch = "x86_64")]
pub(crate) fn before_call(number: c_long, [b, c, d]: [c_long; 3]) {
    let (at, len, has_flag) = (b as usize, c as usize, lends(d as c_int));
    match number {
        libc::SYS_vmsplice => before_buffers(at, len),
        libc::SYS_sendto if has_flag => before_buffer(at, len),
        libc::SYS_sendmsg if lends(c as c_int) => before_message(at),
        libc::SYS_sendmmsg if has_flag => {
            before_messages(at, c as c_uint as usize, size_of::<libc::mmsghdr>())
        }
        _ => {}
    }
}
