//! Numbers of the format, as in `docs/trace-format.md`.

use twox_hash::XxHash3_128;

/// The first bytes of a trace.
pub const MAGIC: [u8; 8] = *b"COWSLIPT";
pub(super) const VERSION: u32 = 1;
pub(super) const PRELUDE_BYTES: usize = 64;
pub(super) const HEADER_MOST_BYTES: u32 = 16 << 20;

pub(super) const HEAD_BYTES: usize = 64;
pub(super) const BLOCK_MOST_EVENTS: u32 = 65_536;
pub(super) const CONTENT_MOST_BYTES: u32 = 4 << 20;
/// A writer ends a block after this many events or this much content, and before an event this much younger
/// than its first: a file that is cut loses the events after its last whole block.
pub(super) const BLOCK_ENOUGH_EVENTS: u32 = 8_192;
pub(super) const CONTENT_ENOUGH_BYTES: usize = 1 << 20;
pub(super) const BLOCK_SPAN_NS: u64 = 1_000_000_000;

/// The most frames in a call stack.
pub const FRAMES_MOST: usize = 1024;
/// The most bytes in a name.
pub const TEXT_MOST_BYTES: usize = 65_536;
/// Addresses are split here: either the upper or the lower part often repeats from fault to fault.
pub(super) const PAGE_SHIFT: u32 = 12;

/// The columns of a block of events, in the order of the file.
#[derive(Clone, Copy, Debug)]
pub(super) enum Column {
    Stacks,
    Kinds,
    Times,
    Threads,
    Shapes,
    Pages,
    Offsets,
    Ips,
    Details,
    Others,
}

pub(super) const COLUMNS: usize = Column::Others as usize + 1;

/// The kinds of events, by their number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EventCode {
    Fault,
    Map,
    Unmap,
    Remap,
    Advise,
    Break,
    Fork,
    Exec,
    Name,
    Exit,
    Lost,
    Detach,
}

pub(super) const KINDS: usize = EventCode::Detach as usize + 1;

impl EventCode {
    pub(super) const ALL: [Self; KINDS] = [
        Self::Fault,
        Self::Map,
        Self::Unmap,
        Self::Remap,
        Self::Advise,
        Self::Break,
        Self::Fork,
        Self::Exec,
        Self::Name,
        Self::Exit,
        Self::Lost,
        Self::Detach,
    ];
}

/// Bits of a fault's shape: the position of each pair, and the two flags.
pub(super) mod shape {
    pub(in super::super) const SEVERITY: u32 = 0;
    pub(in super::super) const ACCESS: u32 = 2;
    pub(in super::super) const WAS_PRESENT: u32 = 4;
    pub(in super::super) const IN_USER_MODE: u32 = 6;
    pub(in super::super) const HUGE: u32 = 8;
    pub(in super::super) const HAS_LATENCY: u64 = 1 << 10;
    pub(in super::super) const HAS_STACK: u64 = 1 << 11;
    pub(in super::super) const ALL: u64 = (1 << 12) - 1;
}

/// XXH3 of 128 bits: it detects damage, not forgery.
pub(super) fn checksum(bytes: &[u8]) -> [u8; 16] {
    XxHash3_128::oneshot(bytes).to_le_bytes()
}
