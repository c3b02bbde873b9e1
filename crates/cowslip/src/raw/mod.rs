//! Operations for libraries that stand in for libc's memory calls; they may change in any release.
//!
//! A program that allocates in an [`Arena`], freezes it and forks with [`fork`](crate::fork) needs none of this. It is
//! for a library that serves a program's own `mmap`, `madvise` and `fork` from an arena, as `cowslip run` does, and for
//! commands that look at such a program from outside.
//!
//! * [`Arena::raw`] gives the operations that such a library has beside those of [`Arena`].
//! * [`PreparedFork`] does the work around a call of `fork` that other code makes.
//! * [`Usage`] and [`Departure`] tell the use of a part of an arena, and the reason for which memory left it.
//! * [`branch`] has the messages between `cowslip branch` and a program.
//! * [`PAGE_NAME`] is the mapping in which [`Metrics::from_page`](crate::Metrics::from_page) finds the counters.
//!
//! ```
//! use cowslip::raw::Usage;
//! use cowslip::{Arena, Prot, units::ByteCount};
//!
//! let arena = Arena::new(ByteCount::mib(4))?;
//! let range = arena.allocate(ByteCount(64 << 10), Prot::RW)?;
//! assert_eq!(arena.raw().parts(range), [(range, Usage::Used, Prot::RW)]);
//! # Ok::<(), cowslip::Error>(())
//! ```

pub mod branch;
mod children;
mod memory;
mod service;

use crate::arena::Arena;
use crate::arena::state::Shared;

pub use crate::freeze::PreparedFork;
pub use crate::memory::departure::Departure;
pub use crate::memory::vma_map::Usage;
pub use crate::metrics::PAGE_NAME;
pub use service::{ParkedService, call_at_rest, is_any_at_rest};

/// An arena, with the operations of a library that stands in for libc's memory calls: see [`Arena::raw`].
#[derive(Clone, Copy, Debug)]
pub struct RawArena<'a>(&'a Arena);

#[cfg(feature = "internal")]
#[doc(hidden)]
impl Arena {
    /// The operations for a library that stands in for libc's memory calls.
    pub fn raw(&self) -> RawArena<'_> {
        RawArena::new(self)
    }
}

impl<'a> RawArena<'a> {
    pub(crate) fn new(arena: &'a Arena) -> Self {
        Self(arena)
    }

    pub(crate) fn arena(self) -> &'a Arena {
        self.0
    }

    pub(crate) fn shared(self) -> &'a Shared {
        self.0.shared()
    }
}
