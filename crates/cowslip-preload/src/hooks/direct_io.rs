//! Reads past the page cache (`O_DIRECT`, `open(2)`): a device writes into page frames, not into a mapping.
//!
//! A thaw copies a page that such a read fills, and loses the bytes that arrive after the copy. The buffer therefore
//! leaves the arena before the read is issued. Other reads pay for a look at a flag, which is set by the first
//! descriptor that may be of this kind; from then on, a read into an arena asks for the kind of its descriptor
//! (`F_GETFL`).
//!
//! Some file systems do this with every read (`process::pins_readers`). A descriptor is checked for that at its first
//! read into an arena, and again after a descriptor was made that may have its number ([`renew`]).
//!
//! Reads inside libc are not seen: a stream over such a descriptor reads into any memory. All memory leaves before one
//! is made.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_char, c_int, c_long, c_uint, c_void};
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use cowslip::raw::Departure;
use cowslip_sys::{given, process};

use crate::arena::{
    detach,
    registry::{arena_part, arenas, guarded},
};
use crate::hooks::proc_mem::{self, is_address};
use crate::rt::next_symbol::in_front_of;

/// Some descriptor of this process is, or may be, opened with `O_DIRECT`.
static POSSIBLE: AtomicBool = AtomicBool::new(false);

/// Records that a descriptor may be read past the page cache from now on.
pub(crate) fn note() {
    POSSIBLE.store(true, Ordering::Relaxed);
}

/// Kinds are remembered for descriptors below this.
const REMEMBERED: usize = 4096;
/// The age in which a descriptor was found not to pin pages; making a descriptor starts a new age.
static FOUND_PLAIN: [AtomicU32; REMEMBERED] = [const { AtomicU32::new(0) }; REMEMBERED];
static AGE: AtomicU32 = AtomicU32::new(1);

/// Starts a new age: a number may be another file's from now on.
pub(crate) fn renew() {
    AGE.fetch_add(1, Ordering::Relaxed);
}

/// Called when `fd` is closed: its number may become another file's.
pub(crate) fn forget(fd: c_int) {
    if let Some(found) = usize::try_from(fd).ok().and_then(|fd| FOUND_PLAIN.get(fd)) {
        found.store(0, Ordering::Relaxed);
    }
}

/// Returns true if a read of `fd` must be checked.
#[inline(always)]
fn may_pin(fd: c_int) -> bool {
    let found = FOUND_PLAIN.get(fd as usize).map(|found| found.load(Ordering::Relaxed));
    is_possible() || found != Some(AGE.load(Ordering::Relaxed))
}

/// Returns true if a read of `fd` writes into page frames.
fn pins(fd: c_int) -> bool {
    if is_possible() && process::is_direct(fd) {
        return true;
    }
    let age = AGE.load(Ordering::Relaxed);
    let found = usize::try_from(fd).ok().and_then(|fd| FOUND_PLAIN.get(fd));
    if found.is_some_and(|found| found.load(Ordering::Relaxed) == age) {
        return false;
    }
    let pins = process::pins_readers(fd);
    if let Some(found) = found.filter(|_| !pins) {
        found.store(age, Ordering::Relaxed);
    }
    pins
}

/// Called before a descriptor is made.
fn before_open(flags: c_int) {
    renew();
    if is_direct(flags) {
        note();
    }
}

fn makes_descriptor(command: c_int) -> bool {
    matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC)
}

fn before_fcntl(command: c_int, argument: usize) {
    renew();
    if sets_direct(command, argument) {
        note();
    }
}

fn is_direct(flags: c_int) -> bool {
    flags & libc::O_DIRECT != 0
}

fn sets_direct(command: c_int, argument: usize) -> bool {
    command == libc::F_SETFL && is_direct(argument as c_int)
}

/// Checks the descriptors that this process had before the library saw its calls.
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

/// Called before `fd` is read into a buffer.
fn make_room(fd: c_int, addr: usize, len: usize) {
    if arena_part(addr, len).is_some() && pins(fd) {
        process::uncancelled(|| leave(addr, len));
    }
}

/// Called before `fd` is read into `count` buffers.
fn make_rooms(fd: c_int, buffers: usize, count: c_int) {
    const MOST: usize = libc::UIO_MAXIOV as usize;
    let count = usize::try_from(count).unwrap_or(0);
    // The kernel refuses more.
    if count > MOST || arenas().next().is_none() || !pins(fd) {
        return;
    }
    process::uncancelled(|| {
        given::each(buffers, count, |[addr, len]: [u64; 2]| {
            leave(addr as usize, len as usize);
            ControlFlow::Continue(())
        });
    });
}

/// Moves a buffer out of the arena. One that could not leave is read into all the same; the log says so.
fn leave(addr: usize, len: usize) {
    let left = || detach::chunks(addr, len, Departure::DirectIo).is_ok();
    let _ = guarded(left, || false);
}

in_front_of! {
    read(fd: c_int, buffer: *mut c_void, len: usize) -> isize, if may_pin(fd) => make_room(fd, buffer as usize, len);
    __read(fd: c_int, buffer: *mut c_void, len: usize) -> isize, if may_pin(fd) => make_room(fd, buffer as usize, len);
    __read_chk(fd: c_int, buffer: *mut c_void, len: usize, room: usize) -> isize, if may_pin(fd) => make_room(fd, buffer as usize, len);
    pread(fd: c_int, buffer: *mut c_void, len: usize, offset: i64) -> isize, if may_pin(fd) || is_address(offset) => {
        make_room(fd, buffer as usize, len);
        proc_mem::make_room(offset, len);
    };
    pread64(fd: c_int, buffer: *mut c_void, len: usize, offset: i64) -> isize, if may_pin(fd) || is_address(offset) => {
        make_room(fd, buffer as usize, len);
        proc_mem::make_room(offset, len);
    };
    __pread64(fd: c_int, buffer: *mut c_void, len: usize, offset: i64) -> isize, if may_pin(fd) || is_address(offset) => {
        make_room(fd, buffer as usize, len);
        proc_mem::make_room(offset, len);
    };
    __pread_chk(fd: c_int, buffer: *mut c_void, len: usize, offset: i64, room: usize) -> isize, if may_pin(fd) || is_address(offset) => {
        make_room(fd, buffer as usize, len);
        proc_mem::make_room(offset, len);
    };
    __pread64_chk(fd: c_int, buffer: *mut c_void, len: usize, offset: i64, room: usize) -> isize, if may_pin(fd) || is_address(offset) => {
        make_room(fd, buffer as usize, len);
        proc_mem::make_room(offset, len);
    };
    readv(fd: c_int, buffers: *const libc::iovec, count: c_int) -> isize, if may_pin(fd) => make_rooms(fd, buffers as usize, count);
    preadv(fd: c_int, buffers: *const libc::iovec, count: c_int, offset: i64) -> isize, if may_pin(fd) || is_address(offset) => {
        make_rooms(fd, buffers as usize, count);
        proc_mem::make_room(offset, 1);
    };
    preadv64(fd: c_int, buffers: *const libc::iovec, count: c_int, offset: i64) -> isize, if may_pin(fd) || is_address(offset) => {
        make_rooms(fd, buffers as usize, count);
        proc_mem::make_room(offset, 1);
    };
    preadv2(fd: c_int, buffers: *const libc::iovec, count: c_int, offset: i64, how: c_int) -> isize, if may_pin(fd) || is_address(offset) => {
        make_rooms(fd, buffers as usize, count);
        proc_mem::make_room(offset, 1);
    };
    preadv64v2(fd: c_int, buffers: *const libc::iovec, count: c_int, offset: i64, how: c_int) -> isize, if may_pin(fd) || is_address(offset) => {
        make_rooms(fd, buffers as usize, count);
        proc_mem::make_room(offset, 1);
    };
    open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int, if true => before_open(flags);
    open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int, if true => before_open(flags);
    __open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int, if true => before_open(flags);
    __open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int, if true => before_open(flags);
    __open_2(path: *const c_char, flags: c_int) -> c_int, if true => before_open(flags);
    __open64_2(path: *const c_char, flags: c_int) -> c_int, if true => before_open(flags);
    openat(folder: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int, if true => before_open(flags);
    openat64(folder: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int, if true => before_open(flags);
    __openat_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int, if true => before_open(flags);
    __openat64_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int, if true => before_open(flags);
    open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int) -> c_int, if true => before_open(flags);
    mkostemp(template: *mut c_char, flags: c_int) -> c_int, if true => before_open(flags);
    mkostemp64(template: *mut c_char, flags: c_int) -> c_int, if true => before_open(flags);
    mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int, if true => before_open(flags);
    mkostemps64(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int, if true => before_open(flags);
    pidfd_getfd(pidfd: c_int, target: c_int, flags: c_uint) -> c_int, if true => before_open(libc::O_DIRECT);
    creat(path: *const c_char, mode: c_uint) -> c_int, if true => renew();
    creat64(path: *const c_char, mode: c_uint) -> c_int, if true => renew();
    mkstemp(template: *mut c_char) -> c_int, if true => renew();
    mkstemp64(template: *mut c_char) -> c_int, if true => renew();
    mkstemps(template: *mut c_char, suffix: c_int) -> c_int, if true => renew();
    mkstemps64(template: *mut c_char, suffix: c_int) -> c_int, if true => renew();
    dup(fd: c_int) -> c_int, if true => renew();
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int, if sets_direct(command, argument) || makes_descriptor(command) => before_fcntl(command, argument);
    fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int, if sets_direct(command, argument) || makes_descriptor(command) => before_fcntl(command, argument);
    __fcntl(fd: c_int, command: c_int, argument: usize) -> c_int, if sets_direct(command, argument) || makes_descriptor(command) => before_fcntl(command, argument);
}

pub(crate) use helpers::before_stream_of;

/// `aio_read(3)`: a thread of libc's reads, past this library.
mod helpers {
    use cowslip_sys::process::BlockedSignals;

    use super::*;

    in_front_of! {
        aio_read(request: *mut libc::aiocb) -> c_int, if true => before_aio(request);
        aio_read64(request: *mut libc::aiocb) -> c_int, if true => before_aio(request);
        lio_listio(mode: c_int, requests: *const *mut libc::aiocb, count: c_int, event: *mut c_void) -> c_int, if true => before_list(requests, count);
        lio_listio64(mode: c_int, requests: *const *mut libc::aiocb, count: c_int, event: *mut c_void) -> c_int, if true => before_list(requests, count);
        fdopen(fd: c_int, mode: *const c_char) -> *mut c_void, if may_pin(fd) => before_stream(fd);
        _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut c_void, if may_pin(fd) => before_stream(fd);
        freopen(path: *const c_char, mode: *const c_char, stream: *mut c_void) -> *mut c_void, if true => before_stream_of(path);
        freopen64(path: *const c_char, mode: *const c_char, stream: *mut c_void) -> *mut c_void, if true => before_stream_of(path);
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
        if !detach::is_closed() && pins(fd) {
            leave_everything();
        }
    }

    pub(crate) fn before_stream_of(path: *const c_char) {
        renew();
        if detach::is_closed() {
            return;
        }
        let _kept = BlockedSignals::enter();
        // SAFETY: the program hands libc the same path, which reads it to its end.
        if unsafe { process::path_pins_readers(path) } {
            leave_everything();
        }
    }

    fn leave_everything() {
        process::uncancelled(|| {
            let left = || detach::everything(Departure::DirectIo).is_ok();
            let _ = guarded(left, || false);
        });
    }
}

/// Descriptors that arrive in messages.
mod messages {
    use super::*;
    use crate::rt::next_symbol::Next;

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
                    // They are checked when they are read.
                    before_open(libc::O_DIRECT);
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
        // SAFETY: libc's function of that name has this type, and the call is the program's own. A message that was
        // received is filled in.
        unsafe {
            let meant = core::mem::transmute::<*mut c_void, Meant>(RECVMSG.get());
            let answer = meant(fd, message, flags);
            if answer >= 0 {
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
        // SAFETY: as above, for the returned number of messages.
        unsafe {
            let meant = core::mem::transmute::<*mut c_void, Meant>(RECVMMSG.get());
            let answer = meant(fd, messages, count, flags, timeout);
            if answer > 0 {
                (0..answer as usize).for_each(|i| look(&raw const (*messages.add(i)).msg_hdr));
            }
            answer
        }
    }
}

/// Looks all functions up.
pub(crate) fn look_up() {
    look_up_all();
    helpers::look_up_all();
    messages::look_up_all();
}

/// The same for `syscall(2)`.
#[cfg(target_arch = "x86_64")]
pub(crate) fn before_call(number: c_long, a: c_long, b: c_long, c: c_long) {
    match number {
        libc::SYS_open => before_open(b as c_int),
        libc::SYS_openat | libc::SYS_open_by_handle_at => before_open(c as c_int),
        libc::SYS_creat | libc::SYS_dup => renew(),
        libc::SYS_fcntl if sets_direct(b as c_int, c as usize) || makes_descriptor(b as c_int) => {
            before_fcntl(b as c_int, c as usize);
        }
        // The flags lie behind a pointer, or the kernel returns descriptors.
        libc::SYS_openat2 | libc::SYS_pidfd_getfd | libc::SYS_recvmsg | libc::SYS_recvmmsg => {
            before_open(libc::O_DIRECT);
        }
        libc::SYS_read | libc::SYS_pread64 if may_pin(a as c_int) => {
            make_room(a as c_int, b as usize, c as usize);
        }
        libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 if may_pin(a as c_int) => {
            make_rooms(a as c_int, b as usize, c as c_int);
        }
        _ => {}
    }
}
