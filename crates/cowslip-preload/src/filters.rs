//! Programs that filter their own system calls (`seccomp(2)`).
//!
//! What a freeze and a thaw do, in the calling thread and in the service thread, a filter may refuse or answer by ending the
//! process. So all memory leaves before there is one, the service thread ends, and what would be written later is written
//! now. Calls about memory are the kernel's from then on, but for `rt_sigprocmask(2)` around them.

use core::ffi::{c_int, c_long};

use cowslip::raw::Departure;
use cowslip_sys::process::BlockedSignals;

use crate::program::{arenas, config, guarded};
use crate::{branch_socket, leaving, log, report, rights};

/// `PR_SET_SECCOMP`
pub(crate) const SET_BY_PRCTL: c_int = 22;
/// `SECCOMP_SET_MODE_STRICT`
const SET_STRICT: c_long = 0;
/// `SECCOMP_SET_MODE_FILTER`
const SET_FILTER: c_long = 1;

/// Before `seccomp(2)`, or what means the same by `prctl(2)`. Without a filter's address it is refused: so libraries ask
/// whether the kernel has filters.
pub(crate) fn before(operation: c_long, filter: usize) {
    let sets = match operation {
        SET_STRICT => true,
        SET_FILTER => filter != 0,
        _ => false,
    };
    if config().off || !sets {
        return;
    }
    let _blocked = BlockedSignals::enter();
    let _ = guarded(|| leaving::everything(Departure::Filter).is_ok(), || false);
    arenas().for_each(|arena| arena.raw().retire());
    rights::renounce();
    report::write();
    branch_socket::close();
    log::close();
}
