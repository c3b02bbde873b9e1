//! Programs that filter their own system calls (`seccomp(2)`).
//!
//! What a freeze and a thaw do, in the calling thread and in the service thread, a filter may refuse or answer by ending the
//! process. So all memory leaves before there is one, the service thread ends, and what would be written later is written
//! now. Calls about memory are the kernel's from then on, but for `rt_sigprocmask(2)` around them.

use core::ffi::c_int;

use cowslip::{Arena, Departure};
use cowslip_sys::process::Quiet;

use crate::program::{arenas, config, guarded};
use crate::{leaving, log, report};

/// `PR_SET_SECCOMP`
pub(crate) const SET_BY_PRCTL: c_int = 22;
/// `SECCOMP_SET_MODE_STRICT`, `SECCOMP_SET_MODE_FILTER`
#[cfg(target_arch = "x86_64")]
const SETS: core::ops::RangeInclusive<core::ffi::c_long> = 0..=1;

/// Before `seccomp(2)` with this operation.
#[cfg(target_arch = "x86_64")]
pub(crate) fn before_operation(operation: core::ffi::c_long) {
    if SETS.contains(&operation) {
        before();
    }
}

/// Before a filter is installed.
pub(crate) fn before() {
    if config().off {
        return;
    }
    let _quiet = Quiet::enter();
    let _ = guarded(|| leaving::everything(Departure::Filter).is_ok(), || false);
    arenas().for_each(Arena::retire);
    report::write();
    log::close();
}
