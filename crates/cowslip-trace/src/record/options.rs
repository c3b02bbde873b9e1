//! What to record: which facts of a fault, whose stacks, one fault of how many.

use cowslip_sys::units::ByteCount;

/// What is recorded of a program.
///
/// ```
/// use cowslip_trace::record::{Detail, Options};
/// let options = Options { detail: Detail::Access, ..Options::default() };
/// assert_eq!(options.period, 1);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// How much is told of each fault.
    pub detail: Detail,
    /// Whose call stacks are recorded.
    pub stacks: Stacks,
    /// Of so many faults one is recorded; others than 1 go with [`Detail::Faults`] only.
    pub period: u64,
    /// The size of each processor's ring: a power of two of pages; `None`: 8 MiB, or what is permitted.
    pub ring: Option<ByteCount>,
}

impl Default for Options {
    fn default() -> Self {
        Self { detail: Detail::Faults, stacks: Stacks::Maps, period: 1, ring: None }
    }
}

/// How much is told of each fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// Address, instruction, thread, time, minor or major, in which mode.
    Faults,
    /// Also how long it took, and with privileges how memory was touched, whether a page was there, and
    /// whether a huge page was the answer. Each fault then costs about twice as much.
    Access,
}

/// Whose call stacks are recorded. They are found by frame pointers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stacks {
    /// Nobody's.
    None,
    /// Of who maps memory, where privileges permit.
    Maps,
    /// Also of who faults.
    Faults,
}

/// Frames of a call stack that are kept, the innermost ones.
pub(super) const MOST_FRAMES: u16 = 64;
