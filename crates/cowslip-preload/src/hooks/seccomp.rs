//! Programs that filter their own system calls (`seccomp(2)`).
//!
//! A filter may refuse the calls of a freeze or a thaw, in the calling thread and in the service thread, or answer them
//! by ending the process. Before there is a filter, all memory therefore leaves, the service thread ends, and the
//! report is written. From then on the kernel alone handles calls about memory, except for `rt_sigprocmask(2)` around
//! them.

use core::ffi::{c_int, c_long};

use cowslip::raw::Departure;
use cowslip_sys::process::BlockedSignals;

use crate::arena::registry::arenas;
use crate::arena::{detach, report};
use crate::branch::socket;
use crate::hooks::credentials;
use crate::rt::config::config;
use crate::rt::fork_state::is_own_process;
use crate::rt::guard::guarded;
use crate::rt::log;

/// `PR_SET_SECCOMP`
pub(crate) const SET_BY_PRCTL: c_int = 22;
/// `SECCOMP_SET_MODE_STRICT`
const SET_STRICT: c_long = 0;
/// `SECCOMP_SET_MODE_FILTER`
const SET_FILTER: c_long = 1;

/// Called before `seccomp(2)`, or its equivalent by `prctl(2)`. The kernel refuses a call without a filter's address;
/// libraries make it to ask for the kernel's support.
pub(crate) fn before(operation: c_long, filter: usize) {
    let sets = match operation {
        SET_STRICT => true,
        SET_FILTER => filter != 0,
        _ => false,
    };
    // In a process that shares its parent's memory (`vfork(2)`) the filter is that process' alone.
    if config().off || !sets || !is_own_process() {
        return;
    }
    let _blocked = BlockedSignals::enter();
    let _ = guarded(|| detach::all(Departure::Filter).is_ok(), || false);
    arenas().for_each(|arena| arena.raw().retire());
    credentials::renounce();
    report::write();
    socket::close();
    log::close();
}
