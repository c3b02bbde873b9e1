//! Mappings and their spans, as a trace shows them.

use cowslip_sys::units::VirtRange;
use serde::Serialize;

use super::place::Place;
use crate::model::StackId;

/// The number of the shared memory that a mapping shows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct ObjectId(pub(super) u32);

/// The number of a [`Mapping`] in its trace, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(transparent)]
pub struct MappingId(pub u32);

/// A mapping made by one `mmap(2)`, or present when the trace or the process began.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The process that has it.
    pub pid: u32,
    /// The kind of its memory.
    pub place: Place,
    /// Its length when it was mapped, in bytes.
    pub length_bytes: u64,
    /// Its offset in the file, in bytes.
    pub file_offset_bytes: u64,
    /// The file's number; 0 if there is none, or if it is unknown.
    pub inode: u64,
    /// True if writes stay in the process; `None` if the events do not tell.
    pub is_private: Option<bool>,
    /// The call stack that mapped it.
    pub mapped_by: Option<StackId>,
    /// True if it is older than the trace, which then does not show its earlier content.
    pub is_old: bool,
    /// Bytes of it that were unmapped or mapped over; more than its length if it grew again.
    pub unmapped_bytes: u64,
    /// The parent process' mapping from which a fork inherited it.
    pub inherited_from: Option<MappingId>,
    /// The shared memory that it maps.
    pub(super) object: Option<ObjectId>,
}

/// A mapping, or a part of it, at one place for some time: a bar in the picture.
///
/// A mapping has several spans if it was cut, moved or grew. A forked child's mapping gets its first span at
/// its first fault; that span begins with the fork.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The mapping.
    pub mapping: MappingId,
    /// Its addresses.
    pub range: VirtRange,
    /// Its beginning, in nanoseconds of the trace's clock.
    pub began_ns: u64,
    /// Its end; `None` for the end of the trace.
    pub ended_ns: Option<u64>,
}
