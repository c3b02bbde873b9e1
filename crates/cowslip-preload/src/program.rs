//! The program's arena, made at the first mapping that belongs into it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};

use cowslip::units::{ByteCount, VirtRange};
use cowslip::{Arena, ErrorKind, Prot};

use crate::config::Config;
use crate::{log, say};

static CONFIG: OnceLock<Config> = OnceLock::new();
static ARENA: OnceLock<Arena> = OnceLock::new();

const UNTRIED: u8 = 0;
const BEING_MADE: u8 = 1;
const SETTLED: u8 = 2;
static MAKING: AtomicU8 = AtomicU8::new(UNTRIED);

/// Thread that is between the prepare and the parent or child handler of a fork; it holds the arena's
/// lock, and other handlers of the program run on it meanwhile.
static FORKING: AtomicI32 = AtomicI32::new(0);

pub(crate) fn config() -> &'static Config {
    CONFIG.get_or_init(|| {
        let config = Config::from_environment();
        log::open(config.log.as_deref());
        config
    })
}

/// The arena, if there is one and this thread may use it.
pub(crate) fn arena() -> Option<&'static Arena> {
    let arena = ARENA.get()?;
    (!is_forking_here()).then_some(arena)
}

pub(crate) fn set_forking(forking: bool) {
    let thread = if forking { cowslip_sys::process::thread_id() } else { 0 };
    FORKING.store(thread, Ordering::Relaxed);
}

/// Whether this thread is forking.
pub(crate) fn is_forking_here() -> bool {
    let forking = FORKING.load(Ordering::Relaxed);
    forking != 0 && forking == cowslip_sys::process::thread_id()
}

/// Whether any thread is forking; in a child, whether it came from a fork that we prepared.
pub(crate) fn is_forking() -> bool {
    FORKING.load(Ordering::Relaxed) != 0
}

/// The part of the program's range that lies in the arena, with the arena.
pub(crate) fn arena_part(addr: usize, len: usize) -> Option<(&'static Arena, VirtRange)> {
    let arena = ARENA.get()?;
    let end = addr.checked_add(len)?;
    let part = arena.range().intersect(VirtRange::between(addr, end));
    (!part.is_empty()).then_some(())?;
    Some((self::arena()?, part))
}

fn arena_or_make() -> Option<&'static Arena> {
    if ARENA.get().is_some() {
        return arena();
    }
    if MAKING.compare_exchange(UNTRIED, BEING_MADE, Ordering::Acquire, Ordering::Relaxed).is_err() {
        // Another thread makes it, or this one does and maps something on the way, or it failed.
        return None;
    }
    let config = config();
    if !config.off {
        let made = Arena::builder(config.capacity)
            .backing(config.backing)
            .userfaultfd(config.userfaultfd)
            .build();
        match made {
            Ok(arena) => {
                say!("arena of {} at {}, {}", config.capacity, arena.range(), arena.pages());
                crate::forking::have_children_give_way(&arena);
                crate::forking::limit_child_memory(&arena);
                let _ = ARENA.set(arena);
            }
            Err(error) => say!("no arena, the program runs unchanged: {error}"),
        }
    }
    MAKING.store(SETTLED, Ordering::Release);
    ARENA.get()
}

/// Memory for a mapping of the program, if the arena has it.
pub(crate) fn allocate(len: usize, prot: Prot) -> Option<VirtRange> {
    let arena = arena_or_make()?;
    match arena.allocate(ByteCount(len as u64), prot) {
        Ok(range) => Some(range),
        Err(error) if error.kind() == ErrorKind::Busy && adopt(arena) => {
            arena.allocate(ByteCount(len as u64), prot).ok()
        }
        Err(error) => {
            arena.count_passed_mapping();
            if error.kind() != ErrorKind::Busy {
                say!("a mapping of {} goes past the arena: {error}", ByteCount(len as u64));
            }
            None
        }
    }
}

/// In a forked child whose parent has ended: becomes the arena's owner.
pub(crate) fn adopt(arena: &Arena) -> bool {
    match arena.adopt() {
        Ok(true) => {
            say!("owner of the arena now, as its owner has ended");
            true
        }
        Ok(false) => false,
        Err(error) => {
            say!("{error}");
            false
        }
    }
}

/// A bug in this library must not take the program's memory along: it ends the call, not the process.
pub(crate) fn guarded<T>(call: impl FnOnce() -> T, instead: impl FnOnce() -> T) -> T {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)) {
        Ok(answer) => answer,
        Err(_) => {
            say!("a bug: a panic in the preload library");
            instead()
        }
    }
}
