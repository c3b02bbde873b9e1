//! Mappings and their spans, as a trace shows them.

use cowslip_sys::units::VirtRange;
use serde::Serialize;

use super::object::ObjectId;
use super::place::Place;
use crate::model::StackId;

/// The number of a [`Mapping`] in its trace, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(transparent)]
pub struct MappingId(pub u32);

/// What one `mmap(2)` made, or what a process had when the trace or the process began.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Whose.
    pub pid: u32,
    /// What it is of.
    pub place: Place,
    /// How long it was when it was mapped, in bytes.
    pub length_bytes: u64,
    /// Where in the file it begins, in bytes.
    pub file_offset_bytes: u64,
    /// The file's number; 0: there is none, or it was not told.
    pub inode: u64,
    /// Whether writes stay in the process, if the events say.
    pub is_private: Option<bool>,
    /// Who mapped it.
    pub mapped_by: Option<StackId>,
    /// Whether it is older than what the trace knows: what it held before, nobody saw.
    pub is_old: bool,
    /// How much of it was unmapped, or mapped over, in bytes; more than its length if it grew again.
    pub unmapped_bytes: u64,
    /// That of the parent process from which it was inherited by a fork.
    pub inherited_from: Option<MappingId>,
    /// The shared memory that it maps.
    pub(super) object: Option<ObjectId>,
}

/// A mapping, or a part of it, at one place for some time: a bar of the picture.
///
/// A mapping has several of them if it was cut, moved or grew. A forked child's mapping has its first at
/// its first fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Which mapping.
    pub mapping: MappingId,
    /// Where.
    pub range: VirtRange,
    /// Since when, in nanoseconds of the trace's clock.
    pub began_ns: u64,
    /// Until when; `None`: until the end of the trace.
    pub ended_ns: Option<u64>,
}
