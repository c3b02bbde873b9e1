//! `prctl` about huge pages, filters of system calls, the rights of a thread, and access by others.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_int, c_long};

use cowslip_sys::passthrough;
use cowslip_sys::process::BlockedSignals;

use crate::arena::service;
use crate::hooks::{credentials, seccomp};
use crate::rt::config::config;
use crate::rt::fork_state::is_own_process;
use crate::rt::log::say;

const PR_SET_THP_DISABLE: c_int = 41;
const PR_GET_THP_DISABLE: c_int = 42;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn prctl(
    option: c_int,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
) -> c_int {
    use core::sync::atomic::{AtomicBool, Ordering};
    static ANSWERED: AtomicBool = AtomicBool::new(false);
    if option == seccomp::SET_BY_PRCTL {
        // SECCOMP_MODE_STRICT is 1 here, SECCOMP_MODE_FILTER 2.
        seccomp::before(a as c_long - 1, b);
    }
    match option {
        PR_SET_THP_DISABLE if !config().respect_thp_disable && !config().off => {
            let _blocked = BlockedSignals::enter();
            if a != 0 {
                say!(
                    "prctl(PR_SET_THP_DISABLE) answered, not passed on: it would take the arena's \
                     huge pages away (--respect-thp-disable passes it on)"
                );
            }
            ANSWERED.store(a != 0, Ordering::Relaxed);
            0
        }
        libc::PR_SET_DUMPABLE if a != 1 && is_own_process() => {
            let blocked = BlockedSignals::enter();
            // An ordinary user can open none of a service thread's files of `/proc` after that.
            service::start_all();
            drop(blocked);
            // SAFETY: the program's own call.
            unsafe { passthrough::prctl(option, a, b, c, d) }
        }
        PR_GET_THP_DISABLE if ANSWERED.load(Ordering::Relaxed) => 1,
        _ if credentials::is_changed_by(option, a) => {
            // SAFETY: the program's own call.
            credentials::change(|| unsafe { passthrough::prctl(option, a, b, c, d) })
        }
        // SAFETY: the program's own call.
        _ => unsafe { passthrough::prctl(option, a, b, c, d) },
    }
}
