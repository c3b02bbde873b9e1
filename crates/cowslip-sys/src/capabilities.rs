//! What this thread may do beyond its user (`capabilities(7)`).

pub use rustix::thread::CapabilitySet;

/// The capabilities that are in force.
///
/// # Errors
/// The kernel's (`capget(2)`), as where a filter forbids the call.
pub fn effective() -> crate::Result<CapabilitySet> {
    rustix::thread::capabilities(None).map(|sets| sets.effective)
}
