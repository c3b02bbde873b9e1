//! The arena that a process' new memory comes from.
//!
//! A process, including the first, makes one when it maps enough to gain by it. A child takes over an inherited arena
//! when no other process has any of it.

use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use core::time::Duration;

use cowslip::units::{ByteCount, VirtRange, page_size_bytes};
use cowslip::{Arena, ErrorKind, Prot};
use cowslip_sys::{process, procfs, waiting};

use crate::arena::{
    child_limits, detach,
    registry::{self, config, has_parent, is_forking_here, own},
};
use crate::hooks::{direct_io, io_uring, rlimit};
use crate::rt::log::say;

const UNTRIED: u8 = 0;
const BEING_MADE: u8 = 1;
const SETTLED: u8 = 2;
static MAKING: AtomicU8 = AtomicU8::new(UNTRIED);

/// Bytes that the process has mapped so far without an arena. A fork copies the page tables of little memory in the
/// time that a freeze takes, and most processes end before they need more.
static ELSEWHERE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// An arena takes up to twelve descriptors; under a limit this low the program would miss them.
const FEW_FILES: u64 = 64;

/// Called in a child: it has no arena of its own yet.
pub(crate) fn begin_child() {
    let has_room = registry::begin_child();
    MAKING.store(if has_room { UNTRIED } else { SETTLED }, Ordering::Relaxed);
    ELSEWHERE_BYTES.store(0, Ordering::Relaxed);
}

/// Returns memory for a mapping of the program, if an arena has it.
pub(crate) fn allocate(len: usize, prot: Prot) -> Option<VirtRange> {
    if detach::is_closed() || !registry::is_own_process() {
        return None;
    }
    let arena = own_or_make(len)?;
    if !rlimit::allow_memory() || detach::is_closed() {
        arena.raw().count_passed_mapping();
        return None;
    }
    match arena.allocate(ByteCount(len as u64), prot) {
        Ok(range) => Some(range),
        Err(error) => {
            arena.raw().count_passed_mapping();
            if error.kind() != ErrorKind::Busy {
                say!("a mapping of {} goes past the arena: {error}", ByteCount(len as u64));
            }
            None
        }
    }
}

/// The arena for new memory. Made, or taken over, if a mapping of `len` makes that worth it.
fn own_or_make(len: usize) -> Option<&'static Arena> {
    if is_forking_here() {
        return None;
    }
    if let Some(own) = own() {
        return Some(own);
    }
    if MAKING.load(Ordering::Relaxed) != UNTRIED || !is_worth(len) {
        return None;
    }
    if MAKING.compare_exchange(UNTRIED, BEING_MADE, Ordering::SeqCst, Ordering::Relaxed).is_err() {
        // Another thread makes it, or this one does and maps something on the way, or it failed.
        return None;
    }
    let limit = rlimit::in_force();
    if let Some(limit) = limit {
        say!("no arena, the program runs unchanged: {} is set", limit.name());
    }
    let has_few = process::file_limit() < FEW_FILES;
    if has_few {
        say!("no arena, the program runs unchanged: it may open few files, and needs them itself");
    }
    let tracer = process::tracer_pid();
    if let Some(tracer) = tracer {
        say!(
            "no arena, the program runs unchanged: process {tracer} traces it, which may not expect our thread"
        );
    }
    // Checked after the exchange: a thread that closes waits for an arena that is being made.
    let may_have = limit.is_none() && !has_few && tracer.is_none();
    let may = !config().off && may_have && !detach::is_closed();
    if may && !adopt_one() {
        make();
    }
    MAKING.store(SETTLED, Ordering::Release);
    own()
}

/// Waits for the arena that another thread may be making. None is made after that once [nothing goes
/// in](detach::is_closed).
pub(crate) fn wait_made() {
    const NAP: Duration = Duration::from_micros(50);
    /// In a child that was forked past us, the thread that makes it may not exist.
    const MOST_NS: u64 = 1_000_000_000;
    let until_ns = process::now_ns() + MOST_NS;
    while MAKING.load(Ordering::SeqCst) == BEING_MADE && process::now_ns() < until_ns {
        if waiting::nap(NAP).is_err() {
            break;
        }
    }
}

/// Returns true if a fork would gain by an arena from here on: enough was mapped, and half of it is in use, or twice as
/// much comes at once. Allocators map more at their start than most programs need.
fn is_worth(len: usize) -> bool {
    let enough = config().arena_after_bytes;
    let elsewhere = ELSEWHERE_BYTES.fetch_add(len, Ordering::Relaxed).saturating_add(len);
    let used_bytes = || Some(process::anonymous_pages()? as usize * page_size_bytes());
    elsewhere >= enough && (len >= 2 * enough || used_bytes().is_none_or(|used| used >= enough / 2))
}

fn make() {
    let config = config();
    if !registry::can_add() {
        say!("no arena of its own for a descendant in so many generations");
        return;
    }
    let made = Arena::builder(config.capacity)
        .backing(config.backing)
        .userfaultfd(!config.is_plain)
        .build();
    match made {
        Ok(arena) => {
            say!("arena of {} at {}, {}", config.capacity, arena.range(), arena.pages());
            if !has_huge_pages_at_faults() {
                arena.raw().begin_small();
            }
            child_limits::give_way(&arena);
            child_limits::limit_memory(&arena);
            arena.raw().ask_before_thaws(io_uring::is_any);
            direct_io::look_at_descriptors();
            registry::add(arena);
        }
        Err(error) => say!("no arena, the program runs unchanged: {error}"),
    }
}

/// Returns true if memory natively begins on huge pages without being asked for. It does then in an arena as well.
fn has_huge_pages_at_faults() -> bool {
    procfs::Thp::read().is_ok_and(|thp| thp.enabled == procfs::Policy::Always)
}

/// Takes over the arenas that no other process has any of; the youngest gives new memory from now on. Returns true if
/// there was one.
fn adopt_one() -> bool {
    let adopted = adopt_all();
    if let Some(index) = adopted {
        registry::set_own(index);
    }
    adopted.is_some()
}

/// Takes over the arenas that it can, once the parent, which may still give them up, is gone. Returns the youngest.
pub(crate) fn adopt_all() -> Option<usize> {
    if has_parent() || detach::is_closed() { None } else { registry::adopt() }
}
