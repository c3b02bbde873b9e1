//! Faults in the form that the page contains: a column for each fact, compressed as it grows.

use super::varint::{Column, Numbers};
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

/// The part of a fault that a still picture shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Spot {
    pub(super) time_ns: u64,
    pub(super) space: u32,
    pub(super) address: u64,
    pub(super) kind: FaultKind,
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

impl Dots {
    /// All faults in the order of time, unpacked one by one.
    pub(super) fn spots(&self) -> impl Iterator<Item = Spot> {
        let [time, space, _, group, page, low, class, ..] = &self.columns;
        let [mut time, mut space, mut group, mut page, mut low, mut class] =
            [time, space, group, page, low, class].map(|(_, packed)| Numbers::of(packed));
        let mut time_ns = 0;
        let mut last_pages = Vec::new();
        (0..self.count).map(move |_| {
            time_ns += time.number();
            let last_page = last_page(&mut last_pages, group.number() as u32);
            *last_page = page.number_from(*last_page);
            let low = u64::from(low.byte()) | u64::from(low.byte()) << 8;
            Spot {
                time_ns,
                space: space.number() as u32,
                address: *last_page << LOW_BITS | low,
                kind: FaultKind::ALL[usize::from(class.byte() & 0xf)],
            }
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_packed_is_unpacked_and_takes_little() {
        let mut packer = Packer::default();
        let spot = |nth: u64| Spot {
            time_ns: nth * 700,
            space: (nth % 3) as u32,
            address: 0x7f12_3456_7000 + (nth % 5) * 0x1_0000_0000 + nth * 0x1008,
            kind: FaultKind::ALL[nth as usize % FaultKind::ALL.len()],
        };
        for nth in 0..100_000 {
            let Spot { time_ns, space, address, kind } = spot(nth);
            let (thread, group, frame, stack) = (0, (nth % 5) as u32, 0, None);
            let (is_arrival, fault) = (true, Fault::at(address, 0));
            packer.push(&Dot {
                time_ns,
                space,
                thread,
                group,
                kind,
                is_arrival,
                frame,
                stack,
                fault,
            });
        }
        let dots = packer.finish();
        assert!(dots.spots().eq((0..100_000).map(spot)));
        let bytes: usize = dots.columns.iter().map(|(_, packed)| packed.len()).sum();
        assert!(bytes < 200_000, "{bytes}");
    }
}
