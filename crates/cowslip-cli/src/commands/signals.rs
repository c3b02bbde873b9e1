//! Ctrl-C: a flag that long work looks at, so that what was changed is put back.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Set by SIGINT, SIGTERM and SIGHUP, which no longer end the process.
pub(super) fn interrupt() -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::default();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(flag)
}
