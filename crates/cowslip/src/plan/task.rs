//! The next piece of background work.

use std::ops::Range;
use std::time::Duration;

use cowslip_sys::Errno;

use super::settings::{self, thaw::PARTS_ABOVE_BYTES};
use crate::memory::chunk_map::Event;

/// A piece of background work, or a wait.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Task {
    /// Unmap a part of an old view.
    UnmapView,
    /// Queue all frozen memory to be mapped again.
    QueueFrozen,
    /// Note that all memory is live, after a thaw that began then.
    Finish { began_ns: u64 },
    /// Copy the base of a borrowed chunk.
    Fill(usize),
    /// Leave chunks without a private page in place: they are clean.
    Keep(Range<usize>),
    /// Make chunks live: one, or several with few private pages.
    Thaw(Range<usize>, Pace),
    /// Make a chunk live of which an operation that failed left a part live.
    Complete(usize),
    /// Move a chunk out of memory that others read.
    Move(usize, Pace),
    /// Make a clean chunk live that was written.
    ThawClean(usize, Pace),
    /// Move the next chunk from there on into the fullest file.
    Consolidate { from: usize },
    /// Split a huge page, of which parts were given back.
    Split(usize),
    /// Warm the huge page that the kernel gives out next, for a chunk that becomes one.
    WarmPage,
    /// Make a chunk of base pages a huge page.
    Collapse(usize),
    /// Map a part of the unmapped memory.
    Map,
    /// There is more to look at.
    LookOn,
    /// The kernel refused a look.
    Failed(Work, Errno),
    /// Nothing can be done before this has passed.
    Wait(Duration),
    /// Nothing is to be done.
    Idle,
}

impl Task {
    /// What it does to chunks, if it changes their state.
    pub(crate) fn event(&self) -> Option<(Range<usize>, Event)> {
        match self {
            Self::Keep(run) => Some((run.clone(), Event::Keep)),
            Self::Thaw(run, _) => Some((run.clone(), Event::Thaw)),
            Self::Complete(chunk) | Self::ThawClean(chunk, _) => {
                Some((*chunk..chunk + 1, Event::Thaw))
            }
            Self::Move(chunk, _) => Some((*chunk..chunk + 1, Event::Move)),
            _ => None,
        }
    }

    /// The kind of work that it is, if it is one that may fail and is tried again.
    pub(crate) fn work(&self) -> Option<Work> {
        match self {
            Self::Fill(_) | Self::Keep(_) | Self::Thaw(..) => Some(Work::Thaw),
            Self::Complete(_) | Self::Move(..) => Some(Work::Move),
            Self::ThawClean(..) => Some(Work::Clean),
            Self::Failed(work, _) => Some(*work),
            _ => None,
        }
    }
}

/// Kinds of work that fail and are tried again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    Thaw,
    Move,
    Clean,
}

/// One decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    Do(Task),
    /// Nothing for so many nanoseconds.
    After(u64),
    /// Nothing until something else changes.
    Nothing,
}

impl Decision {
    /// The earlier of two.
    pub(crate) fn or_sooner(self, other: Self) -> Self {
        match (self, other) {
            (Self::Do(task), _) | (_, Self::Do(task)) => Self::Do(task),
            (Self::After(ns), Self::After(other_ns)) => Self::After(ns.min(other_ns)),
            (Self::Nothing, decision) | (decision, Self::Nothing) => decision,
        }
    }
}

/// Paces of a move, by the pages that are copied while accesses to the chunk wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pace {
    /// The private pages.
    AtOnce,
    /// The private pages, in two parts.
    Gently,
    /// The base as well: otherwise a run of writes, which is faster, would reach the chunk's end meanwhile.
    Held,
}

impl Pace {
    /// The pace for a chunk with so many private pages, counted up to [`many_pages`].
    pub(crate) fn new(private_pages: u64) -> Self {
        if private_pages > many_pages() { Self::Gently } else { Self::AtOnce }
    }
}

/// More private pages than this are thawed part by part.
pub(crate) fn many_pages() -> u64 {
    settings::pages(PARTS_ABOVE_BYTES)
}
