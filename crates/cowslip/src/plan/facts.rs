//! Facts about an arena and its program, for the decisions about background work.

use std::ops::Range;

use cowslip_sys::Errno;

use crate::memory::chunk_map::ChunkMap;

/// Facts, each asked for when a decision needs it: some cost a system call, some a walk of page tables.
///
/// [`crate::thaw::observe`] asks the kernel, and the tests of [`super::simulate`] a model.
pub(crate) trait Facts {
    /// The time, of a clock that never goes back.
    fn now_ns(&self) -> u64;

    /// Processor time of this thread so far: the price of a look, without the time in which others had the processor.
    fn used_ns(&self) -> u64;

    /// The state of each chunk.
    fn map(&self) -> &ChunkMap;

    /// True if memory is too short for copies to linger. The same throughout a decision.
    fn is_short(&self) -> bool;

    /// Views that were dropped and are still mapped.
    fn old_views(&self) -> usize;

    /// True if frozen chunks stay as they are for now: in a reader, during I/O, while paused.
    fn is_held(&self) -> bool;

    /// True if places are kept in files for readers alone.
    fn has_vacated(&self) -> bool;

    /// True if borrowed chunks stay borrowed until asked for.
    fn keeps_borrowed(&self) -> bool;

    /// True if chunks without private pages become clean, so that changes are known at the next freeze.
    fn tracks_changes(&self) -> bool;

    /// True if the kernel maps the arena's memory by huge pages only (hugetlbfs).
    fn is_hugetlb(&self) -> bool;

    /// True if there is a service that keeps threads from memory.
    fn is_served(&self) -> bool;

    /// Asks the program: true if the kernel or a device may know page frames of the arena.
    fn may_be_pinned(&self) -> bool;

    /// Asks for readers, and gives back what has none.
    fn readers(&mut self) -> Readers;

    /// Counts the copies, and ends a child if they exceed their limit and it `may_end`. Returns the time to the next such
    /// look, if there is a limit. Near the limit memory counts as short.
    fn keep_limit(&mut self, may_end: bool) -> Option<u64>;

    /// Private pages of the process, in all its memory; `None` if that is not known.
    fn process_private_pages(&self) -> Option<u64>;

    /// Pages of the arena that are in use.
    fn used_pages(&self) -> u64;

    /// Page faults of the process so far; `None` where the kernel does not count them.
    fn faults(&self) -> Option<u64>;

    /// Private pages of a chunk, counted up to a bound.
    fn private_pages(&self, chunk: usize, most: u64) -> Result<u64, Errno>;

    /// Private pages of all chunks that can be moved.
    fn private_by_chunk(&self) -> Result<Counts, Errno>;

    /// The first of `chunks` with a private page.
    fn first_written(&self, chunks: Range<usize>) -> Result<Option<usize>, Errno>;

    /// Private pages of a chunk that a run of writes has begun: in order from its beginning, and most of its private
    /// pages are the run's. `None` if no run has come to it.
    fn pages_of_run(&self, chunk: usize) -> Result<Option<u64>, Errno>;

    /// True if a chunk in the base's file may be moved: it is used, has all its memory, and one more copy is allowed.
    fn may_move(&self, chunk: usize) -> bool;

    /// Live memory in use that is one run of chunks each.
    fn live_runs(&self) -> Vec<Range<usize>>;

    /// True if a thaw in place is impossible, since readers have exposed the chunk's file: it moves to another.
    fn is_exposed(&self, chunk: usize) -> bool;

    /// True if a borrowed chunk's base has been copied.
    fn is_filled(&self, chunk: usize) -> bool;

    /// True if the arena has a single file.
    fn has_one_file(&self) -> bool;

    /// True if threads wait for a processor.
    fn is_crowded(&self) -> bool;

    /// True if parts of the arena may become huge, or be split, now.
    fn can_tend(&self) -> bool;

    /// Bytes that the arena's files hold.
    fn held_bytes(&self) -> u64;

    /// True if any huge page is worth splitting.
    fn is_any_split_due(&self) -> bool;

    /// The first chunk from there on that may have to be split or made huge.
    fn next_sparse(&self, from: usize) -> Option<usize>;

    /// True if a huge page is worth splitting.
    fn is_split_due(&self, chunk: usize) -> bool;

    /// Bytes in memory of a chunk that could become huge; `None` if it cannot.
    fn bytes_to_collapse(&self, chunk: usize) -> Option<u64>;

    /// True if memory is to be mapped again.
    fn has_unmapped(&self) -> bool;
}

/// The readers of frozen memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Readers {
    /// The youngest generation that is read: chunks frozen after it have no reader.
    pub(crate) read: Option<u64>,
    /// A generation has lost its last reader since the last look.
    pub(crate) has_ended: bool,
}

/// Private pages by chunk.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) pages: Vec<u16>,
    /// Chunks in which enough of them follow one another for the front of a run, in ascending order.
    pub(crate) in_order: Vec<usize>,
}
