//! Reads past the page cache (`O_DIRECT`, `open(2)`): a device writes into page frames, not into a mapping.
//!
//! A thaw copies a page that such a read fills, and loses what comes after the copy. So the buffer leaves the arena
//! before the read is issued. That costs everybody else a look at a flag, which is set by the first descriptor
//! that may be such a one; then a read into an arena asks which kind its descriptor is (`F_GETFL`).
//!
//! What is read inside libc is not seen: a stream over such a descriptor reads into any memory. When one is made
//! all memory leaves.
//!
//! # Safety
//! See [`crate::mapping`].

use core::ffi::{c_char, c_int, c_long, c_uint, c_void};
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, Ordering};

use cowslip::raw::Departure;
use cowslip_sys::{given, process};

use crate::next::in_front_of;
use crate::poked::is_address;
use crate::program::{arena_part, guarded};
use crate::{leaving, poked};

/// Some descriptor of this process is, or may be, one.
static POSSIBLE: AtomicBool = AtomicBool::new(false);

/// Takes note that a descriptor may be read past the page cache from now on.
pub(crate) fn note() {
    POSSIBLE.store(true, Ordering::Relaxed);
}

fn is_direct(flags: c_int) -> bool {
    flags & libc::O_DIRECT != 0
}

fn sets_direct(command: c_int, argument: usize) -> bool {
    command == libc::F_SETFL && is_direct(argument as c_int)
}

/// Descriptors that this process had before anybody watched.
pub(crate) fn look_at_descriptors() {
    const FIRST: core::ops::Range<c_int> = 0..1024;
    let look = |fd| {
        if !is_possible() && process::is_direct(fd) {
            note();
        }
    };
    if !process::for_each_descriptor(look) {
        FIRST.for_each(look);
    }
}

#[inline(always)]
fn is_possible() -> bool {
    POSSIBLE.load(Ordering::Relaxed)
}

/// Before `fd` is read into a buffer.
fn make_room(fd: c_int, addr: usize, len: usize) {
    if arena_part(addr, len).is_some() && process::is_direct(fd) {
        process::uncancelled(|| leave(addr, len));
    }
}

/// Before `fd` is read into `count` buffers.
fn make_rooms(fd: c_int, buffers: usize, count: c_int) {
    const MOST: usize = libc::UIO_MAXIOV as usize;
    let count = usize::try_from(count).unwrap_or(0);
    // More are refused.
    if count > MOST || !process::is_direct(fd) {
        return;
    }
    process::uncancelled(|| {
        given::each(buffers, count, |[addr, len]: [u64; 2]| {
            leave(addr as usize, len as usize);
            ControlFlow::Continue(())
        });
    });
}

/// A buffer that could not leave is read into all the same, as the program wants it; the log says so.
fn leave(addr: usize, len: usize) {
    let left = || leaving::chunks(addr, len, Departure::DirectIo).is_ok();
    let _ = guarded(left, || false);
}

in_front_of! {
    read(fd: c_int, buffer: *mut c_void, len: usize) -> isize, if is_possible() => make_room(fd, buffer as usize, len);
    __read(fd: c_int, buffer: *mut c_void, len: usize) -> isize, if is_possible() => make_room(fd, buffer as usize, len);
    __read_chk(fd: c_int, buffer: *mut c_void, len: usize, room: usize) -> isize, if is_possible() => make_room(fd, buffer as usize, len);
    pread(fd: c_int, buffer: *mut c_void, len: usize, offset: i64) -> isize, if is_possible() || is_address(offset) => {
        make_room(fd, buffer as usize, len);
        poked::make_room(offset, len);
    };
    pread64(fd: c_int, buffer: *mut c_void, len: usize, offset: i64) -> isize, if is_possible() || is_address(offset) => {
        make_room(fd, buffer as usize, len);
        poked::make_room(offset, len);
    };
    __pread64(fd: c_int, buffer: *mut c_void, len: usize, offset: i64) -> isize, if is_possible() || is_address(offset) => {
        make_room(fd, buffer as usize, len);
        poked::make_room(offset, len);
    };
    __pread_chk(fd: c_int, buffer: *mut c_void, len: usize, offset: i64, room: usize) -> isize, if is_possible() || is_address(offset) => {
        make_room(fd, buffer as usize, len);
        poked::make_room(offset, len);
    };
    __pread64_chk(fd: c_int, buffer: *mut c_void, len: usize, offset: i64, room: usize) -> isize, if is_possible() || is_address(offset) => {
        make_room(fd, buffer as usize, len);
        poked::make_room(offset, len);
    };
    readv(fd: c_int, buffers: *const libc::iovec, count: c_int) -> isize, if is_possible() => make_rooms(fd, buffers as usize, count);
    preadv(fd: c_int, buffers: *const libc::iovec, count: c_int, offset: i64) -> isize, if is_possible() || is_address(offset) => {
        make_rooms(fd, buffers as usize, count);
        poked::make_room(offset, 1);
    };
    preadv64(fd: c_int, buffers: *const libc::iovec, count: c_int, offset: i64) -> isize, if is_possible() || is_address(offset) => {
        make_rooms(fd, buffers as usize, count);
        poked::make_room(offset, 1);
    };
    preadv2(fd: c_int, buffers: *const libc::iovec, count: c_int, offset: i64, how: c_int) -> isize, if is_possible() || is_address(offset) => {
        make_rooms(fd, buffers as usize, count);
        poked::make_room(offset, 1);
    };
    preadv64v2(fd: c_int, buffers: *const libc::iovec, count: c_int, offset: i64, how: c_int) -> isize, if is_possible() || is_address(offset) => {
        make_rooms(fd, buffers as usize, count);
        poked::make_room(offset, 1);
    };
    open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int, if is_direct(flags) => note();
    open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int, if is_direct(flags) => note();
    __open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int, if is_direct(flags) => note();
    __open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int, if is_direct(flags) => note();
    __open_2(path: *const c_char, flags: c_int) -> c_int, if is_direct(flags) => note();
    __open64_2(path: *const c_char, flags: c_int) -> c_int, if is_direct(flags) => note();
    openat(folder: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int, if is_direct(flags) => note();
    openat64(folder: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int, if is_direct(flags) => note();
    __openat_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int, if is_direct(flags) => note();
    __openat64_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int, if is_direct(flags) => note();
    open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int) -> c_int, if is_direct(flags) => note();
    mkostemp(template: *mut c_char, flags: c_int) -> c_int, if is_direct(flags) => note();
    mkostemp64(template: *mut c_char, flags: c_int) -> c_int, if is_direct(flags) => note();
    mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int, if is_direct(flags) => note();
    mkostemps64(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int, if is_direct(flags) => note();
    pidfd_getfd(pidfd: c_int, target: c_int, flags: c_uint) -> c_int, if true => note();
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int, if sets_direct(command, argument) => note();
    fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int, if sets_direct(command, argument) => note();
    __fcntl(fd: c_int, command: c_int, argument: usize) -> c_int, if sets_direct(command, argument) => note();
}

/// `aio_read(3)`: a thread of libc's reads, which nobody sees.
mod helpers {
    use super::*;

    in_front_of! {
        aio_read(request: *mut libc::aiocb) -> c_int, if is_possible() => before_aio(request);
        aio_read64(request: *mut libc::aiocb) -> c_int, if is_possible() => before_aio(request);
        lio_listio(mode: c_int, requests: *const *mut libc::aiocb, count: c_int, event: *mut c_void) -> c_int, if is_possible() => before_list(requests, count);
        lio_listio64(mode: c_int, requests: *const *mut libc::aiocb, count: c_int, event: *mut c_void) -> c_int, if is_possible() => before_list(requests, count);
        fdopen(fd: c_int, mode: *const c_char) -> *mut c_void, if is_possible() => before_stream(fd);
        _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut c_void, if is_possible() => before_stream(fd);
    }

    fn before_aio(request: *const libc::aiocb) {
        if !given::is_readable(request as usize, size_of::<libc::aiocb>()) {
            return;
        }
        // SAFETY: it was there just now, and is the program's to hand over.
        let (fd, buffer, len) =
            unsafe { ((*request).aio_fildes, (*request).aio_buf, (*request).aio_nbytes) };
        make_room(fd, buffer as usize, len);
    }

    fn before_list(requests: *const *mut libc::aiocb, count: c_int) {
        let count = usize::try_from(count).unwrap_or(0);
        given::each(requests as usize, count, |request: usize| {
            before_aio(request as *const libc::aiocb);
            ControlFlow::Continue(())
        });
    }

    fn before_stream(fd: c_int) {
        if process::is_direct(fd) {
            process::uncancelled(|| {
                let left = || leaving::everything(Departure::DirectIo).is_ok();
                let _ = guarded(left, || false);
            });
        }
    }
}

/// Descriptors that come in messages.
mod messages {
    use super::*;
    use crate::next::Next;

    static RECVMSG: Next = Next::new(c"recvmsg");
    static RECVMMSG: Next = Next::new(c"recvmmsg");

    pub(super) fn look_up_all() {
        RECVMSG.get();
        RECVMMSG.get();
    }

    /// # Safety
    /// The kernel has just filled it in.
    unsafe fn look(message: *const libc::msghdr) {
        // SAFETY: as the caller promised; cmsg(3).
        unsafe {
            let mut part = libc::CMSG_FIRSTHDR(message);
            while !part.is_null() {
                if (*part).cmsg_level == libc::SOL_SOCKET && (*part).cmsg_type == libc::SCM_RIGHTS {
                    // Which kind they are is asked when they are read.
                    note();
                    return;
                }
                part = libc::CMSG_NXTHDR(message, part);
            }
        }
    }

    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn recvmsg(
        fd: c_int,
        message: *mut libc::msghdr,
        flags: c_int,
    ) -> isize {
        type Meant = unsafe extern "C-unwind" fn(c_int, *mut libc::msghdr, c_int) -> isize;
        // SAFETY: libc's function of that name has this type, and the call is the program's own. What it succeeded with was
        // filled in.
        unsafe {
            let meant = core::mem::transmute::<*mut c_void, Meant>(RECVMSG.get());
            let answer = meant(fd, message, flags);
            if answer >= 0 && !is_possible() {
                look(message);
            }
            answer
        }
    }

    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn recvmmsg(
        fd: c_int,
        messages: *mut libc::mmsghdr,
        count: c_uint,
        flags: c_int,
        timeout: *mut libc::timespec,
    ) -> c_int {
        type Meant = unsafe extern "C-unwind" fn(
            c_int,
            *mut libc::mmsghdr,
            c_uint,
            c_int,
            *mut libc::timespec,
        ) -> c_int;
        // SAFETY: as above, for as many messages as it says.
        unsafe {
            let meant = core::mem::transmute::<*mut c_void, Meant>(RECVMMSG.get());
            let answer = meant(fd, messages, count, flags, timeout);
            if answer > 0 && !is_possible() {
                (0..answer as usize).for_each(|i| look(&raw const (*messages.add(i)).msg_hdr));
            }
            answer
        }
    }
}

/// All of them.
pub(crate) fn look_up() {
    look_up_all();
    helpers::look_up_all();
    messages::look_up_all();
}

/// The same by `syscall(2)`.
#[cfg(target_arch = "x86_64")]
pub(crate) fn before_call(number: c_long, a: c_long, b: c_long, c: c_long) {
    let is_noted = match number {
        libc::SYS_open => is_direct(b as c_int),
        libc::SYS_openat | libc::SYS_open_by_handle_at => is_direct(c as c_int),
        libc::SYS_fcntl => sets_direct(b as c_int, c as usize),
        // The flags are behind a pointer, and descriptors in what comes back.
        libc::SYS_openat2 | libc::SYS_pidfd_getfd | libc::SYS_recvmsg | libc::SYS_recvmmsg => true,
        libc::SYS_read | libc::SYS_pread64 if is_possible() => {
            make_room(a as c_int, b as usize, c as usize);
            false
        }
        libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 if is_possible() => {
            make_rooms(a as c_int, b as usize, c as c_int);
            false
        }
        _ => false,
    };
    if is_noted {
        note();
    }
}
