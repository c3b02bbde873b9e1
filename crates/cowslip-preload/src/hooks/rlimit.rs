//! Limits of the process that count memory, or keep files small (`getrlimit(2)`).
//!
//! They count an arena differently from the memory it replaces: its reserved address space in full (`RLIMIT_AS`), its
//! memory not at all while it is live (`RLIMIT_DATA`), and its file is as long as its capacity (`RLIMIT_FSIZE`). An
//! arena is therefore made only where there is no such limit; when one is set, all memory leaves before.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_int, c_uint, c_void};

use cowslip::raw::Departure;
use cowslip::units::ByteCount;
use cowslip_sys::process::{self, MemoryLimit};
use cowslip_sys::{passthrough, user_memory};

use crate::arena::detach;
use crate::arena::memory_limits::rules_out;
use crate::arena::registry::arenas;
use crate::rt::config::config;
use crate::rt::guard::guarded;
use crate::rt::log::say;

/// `RLIM_INFINITY`
const NONE: u64 = u64::MAX;

fn before_limit(pid: c_int, resource: c_uint, limit: *const c_void) {
    let is_ours = pid == 0 || pid == process::pid();
    let kind = MemoryLimit::ALL.into_iter().find(|kind| kind.number() == resource);
    let Some(kind) = kind.filter(|_| is_ours && !limit.is_null()) else { return };
    let Some(now) = user_memory::read::<u64>(limit as usize) else { return };
    let now = Some(ByteCount(now)).filter(|now| now.0 != NONE);
    // Without an arena, limits are checked when one would be made.
    if rules_out(kind, now) && !config().off && arenas().next().is_some() {
        say!("{} is about to be set", kind.name());
        let left = || detach::all(Departure::Limit).is_ok();
        let _ = guarded(left, || false);
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn prlimit(
    pid: c_int,
    resource: c_uint,
    new: *const c_void,
    old: *mut c_void,
) -> c_int {
    before_limit(pid, resource, new);
    // SAFETY: the program's own call.
    unsafe { passthrough::prlimit(pid, resource, new, old) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn prlimit64(
    pid: c_int,
    resource: c_uint,
    new: *const c_void,
    old: *mut c_void,
) -> c_int {
    // SAFETY: the same function where long is 64 bits.
    unsafe { prlimit(pid, resource, new, old) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn setrlimit(resource: c_uint, new: *const c_void) -> c_int {
    // SAFETY: setrlimit(2) is this for the calling process.
    unsafe { prlimit(0, resource, new, core::ptr::null_mut()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn setrlimit64(resource: c_uint, new: *const c_void) -> c_int {
    // SAFETY: the same function where long is 64 bits.
    unsafe { setrlimit(resource, new) }
}
