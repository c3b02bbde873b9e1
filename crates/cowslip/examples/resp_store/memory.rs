#![allow(unsafe_code)]
//! The arena's memory, by offsets from its start. All `unsafe` of the store is here.
//!
//! Offsets, not pointers: an image can then be restored anywhere, even if the new process has other memory where the
//! old one had its arena.

use bytemuck::Pod;
use cowslip::image::Root;
use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange};
use cowslip::{Arena, FreezeMethod, Frozen, Prot, Result};

/// The arena allocates this much at a time; an image need not hold the rest of the capacity.
const STEP_BYTES: usize = 8 * CHUNK_BYTES;

/// The first `len` bytes of an arena, which no other code accesses.
pub(crate) struct Memory {
    arena: Arena,
    len: usize,
}

impl Memory {
    /// Zeroed memory that may grow to `capacity`.
    pub(crate) fn new(capacity: ByteCount) -> Result<Self> {
        let mut memory = Self { arena: Arena::new(capacity)?, len: 0 };
        memory.grow()?;
        Ok(memory)
    }

    /// The memory that [`Self::root`] described, in a restored arena.
    pub(crate) fn from_arena(arena: Arena, root: &Root) -> Self {
        Self { arena, len: root.length_bytes as usize }
    }

    /// Its place in an image.
    pub(crate) fn root(&self) -> Root {
        Root { arena: 0, offset_bytes: 0, length_bytes: self.len as u64 }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len as u64
    }

    pub(crate) fn capacity(&self) -> ByteCount {
        ByteCount(self.arena.range().len as u64)
    }

    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Grows it by a step; `false` at the end of the capacity.
    pub(crate) fn grow(&mut self) -> Result<bool> {
        let range = self.arena.range();
        let step = VirtRange::new(range.start + self.len, STEP_BYTES).intersect(range);
        let is_longer = !step.is_empty() && self.arena.allocate_at(step, Prot::RW)?;
        self.len += if is_longer { step.len } else { 0 };
        Ok(is_longer)
    }

    /// Zeroes whole chunks from `at` on, and gives their pages back.
    pub(crate) fn discard_from(&mut self, at: u64) -> Result<()> {
        let range = self.arena.range();
        let rest = VirtRange::between(range.start + at as usize, range.start + self.len);
        // SAFETY: aligned, allocated, and `&mut self` guarantees that there is no reference into
        // it.
        unsafe { self.arena.discard(rest.inner_aligned(CHUNK_BYTES)) }
    }

    /// Makes the arena live again after a freeze, when its view is no longer needed.
    pub(crate) fn thaw(&mut self, frozen: Frozen) -> Result<()> {
        match frozen.method() {
            FreezeMethod::Userfaultfd => Ok(()), // Dropped here, it is thawed in the background.
            // SAFETY: all stores to the memory borrow it from `self`, which is borrowed here.
            FreezeMethod::WithoutUserfaultfd => unsafe { frozen.thaw_exclusive() },
        }
    }

    pub(crate) fn bytes(&self, at: u64, len: u64) -> &[u8] {
        let start = self.place(at, len);
        // SAFETY: `len` bytes of the arena that are allocated, readable, initialised (new memory is zeroes); writes to
        // them need `&mut self`. A freeze changes neither addresses nor content.
        unsafe { std::slice::from_raw_parts(start as *const u8, len as usize) }
    }

    pub(crate) fn bytes_mut(&mut self, at: u64, len: u64) -> &mut [u8] {
        let start = self.place(at, len);
        // SAFETY: as in `bytes`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(start as *mut u8, len as usize) }
    }

    pub(crate) fn value<T: Pod>(&self, at: u64) -> &T {
        bytemuck::from_bytes(self.bytes(at, size_of::<T>() as u64))
    }

    pub(crate) fn value_mut<T: Pod>(&mut self, at: u64) -> &mut T {
        bytemuck::from_bytes_mut(self.bytes_mut(at, size_of::<T>() as u64))
    }

    fn place(&self, at: u64, len: u64) -> usize {
        let is_inside = at.checked_add(len).is_some_and(|end| end <= self.len as u64);
        assert!(is_inside, "{len} bytes at {at} are not of the heap");
        self.arena.range().start + at as usize
    }
}
