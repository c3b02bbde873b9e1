//! The step after a piece of background work.

use std::time::Duration;

/// The next step of the service thread.
pub(crate) enum Step {
    /// There is more to do.
    Again,
    /// Nothing can be done before this has passed.
    Later(Duration),
    /// Nothing is to be done.
    Idle,
}

impl Step {
    /// The step after two pieces of work.
    pub(crate) fn or_sooner(self, other: Self) -> Self {
        match (self, other) {
            (Self::Again, _) | (_, Self::Again) => Self::Again,
            (Self::Later(delay), Self::Later(other)) => Self::Later(delay.min(other)),
            (Self::Idle, step) | (step, Self::Idle) => step,
        }
    }
}
