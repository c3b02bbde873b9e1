//! The signals that end a command, for one that passes them on to others instead.

use std::ffi::c_int;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use cowslip_sys::{AsFd, BorrowedFd};
use signal_hook::{flag, low_level};

/// Signals that no longer end the process.
///
/// A handler sets its signal's flag, then writes a byte; a call of [`take`](Self::take) reads a byte, then takes a flag.
/// There is a byte, or one about to be written, for each flag: none is left behind by a wait.
pub(super) struct PassedOn {
    came: Vec<(c_int, Arc<AtomicBool>)>,
    woken: UnixStream,
}

impl PassedOn {
    pub(super) fn listen(signals: impl IntoIterator<Item = c_int>) -> io::Result<Self> {
        let (woken, wake) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        let mut came = Vec::new();
        for signal in signals {
            let flag = Arc::default();
            flag::register(signal, Arc::clone(&flag))?;
            low_level::pipe::register(signal, wake.try_clone()?)?;
            came.push((signal, flag));
        }
        Ok(Self { came, woken })
    }

    /// A descriptor that can be read while signals are to be taken.
    pub(super) fn woken(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }

    /// A signal that came and was not taken yet.
    pub(super) fn take(&mut self) -> Option<c_int> {
        let _ = self.woken.read(&mut [0]);
        self.came.iter().find(|(_, came)| came.swap(false, Relaxed)).map(|(signal, _)| *signal)
    }
}
