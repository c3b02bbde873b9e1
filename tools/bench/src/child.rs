#![allow(unsafe_code)]
//! Forked children that wait until they are let go or this process is gone.
//!
//! # Safety
//! A child closes a pipe, reads from another, may look at memory or map it, may write to a file that is open, and
//! ends: all of it async-signal-safe.

use std::fs::File;
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use cowslip::{Arena, Fork};
use cowslip_sys::process;

use super::error::{Error, Result, during};

/// After this time a child has come to rest and disturbs no measurement.
const REST: Duration = Duration::from_millis(2);

/// A child, ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Child {
    pid: i32,
    /// The child waits until something is written to this, or all copies of it are closed.
    leash: Option<PipeWriter>,
}

impl Child {
    /// `fork(2)`: a child that keeps its share of the memory, and the time that the fork held this process up.
    pub(crate) fn fork() -> Result<(Self, Duration)> {
        Self::forked_by(plain_fork, || {})
    }

    /// `fork(2)`: a child that calls `first_act` first.
    pub(crate) fn fork_then(first_act: impl FnOnce()) -> Result<(Self, Duration)> {
        let fork = || {
            let pid = plain_fork()?;
            if pid == 0 {
                first_act();
            }
            Ok(pid)
        };
        Self::forked_by(fork, || {})
    }

    /// A child that writes each text to its file in the end, even if this process is killed.
    pub(crate) fn executor(mut will: Vec<(File, String)>) -> Result<Self> {
        let last_act = || {
            for (file, text) in &mut will {
                let _ = file.write_all(text.as_bytes());
            }
        };
        Self::forked_by(plain_fork, last_act).map(|(child, _)| child)
    }

    /// A child of `fork(2)` that has done `work` when this returns.
    pub(crate) fn fork_and(work: impl FnOnce()) -> Result<Self> {
        let (mut done, mut tell) = io::pipe().map_err(during::<io::Error>("make a pipe"))?;
        let fork = || {
            let pid = plain_fork()?;
            if pid == 0 {
                work();
                let _ = tell.write_all(&[1]);
            }
            Ok(pid)
        };
        let (child, _) = Self::forked_by(fork, || {})?;
        done.read_exact(&mut [0]).map_err(during("wait for a child's work"))?;
        Ok(child)
    }

    /// [`cowslip::fork`].
    pub(crate) fn fork_with(arena: &Arena) -> Result<(Self, Duration)> {
        Self::forked_by(|| fork_arena(arena), || {})
    }

    /// Has a child of `fork(2)` work at once. Returns its answer, and the time that the fork held this process up.
    pub(crate) fn answer<const N: usize>(
        work: impl FnOnce() -> [u64; N],
    ) -> Result<([u64; N], Duration)> {
        Self::answered_by(plain_fork, work)
    }

    /// Like [`Self::answer`], with [`cowslip::fork`].
    pub(crate) fn answer_with<const N: usize>(
        arena: &Arena,
        work: impl FnOnce() -> [u64; N],
    ) -> Result<([u64; N], Duration)> {
        Self::answered_by(|| fork_arena(arena), work)
    }

    fn answered_by<const N: usize>(
        fork: impl FnOnce() -> Result<i32>,
        work: impl FnOnce() -> [u64; N],
    ) -> Result<([u64; N], Duration)> {
        let (mut reader, mut writer) = io::pipe().map_err(during::<io::Error>("make a pipe"))?;
        let began = Instant::now();
        let pid = fork()?;
        let paused = began.elapsed();
        if pid == 0 {
            let mut wrote = true;
            for number in work() {
                wrote &= writer.write_all(&number.to_ne_bytes()).is_ok();
            }
            process::exit_now(i32::from(!wrote));
        }
        drop(writer);
        let mut answer = [0; N];
        let read = answer.iter_mut().try_for_each(|number| {
            let mut bytes = [0; 8];
            reader.read_exact(&mut bytes)?;
            *number = u64::from_ne_bytes(bytes);
            Ok(())
        });
        process::wait_for(pid).map_err(during("wait for a child"))?;
        read.map(|()| (answer, paused)).map_err(during::<io::Error>("read a child's answer"))
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

    fn wait(&mut self) -> cowslip_sys::Result<i32> {
        let Some(mut leash) = self.leash.take() else { return Ok(0) };
        // Closing it is not enough: a child that was forked later has a copy.
        let _ = leash.write_all(&[1]);
        drop(leash);
        process::wait_for(self.pid)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.wait();
    }
}

/// Children that live at the same time; the youngest ends first.
#[derive(Debug, Default)]
pub(crate) struct Children(Vec<Child>);

impl Children {
    pub(crate) fn push(&mut self, child: Child) {
        self.0.push(child);
    }

    pub(crate) fn youngest_pid(&self) -> Option<i32> {
        self.0.last().map(|child| child.pid)
    }

    /// Lets all of them end; an error if something else ended one.
    pub(crate) fn end(&mut self) -> Result<()> {
        while let Some(child) = self.0.pop() {
            child.end()?;
        }
        Ok(())
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}

fn plain_fork() -> Result<i32> {
    // SAFETY: see the module.
    unsafe { process::fork() }.map_err(during("fork"))
}

fn fork_arena(arena: &Arena) -> Result<i32> {
    // SAFETY: see the module.
    Ok(match unsafe { cowslip::fork(&[arena]) }? {
        Fork::Parent(pid) => pid,
        Fork::Child => 0,
    })
}

/// The child's whole life.
fn live(mut reader: PipeReader, writer: PipeWriter, last_act: impl FnOnce()) -> ! {
    drop(writer);
    // Ctrl-C reaches the child too, and only the parent handles it.
    while reader.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::Interrupted) {}
    last_act();
    process::exit_now(0)
}
