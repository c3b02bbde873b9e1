//! The arena that a process' new memory comes from.
//!
//! A process, including the first, makes one when it maps enough to gain by it. A child takes over an inherited arena
//! when no other process has any of it.

use cowslip::raw::Departure;
use cowslip::units::{ByteCount, VirtRange, page_size_bytes};
use cowslip::{Arena, ErrorKind, Prot};
use cowslip_sys::{process, procfs};

use crate::arena::registry::{self, own};
use crate::arena::setup_state::{self, is_closed};
use crate::arena::{child_limits, detach, kernel_access, memory_limits, ownership};
use crate::rt::config::config;
use crate::rt::descriptor_kinds;
use crate::rt::fork_state::{self, is_forking_here};
use crate::rt::log::say;

/// An arena takes up to twelve descriptors; under a limit this low the program would miss them.
const FEW_FILES: u64 = 64;

/// Returns memory for a mapping of the program, if an arena has it.
pub(crate) fn allocate(len: usize, prot: Prot) -> Option<VirtRange> {
    if is_closed() || !fork_state::is_own_process() {
        return None;
    }
    let arena = own_or_create(len)?;
    if !allow_memory() || is_closed() {
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

/// Returns true if memory may go into the arena: another process may have set a limit.
fn allow_memory() -> bool {
    let Some(limit) = memory_limits::in_force() else { return true };
    say!("{} is set now", limit.name());
    let _ = detach::all(Departure::Limit);
    false
}

/// The arena for new memory. Made, or taken over, if a mapping of `len` makes that worth it.
fn own_or_create(len: usize) -> Option<&'static Arena> {
    if is_forking_here() {
        return None;
    }
    if let Some(own) = own() {
        return Some(own);
    }
    if !setup_state::is_untried() || !is_worth(len) {
        return None;
    }
    if !setup_state::begin() {
        // Another thread makes it, or this one does and maps something on the way, or it failed.
        return None;
    }
    let limit = memory_limits::in_force();
    if let Some(limit) = limit {
        let (name, remedy) = (limit.name(), limit.remedy());
        say!("no arena, the program runs unchanged: {name} is set; {remedy}");
    }
    let has_few = process::file_limit() < FEW_FILES;
    if has_few {
        say!("no arena, the program runs unchanged: it may open few files, and needs them itself");
    }
    let tracer = procfs::own::tracer_pid();
    if let Some(tracer) = tracer {
        say!(
            "no arena, the program runs unchanged: process {tracer} traces it, which may not expect our thread"
        );
    }
    let can_thaw = config().is_plain || cowslip_sys::procfs::open_self("pagemap").is_ok();
    if !can_thaw {
        say!(
            "no arena, the program runs unchanged: it may not open /proc/self/pagemap, as after PR_SET_DUMPABLE"
        );
    }
    // Checked after the exchange: a thread that closes waits for an arena that is being made.
    let may_have = limit.is_none() && !has_few && tracer.is_none() && can_thaw;
    let may = !config().off && may_have && !is_closed();
    if may && !ownership::adopt_one() {
        create();
    }
    setup_state::end();
    own()
}

/// Returns true if a fork would gain by an arena from here on: enough was mapped, and half of it is in use, or twice as
/// much comes at once. Allocators map more at their start than most programs need. The use is looked at once for each
/// quarter of `arena_after_bytes` mapped: a program may map and unmap the same little block all the time.
fn is_worth(len: usize) -> bool {
    let enough = config().arena_after_bytes;
    let elsewhere = setup_state::count_elsewhere(len);
    if elsewhere < enough {
        return false;
    }
    if len >= 2 * enough {
        return true;
    }
    if !setup_state::is_time_to_look(elsewhere) {
        return false;
    }
    let used = procfs::own::anonymous_pages().map(|pages| pages as usize * page_size_bytes());
    let is_used = used.is_none_or(|used| used >= enough / 2);
    if !is_used {
        setup_state::look_again_after(elsewhere, enough / 4);
    }
    is_used
}

fn create() {
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
            child_limits::limit_cpu_share(&arena);
            child_limits::limit_memory(&arena);
            arena.raw().ask_before_thaws(kernel_access::is_any);
            descriptor_kinds::check_all();
            registry::add(arena);
        }
        Err(error) => say!("no arena, the program runs unchanged: {error}"),
    }
}

/// Returns true if memory natively begins on huge pages without being asked for. It does then in an arena as well.
fn has_huge_pages_at_faults() -> bool {
    procfs::Thp::read().is_ok_and(|thp| thp.enabled == procfs::Policy::Always)
}
