//! `fork(2)`: the child has the snapshot.

use std::sync::Arc;
use std::time::Duration;

use super::Mechanism;
use crate::child::{Child, Children};
use crate::error::Result;
use crate::memory::{Anonymous, Memory};
use crate::pool::Pool;

/// The most that is written while a child lives.
const MOST_COPIED_BYTES: usize = 1 << 30;

/// The pages of the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pages {
    Base,
    Huge,
    /// With pages for the copies of [`MOST_COPIED_BYTES`].
    Hugetlb,
}

/// `fork(2)`. The fields are dropped in this order: the pool shrinks when its pages are free.
#[derive(Debug)]
pub(crate) struct Forking {
    children: Children,
    memory: Arc<Memory>,
    pages: Pages,
    _pool: Option<Pool>,
}

impl Forking {
    pub(crate) fn new(bytes: usize, pages: Pages) -> Result<Self> {
        let (memory, pool) = match pages {
            Pages::Base => (Memory::anonymous(bytes, Anonymous::Base)?, None),
            Pages::Huge => (Memory::anonymous(bytes, Anonymous::Huge)?, None),
            Pages::Hugetlb => {
                let pool = Pool::with_free_bytes(bytes + bytes.min(MOST_COPIED_BYTES))?;
                (Memory::hugetlb(bytes)?, Some(pool))
            }
        };
        let (children, memory) = (Children::default(), Arc::new(memory));
        Ok(Self { children, memory, pages, _pool: pool })
    }

    /// Its memory for another thread.
    pub(crate) fn shared_memory(&self) -> Arc<Memory> {
        Arc::clone(&self.memory)
    }
}

impl Mechanism for Forking {
    fn memory(&self) -> &Memory {
        &self.memory
    }

    fn snapshot(&mut self) -> Result<Duration> {
        self.memory.offer_to_children(true)?;
        let forked = Child::fork();
        self.memory.offer_to_children(false)?;
        let (child, paused) = forked?;
        self.children.push(child);
        Ok(paused)
    }

    fn release(&mut self) -> Result<()> {
        self.children.end()
    }

    fn answer(&mut self, work: fn(&Memory) -> [u64; 3]) -> Result<([u64; 3], Duration)> {
        self.memory.offer_to_children(true)?;
        let answer = Child::answer(|| work(&self.memory));
        self.memory.offer_to_children(false)?;
        answer
    }

    fn renew(&mut self) -> Result<()> {
        if self.pages == Pages::Huge { self.memory.collapse() } else { Ok(()) }
    }
}
