//! The capabilities of this thread (`capabilities(7)`).

pub use rustix::thread::CapabilitySet;

/// The command with which root gives the command `cowslip` all capabilities that it can use (`setcap(8)`). It is one
/// command for every purpose: a second would revoke those that the first gave.
pub const SETCAP: &str =
    "setcap cap_dac_read_search,cap_perfmon,cap_sys_nice,cap_sys_ptrace+ep $(command -v cowslip)";

/// The effective capabilities.
///
/// # Errors
/// An error of the kernel (`capget(2)`), for example where a filter forbids the call.
pub fn effective() -> crate::Result<CapabilitySet> {
    rustix::thread::capabilities(None).map(|sets| sets.effective)
}
