#![allow(dead_code, reason = "each test binary uses its part")]
//! Traces generated from a seed.

use std::num::NonZeroU32;

use cowslip_sys::units::VirtRange;
use cowslip_trace::file::Writer;
use cowslip_trace::model::{
    Access, Event, EventKind, Fault, Header, Map, Severity, Sink, StackId, Totals,
};

/// SplitMix64: the same numbers each time.
pub(crate) struct Scatter(pub(crate) u64);

impl Scatter {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.below(3) > 0).then(|| make(self))
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// Small and large numbers, and edge cases.
    fn number(&mut self) -> u64 {
        let edges = [0, 1, 4095, 4096, u64::from(u32::MAX), u64::MAX - 1, u64::MAX];
        match self.below(4) {
            0 => self.one_of(&edges),
            1 => self.next(),
            2 => self.below(1 << 20),
            _ => 0x7f00_0000_0000 + (self.below(1 << 20) << 12),
        }
    }

    fn range(&mut self) -> VirtRange {
        let start = self.number();
        let length = self.number().min(u64::MAX - start);
        VirtRange::new(start as usize, length as usize)
    }

    fn stack(&mut self, stacks: u32) -> Option<StackId> {
        let number = NonZeroU32::new(self.below(u64::from(stacks) + 1) as u32);
        number.map(StackId)
    }

    fn fault(&mut self, stacks: u32) -> Fault {
        Fault {
            severity: self.maybe(|scatter| scatter.one_of(&[Severity::Minor, Severity::Major])),
            access: self
                .maybe(|scatter| scatter.one_of(&[Access::Read, Access::Write, Access::Execute])),
            was_present: self.maybe(|scatter| scatter.below(2) == 0),
            in_user_mode: self.maybe(|scatter| scatter.below(2) == 0),
            huge: self.maybe(|scatter| scatter.below(2) == 0),
            latency_ns: self.maybe(|scatter| scatter.number() as u32),
            stack: self.stack(stacks),
            ..Fault::at(self.number(), self.number())
        }
    }

    fn what(&mut self, stacks: u32) -> EventKind {
        let name = |scatter: &mut Self| {
            scatter.one_of(&["", "[heap]", "/usr/bin/ä b\n", "/memfd:cache (deleted)"]).into()
        };
        match self.below(24) {
            0 => EventKind::Map(Map {
                range: self.range(),
                protection: self.number() as u32,
                flags: self.number() as u32,
                offset_bytes: self.number(),
                inode: self.maybe(Self::number).unwrap_or(0),
                name: self.maybe(name),
                is_old: self.below(2) == 0,
                stack: self.stack(stacks),
            }),
            1 => EventKind::Unmap { range: self.range() },
            2 => {
                EventKind::Remap { from: self.range(), to: self.range(), kept: self.below(2) == 0 }
            }
            3 => EventKind::Advise { range: self.range(), advice: self.number() as u32 },
            4 => EventKind::Break { end: self.number() },
            5 => {
                EventKind::Fork { child_pid: self.number() as u32, child_tid: self.number() as u32 }
            }
            6 => EventKind::Exec { name: name(self) },
            7 => EventKind::Name { name: name(self) },
            8 => EventKind::Exit,
            9 => EventKind::Lost { count: self.below(1000) },
            10 => EventKind::Detach,
            _ => EventKind::Fault(self.fault(stacks)),
        }
    }

    /// Events of all kinds, in the order of time, with stacks of numbers up to `stacks`.
    pub(crate) fn events(&mut self, count: usize, stacks: u32) -> Vec<Event> {
        let mut time_ns = self.below(1 << 40);
        let mut next = || {
            time_ns += self.one_of(&[0, 1, 700, 100_000, 400_000_000]);
            let pid = self.one_of(&[1, 7, u32::MAX]);
            let tid = pid - self.below(2) as u32;
            Event { time_ns, pid, tid, what: self.what(stacks) }
        };
        (0..count).map(|_| next()).collect()
    }
}

/// The file of a trace.
pub(crate) fn written(
    header: &Header,
    stacks: &[Box<[u64]>],
    events: &[Event],
) -> (Vec<u8>, Totals) {
    let mut writer = Writer::new(Vec::new(), header).unwrap();
    for frames in stacks {
        writer.stack(frames).unwrap();
    }
    events.iter().for_each(|event| writer.event(event).unwrap());
    writer.finish(0).unwrap()
}

/// Reports that a test could not be done; `COWSLIP_EXPECT` makes that a failure.
pub(crate) fn skip(capability: &str, why: &str) {
    let declared = std::env::var("COWSLIP_EXPECT").unwrap_or_default();
    let is_declared = declared.split(',').any(|word| word.trim() == capability);
    assert!(!is_declared, "{capability} is declared present, but: {why}");
    println!("SKIPPED: {capability}: {why}");
}
