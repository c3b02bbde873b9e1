//! Every constant of the decisions about background work: times in nanoseconds, sizes in bytes.
//!
//! # Budgets
//! * Mappings: each border between two kinds of chunks is one more mapping, and every freeze moves all of them.
//!   [`BORDERS`] are shared among the decisions that make borders.
//! * Processor time: work of a kind that took some time rests for a multiple of it. Looks for written chunks rest for
//!   [`moving::REST`], density for [`density::REST`], consolidation for [`consolidate::REST`]. Moves do not rest: those of
//!   a run of writes must stay ahead of it. Time for which writers wait counts once more, by [`serve::REST_WHEN_FELT`].

use cowslip_sys::units::page_size_bytes;

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Borders between runs of chunks that background work may make in an arena.
const BORDERS: usize = 256;

/// The bounds of a delay that doubles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delays {
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
}

impl Delays {
    pub(crate) const fn new(first_ns: u64, last_ns: u64) -> Self {
        Self { first_ns, last_ns }
    }
}

/// The pages that `bytes` are; at least one.
pub(crate) fn pages(bytes: usize) -> u64 {
    (bytes / page_size_bytes()).max(1) as u64
}

/// When frozen memory is thawed.
pub(crate) mod thaw {
    use super::*;

    /// Chunks that are thawed in one step.
    pub(crate) const RUN_CHUNKS: usize = 16;
    /// Private memory of chunks that are thawed in one step: a hold costs as much as this many copies.
    pub(crate) const TOGETHER_BYTES: usize = 128 * KIB;
    /// Borrowed chunks that are filled before they become live. Each is held twice meanwhile.
    pub(crate) const FILLED_CHUNKS: usize = 8;
    /// Of an old view, unmapped in one step.
    pub(crate) const VIEW_STEP_BYTES: usize = 32 * MIB;
    /// From this many old views on, they are unmapped though a fork is being finished: each holds address space and
    /// mappings.
    pub(crate) const MANY_VIEWS: usize = 4;
    /// Between looks for readers.
    pub(crate) const READERS: Delays = Delays::new(2 * MILLISECOND, 250 * MILLISECOND);
    /// The same while memory is short.
    pub(crate) const READERS_WHEN_SHORT: Delays = Delays::new(2 * MILLISECOND, 10 * MILLISECOND);
    /// Longest wait of a fork for a thaw, while memory is short.
    pub(crate) const LONGEST_BEFORE_FORK_NS: u64 = 50 * MILLISECOND;
    /// The least time that a program stays frozen after its last child's end. It still has to wait for that child, and
    /// another fork at once finds the arena ready.
    pub(crate) const LINGER_NS: u64 = 20 * MILLISECOND;
    /// The longest.
    pub(crate) const LINGER_MOST_NS: u64 = SECOND;
    /// It also stays frozen for the time of this many thaws: a program that forks just too seldom spends a fifth of a
    /// processor on thaws that its next fork undoes.
    pub(crate) const LINGER_THAWS: u64 = 4;
    /// Unless it has copied more than one in this many of its used pages: the copies cost memory, and each fork copies
    /// their page tables.
    pub(crate) const PRIVATE_SHARE: u64 = 8;
    /// After a thaw that failed.
    pub(crate) const RETRY: Delays = Delays::new(20 * MILLISECOND, 5 * SECOND);
    /// Private memory of a chunk above which it is thawed part by part, so that a writer waits for a part.
    pub(crate) const PARTS_ABOVE_BYTES: usize = 512 * KIB;
    /// A fork's caller has work of its own to finish, such as an allocator's handlers: background work would hold it
    /// up, and take the processor of the child.
    pub(crate) const QUIET_AFTER_FORK_NS: u64 = 10 * MILLISECOND;
    /// Between attempts to reuse chunks that were given back while others read them.
    pub(crate) const RECLAIM: Delays = Delays::new(500 * MICROSECOND, 250 * MILLISECOND);
    /// A part of a chunk that is thawed part by part.
    pub(crate) const PART_BYTES: usize = MIB;
    /// The most private memory of a chunk that is copied with `pwrite`: for more, a window onto the chunk is faster.
    pub(crate) const WRITTEN_BYTES: usize = 32 * KIB;
    /// Length of that window. Chunks thawed while the arena is locked once mostly lie in one.
    pub(crate) const WINDOW_BYTES: usize = 16 * MIB;
}

/// Which chunks move out of frozen memory while others read it.
pub(crate) mod moving {
    use super::*;

    /// A move costs as much as first writes to this much, and their thaw: 720 KiB where the host keeps free pages, up to
    /// 1.5 MiB where it takes them.
    pub(crate) const HOT_BYTES: usize = MIB;
    /// Private memory at the beginning of a chunk, in one piece, that a run of writes has begun. As much at random
    /// places is no run.
    pub(crate) const BEGUN_BYTES: usize = 32 * KIB;
    /// New copies, in one piece, that make a chunk the possible front of a run.
    pub(crate) const FRONT_BYTES: usize = 128 * KIB;
    /// Private memory of a chunk that a run has passed: it is too late to save the copies.
    pub(crate) const PASSED_BYTES: usize = MIB;
    pub(crate) const MOST_FRONTS: usize = 8;
    pub(crate) const MOST_AHEAD: usize = 16;
    /// Time for which a run of writes is known.
    pub(crate) const KNOWN_NS: u64 = 5 * SECOND;
    /// Between looks at the private pages.
    pub(crate) const LOOK: Delays = Delays::new(MILLISECOND, 20 * MILLISECOND);
    /// After fewer faults than this there is no look yet.
    pub(crate) const WORTH_A_LOOK: u64 = 64;
    /// After few faults there is one once this has passed: they may be the last of many.
    pub(crate) const FEW_FAULTS_NS: u64 = 100 * MILLISECOND;
    /// The pause after a look is this many times its processor time, and doubles each time that a look finds nothing to move.
    pub(crate) const REST: u64 = 30;
    pub(crate) const MOST_DOUBLINGS: u32 = 3;
    /// It doubles no further than to this.
    pub(crate) const DOUBLED_NS: u64 = 2 * SECOND;
    /// After a move that failed.
    pub(crate) const RETRY: Delays = Delays::new(20 * MILLISECOND, 5 * SECOND);
    /// Borders between moved chunks and others.
    pub(crate) const MOST_BORDERS: usize = BORDERS / 2;
    /// Pause between two looks at a run of writes that goes on: a step passes over all chunks, and may take a tenth of
    /// the time.
    pub(crate) const PURSUIT_NS: u64 = 100 * MICROSECOND;
    pub(crate) const PURSUIT_NS_PER_CHUNK: u64 = 20;
    /// Time for which a run goes on after chunks ahead of it were moved.
    pub(crate) const PURSUED_NS: u64 = 3 * MILLISECOND;
}

/// When clean chunks that were written become live.
pub(crate) mod clean {
    use super::*;

    /// Chunks looked at in one step.
    pub(crate) const LOOK_CHUNKS: usize = 64;
    pub(crate) const LOOK: Delays = Delays::new(20 * MILLISECOND, 250 * MILLISECOND);
    /// Runs of clean chunks.
    pub(crate) const MOST_RUNS: usize = BORDERS / 4;
}

/// When the chunks of several files come into one.
pub(crate) mod consolidate {
    use super::*;

    /// The pause after a move is this many times as long as the move.
    pub(crate) const REST: u64 = 10;
    /// Before the first move, since another fork may come soon, which undoes it; and after a move that failed.
    pub(crate) const RETRY: Delays = Delays::new(100 * MILLISECOND, 5 * SECOND);
}

/// Which chunks have huge pages.
pub(crate) mod density {
    use super::*;

    /// A huge page is split once one in this many of its pages was given back.
    pub(crate) const SPLIT_SHARE: usize = 8;
    /// A chunk of base pages is made huge if at most one in this many of its pages is missing.
    pub(crate) const MISSING_SHARE: u64 = 16;
    /// The part of memory handed out that must be there before more of it may begin on huge pages.
    pub(crate) const TRUST: (u64, u64) = (3, 4);
    /// The pause after a chunk was made huge, and after the looks and splits of a round, is this many times as long.
    pub(crate) const REST: u64 = 16;
    /// The pause after a chunk was made huge while no thread waits for a processor.
    pub(crate) const REST_WHEN_FREE: u64 = 2;
    /// Between rounds.
    pub(crate) const ROUND: Delays = Delays::new(20 * MILLISECOND, 2 * SECOND);
    /// After a collapse that the kernel refused.
    pub(crate) const REFUSED: Delays = Delays::new(100 * MILLISECOND, 30 * SECOND);
    /// Other work goes first, but not for longer than this.
    pub(crate) const OVERDUE_NS: u64 = 500 * MILLISECOND;
    /// Chunks looked at in one step.
    pub(crate) const LOOK_CHUNKS: usize = 16;
    /// Borders between runs of base pages and runs of huge ones.
    pub(crate) const MOST_BORDERS: usize = BORDERS / 4;
    /// Places that are read to find out if memory was filled: half of them are not zero then.
    pub(crate) const SAMPLES: usize = 16;
    pub(crate) const SAMPLE_BYTES: usize = 512;
}

/// When unmapped memory is mapped again.
pub(crate) mod residency {
    use super::*;

    /// Mapped in one step: other threads may wait for the mappings meanwhile.
    pub(crate) const STEP_BYTES: usize = 8 * MIB;
    /// Between rounds.
    pub(crate) const ROUND: Delays = Delays::new(50 * MILLISECOND, 2 * SECOND);
    /// A program that writes to a new page in less time than this writes much.
    pub(crate) const FEW_WRITES_NS: u64 = 100 * MICROSECOND;
}

/// How the service thread shares the arena's lock and the processor.
pub(crate) mod serve {
    use super::*;

    /// Pause after the lock was found taken. Looking more often would take the processor that a fork is about to put its
    /// child on.
    pub(crate) const LOOK_AGAIN_NS: u64 = 2 * MILLISECOND;
    /// Pause when others wait for the lock: as long as a thread needs to wake up and take it, and a little more.
    pub(crate) const STAY_AWAY_NS: u64 = 500 * MICROSECOND;
    /// False alarms in a row before it sleeps.
    pub(crate) const MOST_FALSE_ALARMS: u32 = 3;
    /// Pause after a slice of time in which nothing changed.
    pub(crate) const NO_PROGRESS_NS: u64 = 5 * MILLISECOND;
    /// Length of its work at a time, unless others want the arena's lock: these wait for a step.
    pub(crate) const SLICE_NS: u64 = 200 * MICROSECOND;
    /// The thread rests this many times as long as writers waited for it: they may lose a hundredth of their time.
    pub(crate) const REST_WHEN_FELT: u64 = 99;
    /// The thread rests this many times as long as it thawed while other threads wait for a processor: a server with half
    /// of one to spare then keeps its pace.
    pub(crate) const REST_WHEN_CROWDED: u64 = 3;
    /// More is not counted: the thread waited for its turn as well.
    pub(crate) const LONGEST_TURN_NS: u64 = MILLISECOND;
    /// Pause between looks for an event where no call waits for one.
    pub(crate) const NAP_NS: u64 = MILLISECOND;
    /// Longest wait for a joined thread to end, which takes microseconds.
    pub(crate) const JOINED_NS: u64 = 100 * MILLISECOND;
    /// No page is warmed with less room in the group or on the machine.
    pub(crate) const WARM_ROOM_BYTES: u64 = 16 * MIB as u64;
    pub(crate) const LONGEST_REST_NS: u64 = 50 * MILLISECOND;
}

/// When the service thread has freed memory given back, while the program rests.
pub(crate) mod rest {
    use super::*;

    /// From one look to the next.
    pub(crate) const LOOK_NS: u64 = SECOND;
    /// To the next time that memory is given back.
    pub(crate) const AGAIN_NS: u64 = 10 * LOOK_NS;
    /// The program rests once it has used less than one in [`SHARE`] of a processor's time for so long.
    pub(crate) const QUIET_NS: u64 = 3 * LOOK_NS;
    pub(crate) const SHARE: u64 = 20;
    /// A program that has worked for less since the last time has hardly freed anything.
    pub(crate) const WORKED_NS: u64 = 10 * MILLISECOND;
    /// Longest wait of a fork for threads that are away.
    pub(crate) const LONGEST_AWAY_NS: u64 = 2 * LOOK_NS;
    /// Between two looks of such a fork.
    pub(crate) const NAP_NS: u64 = 100 * MICROSECOND;
}

/// How soon the end of a program's last thread is seen.
pub(crate) mod last_thread {
    use super::*;

    /// While there is a main thread.
    pub(crate) const LOOK_NS: u64 = SECOND;
    /// After its end.
    pub(crate) const ENDED: Delays = Delays::new(MILLISECOND, 100 * MILLISECOND);
}

/// When memory is short, and how long a look at it is believed.
pub(crate) mod pressure {
    use super::*;

    /// Copies may use up [`ENOUGH_BYTES`] in this time. The last look is believed for as long as the room found then
    /// lasts at that pace.
    pub(crate) const LOOK_NS: u64 = 5 * MILLISECOND;
    /// The longest time that a look is believed.
    pub(crate) const LONGEST_LOOK_NS: u64 = 100 * MILLISECOND;
    /// A process may be moved to another group, and limits may change.
    pub(crate) const FIND_GROUP_NS: u64 = SECOND;
    /// More than several threads copy in [`LOOK_NS`], and while the thaw catches up.
    pub(crate) const ENOUGH_BYTES: u64 = 256 << 20;
    /// A look at the queue for processors is believed for so long: it takes some microseconds.
    pub(crate) const CROWD_LOOK_NS: u64 = MILLISECOND;
}

/// How children are watched, and their copies limited.
pub(crate) mod children {
    use super::*;

    /// Between two looks of the service thread at children that give way.
    pub(crate) const LOOK_NS: u64 = 20 * MILLISECOND;
    /// Children with a descriptor to wait for their end. The end of others is noticed by a look at the readers.
    pub(crate) const MOST_ENDS: usize = 2;
    /// Between two counts of the copies while there are readers: while there are few, and while there are many.
    pub(crate) const COUNT_NS: u64 = 10 * MILLISECOND;
    pub(crate) const COUNT_NEAR_NS: u64 = 2 * MILLISECOND;
    /// The pause after a count is this many times as long, at least.
    pub(crate) const COUNT_REST: u64 = 10;
    /// Counts until a killed child has ended and the memory that it read is live again: copies are added meanwhile.
    pub(crate) const ENDING_COUNTS: u64 = 10;
    /// If there are this many children, those that have ended are removed.
    pub(crate) const MANY: usize = 64;
    /// A child is asked to end once less than one in this many of the bytes that copies may take is left.
    pub(crate) const ASK_SHARE: u64 = 4;
    /// The copies are counted more often once they take more than one in this many of those bytes.
    pub(crate) const HALF_SHARE: u64 = 2;
    /// The most generations of a base that may be read at a time: each holds a descriptor.
    pub(crate) const MOST_TOKENS: usize = 4;
}

/// What a freeze takes on, and waits for.
pub(crate) mod freeze {
    use super::*;

    /// Chunks left to the cut: every access waits for them there.
    pub(crate) const FEW_CHUNKS: usize = 4;
    /// Time until a service thread that was just started is checked for having ended.
    pub(crate) const LOOK_AGAIN_NS: u64 = 10 * MILLISECOND;
    /// Longest wait for the service thread to copy the chunk or two that the freezing thread's stack is in.
    pub(crate) const STOOD_ON_NS: u64 = SECOND;
    /// Longest wait of a new hold for a freeze that waits for others: a holder may need this one to end its own.
    pub(crate) const COURTESY_NS: u64 = 10 * MILLISECOND;
    /// A chunk of 2 MiB with more spans is not worth a huge page.
    pub(crate) const MANY_SPANS: usize = 32;
    /// With more than these a chunk takes longer to freeze than a fork takes to copy its page table, which matters in an
    /// arena with [`MANY_SPANS_IN_ALL`].
    pub(crate) const SPANS_WORTH_A_PAGE_TABLE: usize = 8;
    pub(crate) const MANY_SPANS_IN_ALL: usize = 300;
}
