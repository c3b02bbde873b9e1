//! The capabilities of this thread (`capabilities(7)`).

pub use rustix::thread::CapabilitySet;
use rustix::thread::CapabilitySets;

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

/// Gives up all other capabilities of this thread, for good: none can be had again by `execve(2)` as long as
/// `no_new_privs` is set. The bounding set is left alone.
pub fn give_up_all_but(kept: CapabilitySet) -> crate::Result<()> {
    let none = CapabilitySet::empty();
    rustix::thread::clear_ambient_capability_set()?;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: none };
    rustix::thread::set_capabilities(None, sets)
}
