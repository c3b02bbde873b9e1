//! Advice of `madvise(2)` that changes the known state of pages.

pub(crate) const DONTNEED: u32 = 4;
pub(crate) const FREE: u32 = 8;
pub(crate) const REMOVE: u32 = 9;
pub(crate) const HUGEPAGE: u32 = 14;
pub(crate) const NOHUGEPAGE: u32 = 15;
pub(crate) const POPULATE_READ: u32 = 22;
pub(crate) const POPULATE_WRITE: u32 = 23;
pub(crate) const DONTNEED_LOCKED: u32 = 24;
pub(crate) const COLLAPSE: u32 = 25;
