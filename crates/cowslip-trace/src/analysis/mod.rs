//! A trace summed up: by kind, mapping, stack, thread and time, with the patterns in it.

mod sums;

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::attribute::{Mapping, Place, Span};
use crate::patterns::Pattern;

pub use sums::Sums;

/// A trace summed up. Counts are of recorded faults.
#[derive(Clone, Debug)]
pub struct Analysis {
    /// From the first event to the last, in nanoseconds.
    pub duration_ns: u64,
    /// Over all faults.
    pub sums: Sums,
    /// All mappings; [`MappingId`](crate::attribute::MappingId) is the place in here.
    pub mappings: Vec<Mapping>,
    /// Where they lay and when, in the order in which they began.
    pub spans: Vec<Span>,
    /// Mappings of the same identity together, those with the most faults first.
    pub groups: Vec<Group>,
    /// Call stacks of faults, those with the most faults first.
    pub stacks: Vec<StackSums>,
    /// Threads with faults, those with the most first.
    pub threads: Vec<ThreadSums>,
    /// What the faults have in common, the costliest first.
    pub patterns: Vec<Pattern>,
    /// Faults over time.
    pub rate: Rate,
}

/// What a mapping is wherever it lies, so that those of two runs can be set side by side.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub struct Identity {
    /// What it is of.
    pub place: Place,
    /// How long it is, up to the next power of two; `None` where length tells nothing (files, heap, stack).
    pub size_bytes: Option<u64>,
    /// Who mapped it, the innermost frame first; empty if that is not known.
    pub mapped_by: Arc<[Frame]>,
}

/// An instruction, wherever its module is loaded.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub struct Frame {
    /// The file that is mapped there, or the kernel's name in brackets; `None`: nothing known is.
    pub module: Option<Arc<str>>,
    /// Where in the file, in bytes; the address if there is no file.
    pub offset_bytes: u64,
}

/// Mappings of one identity.
#[derive(Clone, Debug, Serialize)]
pub struct Group {
    /// What they are.
    pub identity: Identity,
    /// How many there are.
    pub mappings: u64,
    /// Their lengths together, in bytes.
    pub mapped_bytes: u64,
    /// How many were unmapped.
    pub unmapped: u64,
    /// Over their faults.
    #[serde(flatten)]
    pub sums: Sums,
}

/// The faults of one call stack.
#[derive(Clone, Debug, Serialize)]
pub struct StackSums {
    /// The innermost frame first.
    pub frames: Arc<[Frame]>,
    /// Over its faults.
    #[serde(flatten)]
    pub sums: Sums,
}

/// The faults of one thread.
#[derive(Clone, Debug, Serialize)]
pub struct ThreadSums {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Its last name; empty if that is not known.
    pub name: Arc<str>,
    /// Over its faults.
    #[serde(flatten)]
    pub sums: Sums,
}

/// Faults over time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Rate {
    /// How long each interval is, in nanoseconds.
    pub interval_ns: u64,
    /// Faults in each, from the first event on.
    pub faults: Vec<u64>,
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.module {
            Some(module) => write!(f, "{module}+{:#x}", self.offset_bytes),
            None => write!(f, "{:#x}", self.offset_bytes),
        }
    }
}
