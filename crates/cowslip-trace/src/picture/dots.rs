//! Faults in the form that the page contains: a column for each fact, compressed as it grows.

use super::varint::Column;
use crate::attribute::FaultKind;
use crate::model::{Access, Fault, Severity};

/// Addresses are split here: the high part repeats, or is close, from fault to fault.
pub(super) const LOW_BITS: u32 = 12;

const NAMES: [&str; 11] =
    ["time", "space", "thread", "group", "page", "low", "class", "flags", "latency", "stack", "ip"];

/// A fault. The numbers are indices in the scene's tables; the time is since the first event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dot {
    pub(super) time_ns: u64,
    pub(super) space: u32,
    pub(super) thread: u32,
    pub(super) group: u32,
    pub(super) kind: FaultKind,
    /// True if the fault brought an absent page.
    pub(super) is_arrival: bool,
    /// The number of its instruction.
    pub(super) frame: u32,
    pub(super) stack: Option<u32>,
    pub(super) fault: Fault,
}

/// Faults being packed.
#[derive(Default)]
pub(super) struct Packer {
    columns: [Column; NAMES.len()],
    last_ns: u64,
    /// The page of the last fault, by group.
    last_pages: Vec<u64>,
    count: u64,
}

/// All faults.
pub(super) struct Dots {
    pub(super) count: u64,
    pub(super) columns: [(&'static str, Vec<u8>); NAMES.len()],
}

impl Packer {
    pub(super) fn push(&mut self, dot: &Dot) {
        let [time, space, thread, group, page, low, class, flags, latency, stack, ip] =
            &mut self.columns;
        let fault = &dot.fault;
        time.push(dot.time_ns - self.last_ns);
        self.last_ns = dot.time_ns;
        space.push(dot.space.into());
        thread.push(dot.thread.into());
        group.push(dot.group.into());
        let last_page = last_page(&mut self.last_pages, dot.group);
        page.push_from(*last_page, fault.address >> LOW_BITS);
        *last_page = fault.address >> LOW_BITS;
        low.push_byte(fault.address as u8);
        low.push_byte((fault.address >> 8) as u8 & 0xf);
        class.push_byte(class_of(dot));
        flags.push_byte(bits(fault));
        latency.push(fault.latency_ns.map_or(0, |ns| u64::from(ns) + 1));
        stack.push(dot.stack.map_or(0, |number| u64::from(number) + 1));
        ip.push(dot.frame.into());
        self.count += 1;
    }

    pub(super) fn finish(self) -> Dots {
        let mut names = NAMES.into_iter();
        let columns = self.columns.map(|column| (names.next().expect("as many"), column.finish()));
        Dots { count: self.count, columns }
    }
}

fn last_page(last_pages: &mut Vec<u64>, group: u32) -> &mut u64 {
    let group = group as usize;
    if last_pages.len() <= group {
        last_pages.resize(group + 1, 0);
    }
    &mut last_pages[group]
}

/// The kind, and above it two flags: a page came, and the kernel took the fault. Patterns are recognised by
/// these.
fn class_of(dot: &Dot) -> u8 {
    let is_of_kernel = dot.fault.in_user_mode == Some(false);
    dot.kind as u8 | u8::from(dot.is_arrival) << 4 | u8::from(is_of_kernel) << 5
}

/// Two bits each, 0 if unknown: access, severity, mode, huge.
fn bits(fault: &Fault) -> u8 {
    let access = fault.access.map_or(0, |access| match access {
        Access::Read => 1,
        Access::Write => 2,
        Access::Execute => 3,
    });
    let severity = fault.severity.map_or(0, |severity| match severity {
        Severity::Minor => 1,
        Severity::Major => 2,
    });
    let mode = fault.in_user_mode.map_or(0, |user| 1 + u8::from(user));
    let huge = fault.huge.map_or(0, |huge| 1 + u8::from(huge));
    access | severity << 2 | mode << 4 | huge << 6
}
