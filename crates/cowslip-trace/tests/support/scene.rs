//! Traces of made-up programs, worked out by hand.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use cowslip_sys::units::VirtRange;
use cowslip_trace::model::{
    Event, EventKind, Fault, Header, Machine, Map, Severity, StackId, Trace,
};

pub(crate) const PAGE: usize = 4096;
pub(crate) const MIB: usize = 1 << 20;
pub(crate) const START: usize = 0x7f00_0000_0000;

/// Events of process 7, a microsecond apart.
pub(crate) struct Scene(pub(crate) Trace);

impl Scene {
    pub(crate) fn new(thp: &str) -> Self {
        let thp = BTreeMap::from([("enabled".to_owned(), thp.to_owned())]);
        let header = Header {
            command: vec!["program".into()],
            sources: vec!["minor-faults".into(), "syscalls:sys_exit_munmap".into()],
            machine: Machine { thp, ..Machine::default() },
            base_fault_ns: Some(500.0),
            huge_fault_ns: Some(100_000.0),
            ..Header::default()
        };
        Self(Trace { header, ..Trace::default() })
    }

    pub(crate) fn then(&mut self, what: EventKind) {
        let time_ns = 1_000 * self.0.events.len() as u64;
        self.0.events.push(Event { time_ns, pid: 7, tid: 7, what });
    }

    pub(crate) fn map(&mut self, start: usize, len: usize) {
        self.map_by(start, len, None);
    }

    pub(crate) fn map_by(&mut self, start: usize, len: usize, stack: Option<StackId>) {
        let (range, protection, flags) = (VirtRange::new(start, len), 3, 0x22);
        self.then(EventKind::Map(Map { range, protection, flags, stack, ..Map::default() }));
    }

    /// Maps a program's file at an address.
    pub(crate) fn program(&mut self, start: usize) {
        let (range, protection, flags) = (VirtRange::new(start, MIB), 5, 2);
        let name = Some("/bin/program".into());
        self.then(EventKind::Map(Map { range, protection, flags, name, ..Map::default() }));
    }

    pub(crate) fn stack(&mut self, frames: &[u64]) -> StackId {
        self.0.stacks.push(frames.into());
        StackId(NonZeroU32::new(self.0.stacks.len() as u32).unwrap())
    }

    pub(crate) fn unmap(&mut self, start: usize, len: usize) {
        self.then(EventKind::Unmap { range: VirtRange::new(start, len) });
    }

    pub(crate) fn touch(&mut self, address: usize) {
        self.fault(Fault::at(address as u64, 0x1000));
    }

    pub(crate) fn touch_huge(&mut self, address: usize) {
        self.fault(Fault { huge: Some(true), ..Fault::at(address as u64, 0x1000) });
    }

    pub(crate) fn fault(&mut self, fault: Fault) {
        let severity = fault.severity.or(Some(Severity::Minor));
        self.then(EventKind::Fault(Fault { severity, ..fault }));
    }

    /// Maps of 2 MiB, each filled from the top down.
    pub(crate) fn descend(&mut self, maps: usize) {
        for map in 0..maps {
            let start = START + map * 4 * MIB;
            self.map(start, 2 * MIB);
            (0..512).rev().for_each(|page| self.touch(start + page * PAGE));
        }
    }
}
