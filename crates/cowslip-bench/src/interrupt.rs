//! Whether the user wants to stop: a flag that long work looks at, so that guards can restore what was changed.

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

    /// Whether the user wants to stop.
    pub fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.is_set() { Err(Error::Interrupted) } else { Ok(()) }
    }
}

/// Set by whoever holds the flag, such as a handler of signals.
impl From<Arc<AtomicBool>> for Interrupt {
    fn from(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }
}
