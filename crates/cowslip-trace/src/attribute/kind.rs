//! Kinds of faults: the reason for each.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The reason for a fault, by the rules of `docs/trace.md`: never more than the events tell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// The first touch of a page of anonymous or shared memory.
    FirstTouch,
    /// The first write to a page of anonymous memory that had only been read, as zeroes.
    FirstWrite,
    /// The first write since a fork to a page that was there before it.
    CowAfterFork,
    /// The first write to a page of a private file mapping: a copy of the file's.
    FileCopy,
    /// A touch after `MADV_DONTNEED`, `MADV_FREE` or `MADV_REMOVE`.
    Refault,
    /// Read back from swap.
    SwapIn,
    /// A file's page that had to be read.
    FileRead,
    /// A file's page that was in memory.
    FileMapped,
    /// A page of shared memory that another mapping or process had brought in.
    SharedMapped,
    /// The page had been touched, and no event took it away (`mprotect`, NUMA hints, migration, races).
    Repeated,
    /// The events do not tell.
    Unknown,
}

impl FaultKind {
    /// All of them, in the order of tables.
    pub const ALL: [Self; 11] = [
        Self::FirstTouch,
        Self::FirstWrite,
        Self::CowAfterFork,
        Self::FileCopy,
        Self::Refault,
        Self::SwapIn,
        Self::FileRead,
        Self::FileMapped,
        Self::SharedMapped,
        Self::Repeated,
        Self::Unknown,
    ];

    /// A short description.
    pub const fn words(self) -> &'static str {
        match self {
            Self::FirstTouch => "first touch",
            Self::FirstWrite => "first write after read",
            Self::CowAfterFork => "copy-on-write after fork",
            Self::FileCopy => "private copy of a file's page",
            Self::Refault => "refault after madvise",
            Self::SwapIn => "swapped in",
            Self::FileRead => "file read",
            Self::FileMapped => "file mapped",
            Self::SharedMapped => "shared memory mapped",
            Self::Repeated => "repeated",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.words())
    }
}
