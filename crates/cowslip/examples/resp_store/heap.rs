//! An allocator with its whole state in the memory that it manages, so that a restored heap continues unchanged.
//!
//! ```text
//!  0          HEAD                      top                len
//!  ├── Head ──┼── blocks, free blocks ──┼── never used ────┤
//! ```
//! Sizes are rounded to classes. Each class has a list of free blocks; blocks are neither split nor joined.

use bytemuck::{Pod, Zeroable};
use cowslip::Result;

use crate::memory::Memory;

/// Classes of 16 bytes up to 128, then four to each doubling, up to 512 MiB.
const CLASSES: usize = 8 + 4 * 22;
/// The offset of the first block.
pub(crate) const FIRST_BLOCK: u64 = size_of::<Head>() as u64;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Head {
    /// The offset at which never-allocated memory begins.
    top: u64,
    /// Bytes in allocated blocks.
    used_bytes: u64,
    /// The first free block of each class, 0 if there is none; it begins with the offset of the next.
    free: [u64; CLASSES],
}

/// There is no memory left for it.
#[derive(Debug)]
pub(crate) struct Full;

pub(crate) struct Heap {
    pub(crate) memory: Memory,
}

impl Heap {
    /// An empty heap in memory with any content.
    pub(crate) fn new(memory: Memory) -> Self {
        let mut heap = Self { memory };
        *heap.head_mut() = Head { top: FIRST_BLOCK, ..Head::zeroed() };
        heap
    }

    /// The heap that was in this memory.
    pub(crate) fn from_memory(memory: Memory) -> Self {
        Self { memory }
    }

    /// Frees every block, and gives the memory back.
    pub(crate) fn clear(&mut self) -> Result<()> {
        *self.head_mut() = Head { top: FIRST_BLOCK, ..Head::zeroed() };
        self.memory.discard_from(FIRST_BLOCK)
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.memory.value::<Head>(0).used_bytes
    }

    fn head_mut(&mut self) -> &mut Head {
        self.memory.value_mut(0)
    }

    /// The offset of a block of at least `bytes`, aligned to 16, of any content.
    pub(crate) fn allocate(&mut self, bytes: u64) -> std::result::Result<u64, Full> {
        let class = class_of(bytes).ok_or(Full)?;
        let head = *self.memory.value::<Head>(0);
        let size = class_bytes(class);
        let at = match head.free[class] {
            0 => {
                while head.top + size > self.memory.len() {
                    // An error here means that the machine is out of memory.
                    if !self.memory.grow().unwrap_or(false) {
                        return Err(Full);
                    }
                }
                self.head_mut().top += size;
                head.top
            }
            free => {
                self.head_mut().free[class] = *self.memory.value(free);
                free
            }
        };
        self.head_mut().used_bytes += size;
        Ok(at)
    }

    /// Frees a block that was allocated with `bytes`, or with another size of the same class.
    pub(crate) fn free(&mut self, at: u64, bytes: u64) {
        let class = class_of(bytes).expect("the class it was allocated from");
        let head = self.head_mut();
        head.used_bytes -= class_bytes(class);
        let next = std::mem::replace(&mut head.free[class], at);
        *self.memory.value_mut(at) = next;
    }
}

/// The smallest class that holds `bytes`; `None` if none does.
pub(crate) fn class_of(bytes: u64) -> Option<usize> {
    let last = bytes.max(1) - 1; // of the offsets in the block
    let class = if last < 128 {
        last / 16
    } else {
        let doubling = u64::from(last.ilog2());
        8 + (doubling - 7) * 4 + ((last >> (doubling - 2)) & 3)
    };
    (class < CLASSES as u64).then_some(class as usize)
}

fn class_bytes(class: usize) -> u64 {
    match class.checked_sub(8) {
        None => 16 * (class as u64 + 1),
        Some(above) => (above as u64 % 4 + 5) << (above / 4 + 5),
    }
}
