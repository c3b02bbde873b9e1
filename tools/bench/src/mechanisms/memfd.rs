//! Memory in a memfd that the program maps shared, and a child of `fork(2)` privately in its place.
//!
//! The fork is cheap, because page tables of shared mappings are not copied. But the child has no cut: a page that it
//! did not write itself shows the program's writes after the fork. To freeze the program's content as well takes what
//! Cowslip does.

use std::time::Duration;

use cowslip_sys::process;

use super::Mechanism;
use crate::child::{Child, Children};
use crate::error::Result;
use crate::memory::Memory;

/// `MAP_SHARED` here, `MAP_PRIVATE` in the child.
#[derive(Debug)]
pub(crate) struct MemfdPrivate {
    children: Children,
    memory: Memory,
}

impl MemfdPrivate {
    pub(crate) fn new(bytes: usize) -> Result<Self> {
        Ok(Self { children: Children::default(), memory: Memory::memfd(bytes)? })
    }
}

impl Mechanism for MemfdPrivate {
    fn memory(&self) -> &Memory {
        &self.memory
    }

    fn snapshot(&mut self) -> Result<Duration> {
        let (child, paused) = Child::fork_then(|| {
            if self.memory.map_privately().is_err() {
                process::exit_now(1);
            }
        })?;
        self.children.push(child);
        Ok(paused)
    }

    fn release(&mut self) -> Result<()> {
        self.children.end()
    }
}
