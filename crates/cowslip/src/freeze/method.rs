//! The two ways of a freeze.

/// How a freeze was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreezeMethod {
    /// Pages moved away under userfaultfd: constant time, thawed in the background.
    Userfaultfd,
    /// Mapped over: 0.25 ms/GiB, stays frozen until [`Frozen::thaw_exclusive`](crate::Frozen::thaw_exclusive).
    WithoutUserfaultfd,
}
