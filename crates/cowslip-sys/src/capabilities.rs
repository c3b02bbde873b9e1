//! What this thread may do beyond its user (`capabilities(7)`).

pub use rustix::thread::CapabilitySet;

/// The command by which root gives the command `cowslip` all that it can use (`setcap(8)`). One for every purpose: a second
/// one takes back what the first gave.
pub const SETCAP: &str =
    "setcap cap_dac_read_search,cap_perfmon,cap_sys_nice,cap_sys_ptrace+ep $(command -v cowslip)";

/// The capabilities that are in force.
///
/// # Errors
/// The kernel's (`capget(2)`), as where a filter forbids the call.
pub fn effective() -> crate::Result<CapabilitySet> {
    rustix::thread::capabilities(None).map(|sets| sets.effective)
}
