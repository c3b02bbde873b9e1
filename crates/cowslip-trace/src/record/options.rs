//! Options of a recording: the facts of a fault, the call stacks, the sampling.

use cowslip_sys::units::ByteCount;

/// Options of a recording.
///
/// ```
/// use cowslip_trace::record::{Detail, Options};
/// let options = Options { detail: Detail::Access, ..Options::default() };
/// assert_eq!(options.period, 1);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The detail about each fault.
    pub detail: Detail,
    /// The events with call stacks.
    pub stacks: Stacks,
    /// The way in which callers are found.
    pub unwinding: Unwinding,
    /// One in this many faults is recorded; only [`Detail::Faults`] permits numbers other than 1. With [`Detail::Time`] and
    /// [`Detail::Calls`] the nanoseconds of a thread on processors between two samples.
    pub period: u64,
    /// Let the kernel count the latencies of faults, where privileges permit.
    pub latency: bool,
    /// The size of each processor's ring: a power of two of pages; `None` for 8 MiB, or 64 MiB with
    /// [`Unwinding::Dwarf`], or as much as is permitted.
    pub ring: Option<ByteCount>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            detail: Detail::Faults,
            stacks: Stacks::Maps,
            unwinding: Unwinding::FramePointers,
            period: 1,
            latency: false,
            ring: None,
        }
    }
}

/// The detail about each fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// Address, instruction, thread, time, minor or major, and mode.
    Faults,
    /// Also the latency, and with privileges the kind of access, whether a page was present, and whether a
    /// huge page came. Each fault then costs about twice as much.
    Access,
    /// No faults: samples of the time on processors, with call stacks.
    Time,
    /// No faults: each system call, and samples of the time on processors. It needs the privileges of tracepoints.
    Calls,
}

/// The events with call stacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stacks {
    /// No events.
    None,
    /// Calls that map memory, where privileges permit.
    Maps,
    /// Faults as well.
    Faults,
}

/// The way in which the callers of a function are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unwinding {
    /// By the kernel, along frame pointers: stacks end at the first function without one, such as most of a distribution's
    /// libraries.
    FramePointers,
    /// By the recorder, with the unwind tables of the program's files, from a copy of 8 KiB of the stack: the ring and the
    /// recorder have that much more to do for each such event. x86-64 only.
    Dwarf,
}

/// Bytes of a copied stack.
pub(super) const COPIED_BYTES: u16 = 8 << 10;
/// The number of frames kept of a call stack, the innermost ones.
pub(super) const MOST_FRAMES: u16 = 64;
