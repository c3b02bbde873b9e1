//! Rings (`io_uring(7)`) and AIO (`io_submit(2)`): the kernel writes into memory later, on its own.
//!
//! A ring's entries name memory, and lie in memory that ring and program share, where they cannot be seen. All memory
//! therefore leaves when a ring is made. AIO names its targets in a call: they leave then.
//!
//! Packet memory (`AF_XDP`) is also named in a call.
//!
//! [`look`] finds rings that the program makes by system call instructions of its own.
//!
//! # Safety
//! See [`crate::hooks`].

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_long, c_uint, c_void};
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cowslip::raw::Departure;
use cowslip_sys::{Errno, OwnedFd, given, memfile, process};

use crate::arena::{
    detach,
    registry::{config, guarded},
};
use crate::rt::next_symbol::{Next, is_of_libaio};

/// An AIO context was made by a call that shows its requests.
static AIO_IS_SEEN: AtomicBool = AtomicBool::new(false);

/// Called before a ring is made, or before one is used that another process made. Returns the errno for the call if
/// memory could not leave: the ring would reach memory of an arena.
pub(crate) fn before_ring() -> Result<(), Errno> {
    if config().off {
        return Ok(());
    }
    let mut left = Ok(());
    process::uncancelled(|| {
        left = guarded(|| detach::everything(Departure::Ring), || Err(Errno::NOMEM));
    });
    left
}

/// Functions of liburing that lead to a ring: they return a negative errno.
macro_rules! rings {
    ($($name:ident($($argument:ident: $kind:ty),* $(,)?))*) => {
        #[allow(non_upper_case_globals)]
        mod ring {
            $(
                pub(super) static $name: $crate::rt::next_symbol::Next = $crate::rt::next_symbol::Next::new(
                    match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!("a name with a zero in it"),
                    },
                );
            )*
        }

        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
                if let Err(errno) = before_ring() {
                    return -errno.raw_os_error();
                }
                let meant = ring::$name.get();
                if meant == crate::rt::next_symbol::none() {
                    return -libc::ENOSYS;
                }
                type Meant = unsafe extern "C" fn($($kind),*) -> c_int;
                // SAFETY: liburing's function of that name has this type, and the call is the program's own.
                unsafe {
                    let meant = core::mem::transmute::<*mut c_void, Meant>(meant);
                    meant($($argument),*)
                }
            }
        )*
    };
}

rings! {
    io_uring_setup(entries: c_uint, parameters: *mut c_void)
    io_uring_register(fd: c_uint, operation: c_uint, argument: *mut c_void, count: c_uint)
    io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint)
    io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void)
    io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, parameters: *mut c_void, memory: *mut c_void, len: usize)
    io_uring_queue_init_try_nosqarr(entries: c_uint, ring: *mut c_void, parameters: *mut c_void)
    io_uring_queue_mmap(fd: c_int, parameters: *mut c_void, ring: *mut c_void)
    io_uring_register_buffers(ring: *mut c_void, buffers: *const c_void, count: c_uint)
    io_uring_register_buffers_tags(ring: *mut c_void, buffers: *const c_void, tags: *const c_void, count: c_uint)
    io_uring_register_buffers_update_tag(ring: *mut c_void, first: c_uint, buffers: *const c_void, tags: *const c_void, count: c_uint)
    io_uring_register_buf_ring(ring: *mut c_void, request: *mut c_void, flags: c_uint)
}

/// The memory that packets are received into and sent from (`AF_XDP`): it is pinned, and counted nowhere.
mod packets {
    use super::{Departure, c_int, c_uint, c_void, detach, given, guarded, process};
    use crate::rt::next_symbol::in_front_of;

    const SOL_XDP: c_int = 283;
    const XDP_UMEM_REG: c_int = 4;

    fn is_registration(level: c_int, name: c_int) -> bool {
        level == SOL_XDP && name == XDP_UMEM_REG
    }

    fn before_registration(value: usize) {
        let Some([start, len]) = given::read::<[u64; 2]>(value) else { return };
        process::uncancelled(|| {
            // Memory that could not leave is registered all the same; the log says so.
            let left = || detach::chunks(start as usize, len as usize, Departure::Ring).is_ok();
            let _ = guarded(left, || false);
        });
    }

    pub(super) fn before_option(level: c_int, name: c_int, value: usize) {
        if is_registration(level, name) {
            before_registration(value);
        }
    }

    in_front_of! {
        setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: c_uint) -> c_int, if is_registration(level, name) => before_registration(value as usize);
    }
}

/// Looks all functions up.
pub(crate) fn look_up() {
    packets::look_up_all();
}

static IO_SETUP: Next = Next::new(c"io_setup");
static IO_SUBMIT: Next = Next::new(c"io_submit");

#[unsafe(no_mangle)]
unsafe extern "C" fn io_setup(most: c_int, context: *mut c_void) -> c_int {
    type Meant = unsafe extern "C" fn(c_int, *mut c_void) -> c_int;
    let meant = IO_SETUP.get();
    if is_of_libaio(meant) {
        AIO_IS_SEEN.store(true, Ordering::Relaxed);
    }
    // SAFETY: the call is the program's own; a function of this name in another library gets the registers it was
    // called with.
    unsafe { core::mem::transmute::<*mut c_void, Meant>(meant)(most, context) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn io_submit(context: usize, count: c_long, requests: *mut c_void) -> c_int {
    type Meant = unsafe extern "C" fn(usize, c_long, *mut c_void) -> c_int;
    let meant = IO_SUBMIT.get();
    if is_of_libaio(meant) {
        before_submit(count, requests as usize);
    }
    // SAFETY: as above.
    unsafe { core::mem::transmute::<*mut c_void, Meant>(meant)(context, count, requests) }
}

/// Moves the buffers of the requests out of the arena.
fn before_submit(count: c_long, requests: usize) {
    const PREAD: u64 = 0;
    const PREADV: u64 = 7;
    let leave = |addr: u64, len: u64| {
        let left = || detach::chunks(addr as usize, len as usize, Departure::Ring).is_ok();
        let _ = guarded(left, || false);
    };
    given::each(requests, usize::try_from(count).unwrap_or(0), |request: usize| {
        // `struct iocb`: data, key and flags, operation and priority and descriptor, buffer, length, offset, …
        let Some([_, _, operation, buffer, len, ..]) = given::read::<[u64; 8]>(request) else {
            return ControlFlow::Break(());
        };
        match operation & 0xffff {
            PREAD => leave(buffer, len),
            PREADV => given::each(buffer as usize, len as usize, |[addr, len]: [u64; 2]| {
                leave(addr, len);
                ControlFlow::Continue(())
            }),
            _ => {}
        }
        ControlFlow::Continue(())
    });
}

/// The same for `syscall(2)`; returns the errno with which the call fails.
#[cfg(target_arch = "x86_64")]
pub(crate) fn before_call(number: c_long, b: c_long, c: c_long, d: c_long) -> Result<(), Errno> {
    match number {
        libc::SYS_io_setup => AIO_IS_SEEN.store(true, Ordering::Relaxed),
        libc::SYS_io_submit => before_submit(b, c as usize),
        libc::SYS_setsockopt => packets::before_option(b as c_int, c as c_int, d as usize),
        // This includes a ring that arrived in a message.
        _ if !detach::is_closed() => return before_ring(),
        _ => {}
    }
    Ok(())
}

/// The findings of [`look`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// A ring, or an AIO context, was made past this library: all memory must leave.
    Ring,
    /// Pages are pinned (`VmPin`). Memory that leaves, is frozen or is thawed loses the writes of devices, so it must
    /// stay as it is.
    Pinned,
}

/// The earliest time of the next look.
static NOT_BEFORE_NS: AtomicU64 = AtomicU64::new(0);
const PAUSE_NS: u64 = 1_000_000_000;
/// Looking may take this fraction of the time: a process with many mappings is looked at less often.
const PART: u64 = 200;

/// Checks if the kernel may know memory in the arena through a call that was not seen. Looks at `/proc/self/maps` and
/// `/proc/self/status`, at most once a second; in between it returns `None`, and also after everything has left.
pub(crate) fn look() -> Option<Found> {
    let now = process::now_ns();
    let not_before = NOT_BEFORE_NS.load(Ordering::Relaxed);
    let claim = |until| {
        let claimed =
            NOT_BEFORE_NS.compare_exchange(not_before, until, Ordering::Relaxed, Ordering::Relaxed);
        claimed.is_ok()
    };
    if detach::is_closed() || now < not_before || !claim(now + PAUSE_NS) {
        return None;
    }
    let found = look_now();
    let after = process::now_ns();
    let pause = PAUSE_NS.max((after - now) * PART);
    // A finding that is not acted on is found again at once.
    NOT_BEFORE_NS.store(if found.is_some() { after } else { after + pause }, Ordering::Relaxed);
    found
}

/// Returns true if there is a finding now. Called by the service thread, which may not act on it.
pub(crate) fn is_any() -> bool {
    !detach::is_closed() && look_now().is_some()
}

/// A buffer for reading, used by one thread at a time.
struct Room {
    is_taken: AtomicBool,
    bytes: UnsafeCell<[u8; ROOM_BYTES]>,
}

const ROOM_BYTES: usize = 16 << 10;

// SAFETY: the bytes are accessed only by the thread that has taken the room.
unsafe impl Sync for Room {}

static ROOM: Room =
    Room { is_taken: AtomicBool::new(false), bytes: UnsafeCell::new([0; ROOM_BYTES]) };

fn look_now() -> Option<Found> {
    if ROOM.is_taken.swap(true, Ordering::Acquire) {
        return None;
    }
    // SAFETY: the room was taken just now.
    let room = unsafe { &mut *ROOM.bytes.get() };
    let found = if pinned_kib(room).is_some_and(|kib| kib > 0) {
        Some(Found::Pinned)
    } else {
        has_ring(room).then_some(Found::Ring)
    };
    ROOM.is_taken.store(false, Ordering::Release);
    found
}

fn pinned_kib(room: &mut [u8]) -> Option<u64> {
    const FIELD: &[u8] = b"\nVmPin:";
    let file = memfile::open_proc_self("status").ok()?;
    let read = read(&file, room)?;
    let text = &room[..read];
    let at = text.windows(FIELD.len()).position(|part| part == FIELD)? + FIELD.len();
    let digits = text[at..].iter().skip_while(|byte| !byte.is_ascii_digit());
    Some(
        digits
            .map_while(|byte| char::from(*byte).to_digit(10))
            .fold(0, |sum, digit| sum * 10 + u64::from(digit)),
    )
}

fn has_ring(room: &mut [u8]) -> bool {
    const RING: &[u8] = b"anon_inode:[io_uring]";
    const AIO: &[u8] = b"/[aio]";
    let Ok(file) = memfile::open_proc_self("maps") else { return false };
    let looks_for_aio = !AIO_IS_SEEN.load(Ordering::Relaxed);
    // The end of the previous read, in case a name lies across two reads.
    let mut kept = 0;
    while let Some(read) = read(&file, &mut room[kept..]).filter(|&read| read > 0) {
        let text = &room[..kept + read];
        for (at, _) in text.iter().enumerate().filter(|(_, byte)| **byte == b'[') {
            let ends_at =
                |name: &[u8], before: usize| at >= before && text[at - before..].starts_with(name);
            if ends_at(RING, 11) || looks_for_aio && ends_at(AIO, 1) {
                return true;
            }
        }
        let len = text.len();
        let from = len.saturating_sub(RING.len());
        kept = len - from;
        room.copy_within(from..len, 0);
    }
    false
}

fn read(file: &OwnedFd, place: &mut [u8]) -> Option<usize> {
    process::read_some(file, place).ok()
}
