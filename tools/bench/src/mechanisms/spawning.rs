//! `vfork(2)` and `execve(2)`, as `posix_spawn(3)` makes a process: a new program, with none of the memory.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Mechanism;
use crate::error::{Result, during};
use crate::memory::{Anonymous, Memory};

/// The child reads until its input is closed.
const PROGRAM: &str = "cat";

/// The ordinary way to start children that need none of the program's memory.
#[derive(Debug)]
pub(crate) struct Spawning {
    children: Vec<Child>,
    memory: Memory,
}

impl Spawning {
    pub(crate) fn new(bytes: usize) -> Result<Self> {
        Ok(Self { children: Vec::new(), memory: Memory::anonymous(bytes, Anonymous::Base)? })
    }
}

impl Mechanism for Spawning {
    fn memory(&self) -> &Memory {
        &self.memory
    }

    fn snapshot(&mut self) -> Result<Duration> {
        let mut command = Command::new(PROGRAM);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        self.memory.offer_to_children(true)?;
        let began = Instant::now();
        let spawned = command.spawn();
        let paused = began.elapsed();
        self.memory.offer_to_children(false)?;
        self.children.push(spawned.map_err(during(format_args!("run {PROGRAM}")))?);
        Ok(paused)
    }

    fn release(&mut self) -> Result<()> {
        // `wait` closes a child's input.
        self.children.drain(..).try_for_each(|mut child| {
            child.wait().map(drop).map_err(during(format_args!("wait for {PROGRAM}")))
        })
    }
}

impl Drop for Spawning {
    fn drop(&mut self) {
        let _ = self.release();
    }
}
