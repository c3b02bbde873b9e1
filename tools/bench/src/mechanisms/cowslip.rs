//! Cowslip: a view of the frozen arena, or a child forked from it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cowslip::units::ByteCount;
use cowslip::{Arena, FreezeMethod, Frozen};

use super::Mechanism;
use crate::child::{Child, Children};
use crate::error::{Error, Result};
use crate::memory::Memory;

const THAW_PATIENCE: Duration = Duration::from_secs(60);

/// `Arena::freeze`.
#[derive(Debug)]
pub(crate) struct Freezing {
    frozen: Option<Frozen>,
    memory: Memory,
    arena: Arena,
}

impl Freezing {
    pub(crate) fn new(bytes: usize) -> Result<Self> {
        let (arena, memory) = open(bytes)?;
        Ok(Self { frozen: None, memory, arena })
    }
}

impl Mechanism for Freezing {
    fn memory(&self) -> &Memory {
        &self.memory
    }

    fn snapshot(&mut self) -> Result<Duration> {
        let began = Instant::now();
        let frozen = self.arena.freeze()?;
        let paused = began.elapsed();
        if frozen.method() == FreezeMethod::WithoutUserfaultfd {
            return Err(Error::Failed(
                "frozen without userfaultfd, which never thaws by itself: see `cowslip doctor`"
                    .to_owned(),
            ));
        }
        self.frozen = Some(frozen);
        Ok(paused)
    }

    fn held(&self) -> Option<Duration> {
        Some(Duration::from_nanos(self.arena.metrics().last_freeze_ns))
    }

    fn release(&mut self) -> Result<()> {
        self.frozen = None;
        wait_live(&self.arena)
    }
}

/// `cowslip::fork`.
#[derive(Debug)]
pub(crate) struct FreezingFork {
    children: Children,
    memory: Arc<Memory>,
    arena: Arena,
}

impl FreezingFork {
    pub(crate) fn new(bytes: usize) -> Result<Self> {
        let (arena, memory) = open(bytes)?;
        Ok(Self { children: Children::default(), memory: Arc::new(memory), arena })
    }

    /// Its memory for another thread.
    pub(crate) fn shared_memory(&self) -> Arc<Memory> {
        Arc::clone(&self.memory)
    }

    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }
}

impl Mechanism for FreezingFork {
    fn memory(&self) -> &Memory {
        &self.memory
    }

    fn snapshot(&mut self) -> Result<Duration> {
        let (child, paused) = Child::fork_with(&self.arena)?;
        self.children.push(child);
        Ok(paused)
    }

    fn answer(&mut self, work: fn(&Memory) -> [u64; 3]) -> Result<([u64; 3], Duration)> {
        Child::answer_with(&self.arena, || work(&self.memory))
    }

    fn release(&mut self) -> Result<()> {
        self.children.end()?;
        wait_live(&self.arena)
    }
}

fn open(bytes: usize) -> Result<(Arena, Memory)> {
    let arena = Arena::new(ByteCount(bytes as u64))?;
    let memory = Memory::in_arena(&arena, bytes)?;
    Ok((arena, memory))
}

fn wait_live(arena: &Arena) -> Result<()> {
    if arena.wait_live(THAW_PATIENCE) {
        return Ok(());
    }
    let frozen = arena.metrics().frozen_chunks;
    Err(Error::Failed(format!("{frozen} chunks were not thawed within {THAW_PATIENCE:?}")))
}
