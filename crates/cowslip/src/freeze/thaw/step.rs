//! What comes after a piece of background work.

use std::time::Duration;

/// What the service thread does next.
pub(crate) enum Step {
    /// There is more to do.
    Again,
    /// Nothing can be done before this has passed.
    Later(Duration),
    /// Nothing is to be done.
    Idle,
}
