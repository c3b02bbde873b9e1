//! The user's wish to stop: a flag that long work looks at, which lets guards restore changed state.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::error::{Error, Result};

/// Becomes set when the user wants to stop.
#[derive(Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// The flag itself.
    pub fn flag(&self) -> &AtomicBool {
        &self.0
    }

    /// Returns true if the user wants to stop.
    pub fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.is_set() { Err(Error::Interrupted) } else { Ok(()) }
    }
}

/// The holder of the flag sets it, such as a signal handler.
impl From<Arc<AtomicBool>> for Interrupt {
    fn from(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }
}
