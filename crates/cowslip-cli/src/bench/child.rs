#![allow(unsafe_code)]
//! Forked children that wait until they are let go or this process is gone.
//!
//! # Safety
//! A child closes a pipe, reads from another, may write to a file that is open, and ends: all of it
//! async-signal-safe.

use std::fs::File;
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use cowslip::sys::process;
use cowslip::{Arena, Fork};

use super::error::{Error, Result, during};

/// By then a child has come to rest and disturbs nobody's measurement.
const REST: Duration = Duration::from_millis(2);

/// A child, ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Child {
    pid: i32,
    /// The child waits until this is closed.
    leash: Option<PipeWriter>,
}

impl Child {
    /// `fork(2)`: a child that keeps its share of the memory, and how long this process was held up.
    pub(crate) fn fork() -> Result<(Self, Duration)> {
        Self::forked_by(plain_fork, || {})
    }

    /// A child that writes `text` to `file` in the end, even if this process is killed.
    pub(crate) fn executor(mut file: File, text: &[u8]) -> Result<Self> {
        let last_act = || {
            let _ = file.write_all(text);
        };
        Self::forked_by(plain_fork, last_act).map(|(child, _)| child)
    }

    /// [`cowslip::fork`].
    pub(crate) fn fork_with(arena: &Arena) -> Result<(Self, Duration)> {
        let fork = || {
            // SAFETY: see the module.
            Ok(match unsafe { cowslip::fork(&[arena]) }? {
                Fork::Parent(pid) => pid,
                Fork::Child => 0,
            })
        };
        Self::forked_by(fork, || {})
    }

    fn forked_by(
        fork: impl FnOnce() -> Result<i32>,
        last_act: impl FnOnce(),
    ) -> Result<(Self, Duration)> {
        let (reader, writer) = io::pipe().map_err(during::<io::Error>("make a pipe"))?;
        let began = Instant::now();
        let pid = fork()?;
        let paused = began.elapsed();
        if pid == 0 {
            live(reader, writer, last_act);
        }
        thread::sleep(REST);
        Ok((Self { pid, leash: Some(writer) }, paused))
    }

    /// Lets it end; an error if something else ended it.
    pub(crate) fn end(mut self) -> Result<()> {
        match self.wait() {
            Ok(0) => Ok(()),
            Ok(status) => Err(Error::Failed(format!("the child died of wait status {status:#x}"))),
            Err(error) => Err(during("wait for a child")(error)),
        }
    }

    fn wait(&mut self) -> cowslip::sys::Result<i32> {
        let Some(leash) = self.leash.take() else { return Ok(0) };
        drop(leash);
        process::wait_for(self.pid)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.wait();
    }
}

fn plain_fork() -> Result<i32> {
    // SAFETY: see the module.
    unsafe { process::fork() }.map_err(during("fork"))
}

/// The child's whole life.
fn live(mut reader: PipeReader, writer: PipeWriter, last_act: impl FnOnce()) -> ! {
    drop(writer);
    // Ctrl-C reaches it too, and is the parent's business.
    while reader.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::Interrupted) {}
    last_act();
    process::exit_now(0)
}
