//! The signals that end a command, for one that passes them on to others instead.

use std::ffi::c_int;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use cowslip_sys::{AsFd, BorrowedFd};
use signal_hook::{flag, low_level};

/// Signals that no longer end the process.
pub(super) struct PassedOn {
    last: Arc<AtomicUsize>,
    woken: UnixStream,
}

impl PassedOn {
    pub(super) fn listen(signals: impl IntoIterator<Item = c_int>) -> io::Result<Self> {
        let (woken, wake) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        let last = Arc::default();
        for signal in signals {
            flag::register_usize(signal, Arc::clone(&last), signal as usize)?;
            low_level::pipe::register(signal, wake.try_clone()?)?;
        }
        Ok(Self { last, woken })
    }

    /// A descriptor that can be read once a signal came.
    pub(super) fn woken(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }

    /// The last signal that came since the previous call.
    pub(super) fn take(&mut self) -> Option<i32> {
        // First: a signal after the swap has to wake the next wait.
        let _ = self.woken.read(&mut [0; 64]);
        match self.last.swap(0, Relaxed) {
            0 => None,
            signal => Some(signal as i32),
        }
    }
}
