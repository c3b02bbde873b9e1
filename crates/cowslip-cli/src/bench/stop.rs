//! Ctrl-C: a flag that long work looks at, so that guards can restore what was changed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::error::{Error, Result};

/// Becomes set when the user wants to stop.
#[derive(Debug, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Set by SIGINT, SIGTERM and SIGHUP, which no longer end the process.
    pub(crate) fn on_signals() -> io::Result<Self> {
        let stop = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&stop.0))?;
        }
        Ok(stop)
    }

    /// The flag itself.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.0
    }

    /// Whether the user wants to stop.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.0.load(Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }
}
