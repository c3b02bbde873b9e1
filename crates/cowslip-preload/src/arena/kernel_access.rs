//! Rings (`io_uring(7)`), AIO contexts and pinned pages that the program made by system call instructions of its own.
//!
//! The kernel writes through them into memory later, on its own. They are found in `/proc/self/maps` and
//! `/proc/self/status`.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cowslip_sys::process;
use cowslip_sys::reserved_fd::ReservedFd;

use crate::arena::setup_state::is_closed;

/// An AIO context was made by a call that shows its requests.
static AIO_IS_SEEN: AtomicBool = AtomicBool::new(false);

/// Records that an AIO context is made by a call that shows its requests.
pub(crate) fn note_aio() {
    AIO_IS_SEEN.store(true, Ordering::Relaxed);
}

/// The findings of [`scan`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KernelAccess {
    /// A ring, or an AIO context, was made past this library: all memory must leave.
    Ring,
    /// Pages are pinned (`VmPin`). Memory that leaves, is frozen or is thawed loses the writes of devices, so it must
    /// stay as it is.
    Pinned,
}

/// The earliest time of the next scan.
static NOT_BEFORE_NS: AtomicU64 = AtomicU64::new(0);
const PAUSE_NS: u64 = 1_000_000_000;
/// Scans may take this fraction of the time: a process with many mappings is scanned less often.
const PART: u64 = 200;

/// Checks if the kernel may know memory in the arena through a call that was not seen. Looks at `/proc/self/maps` and
/// `/proc/self/status`, at most once a second; in between it returns `None`, and also after everything has left.
pub(crate) fn scan() -> Option<KernelAccess> {
    let now = process::now_ns();
    let not_before = NOT_BEFORE_NS.load(Ordering::Relaxed);
    let claim = |until| {
        let claimed =
            NOT_BEFORE_NS.compare_exchange(not_before, until, Ordering::Relaxed, Ordering::Relaxed);
        claimed.is_ok()
    };
    if is_closed() || now < not_before || !claim(now + PAUSE_NS) {
        return None;
    }
    let found = scan_now();
    let after = process::now_ns();
    let pause = PAUSE_NS.max((after - now) * PART);
    // A finding that is not acted on is found again at once.
    NOT_BEFORE_NS.store(if found.is_some() { after } else { after + pause }, Ordering::Relaxed);
    found
}

/// Returns true if there is a finding now. Called by the service thread, which may not act on it.
pub(crate) fn is_any() -> bool {
    !is_closed() && scan_now().is_some()
}

/// A buffer for reading, used by one thread at a time.
struct Buffer {
    is_taken: AtomicBool,
    bytes: UnsafeCell<[u8; BUFFER_BYTES]>,
}

const BUFFER_BYTES: usize = 16 << 10;

// SAFETY: the bytes are accessed only by the thread that has taken the buffer.
unsafe impl Sync for Buffer {}

static BUFFER: Buffer =
    Buffer { is_taken: AtomicBool::new(false), bytes: UnsafeCell::new([0; BUFFER_BYTES]) };

/// Called in a child: the thread that had the buffer, if any, does not exist here.
pub(crate) fn begin_child() {
    // Written only when it changes: a write copies the page.
    if BUFFER.is_taken.load(Ordering::Relaxed) {
        BUFFER.is_taken.store(false, Ordering::Relaxed);
    }
}

fn scan_now() -> Option<KernelAccess> {
    if BUFFER.is_taken.swap(true, Ordering::Acquire) {
        return None;
    }
    // SAFETY: the buffer was taken just now.
    let buffer = unsafe { &mut *BUFFER.bytes.get() };
    let found = if pinned_kib(buffer).is_some_and(|kib| kib > 0) {
        Some(KernelAccess::Pinned)
    } else {
        has_ring(buffer).then_some(KernelAccess::Ring)
    };
    BUFFER.is_taken.store(false, Ordering::Release);
    found
}

fn pinned_kib(buffer: &mut [u8]) -> Option<u64> {
    const FIELD: &[u8] = b"\nVmPin:";
    let file = open("status")?;
    let read = read(&file, buffer)?;
    let text = &buffer[..read];
    let at = text.windows(FIELD.len()).position(|part| part == FIELD)? + FIELD.len();
    let digits = text[at..].iter().skip_while(|byte| !byte.is_ascii_digit());
    Some(
        digits
            .map_while(|byte| char::from(*byte).to_digit(10))
            .fold(0, |sum, digit| sum * 10 + u64::from(digit)),
    )
}

fn has_ring(buffer: &mut [u8]) -> bool {
    const RING: &[u8] = b"anon_inode:[io_uring]";
    const AIO: &[u8] = b"/[aio]";
    let Some(file) = open("maps") else { return false };
    let looks_for_aio = !AIO_IS_SEEN.load(Ordering::Relaxed);
    // The end of the previous read, in case a name lies across two reads.
    let mut kept = 0;
    while let Some(read) = read(&file, &mut buffer[kept..]).filter(|&read| read > 0) {
        let text = &buffer[..kept + read];
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
        buffer.copy_within(from..len, 0);
    }
    false
}

/// Opens a file of `/proc/self` where the program does not close it.
fn open(name: &str) -> Option<ReservedFd> {
    ReservedFd::open(|| cowslip_sys::procfs::open_self(name)).ok()
}

fn read(file: &ReservedFd, place: &mut [u8]) -> Option<usize> {
    process::read_some(file, place).ok()
}
