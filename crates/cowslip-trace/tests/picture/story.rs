//! A made-up program with typical behaviour: it starts, grows its heap, fills a cache from the top down,
//! forks, gives memory back and touches it again.

use cowslip_sys::units::VirtRange;
use cowslip_trace::model::{
    Access, Event, EventKind, Fault, Header, Map, Severity, StackId, Totals, Trace,
};

const PAGE: u64 = 4096;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const PID: u32 = 4000;
const CHILD: u32 = 4100;
const EXE: u64 = 0x5591_a0c0_0000;
const HEAP: u64 = 0x5591_a1f0_0000;
const CACHE: u64 = 0x7f12_4000_0000;
pub(crate) const POOL_BYTES: u64 = 64 * MIB;
pub(crate) const POOL: u64 = 0x7f52_0000_0000;
pub(crate) const LIBC_OFFSET: u64 = 0x2_8000;
pub(crate) const LIBC: u64 = 0x7f63_8820_0000;
const STACK: u64 = 0x7ffd_3360_0000;
const ANONYMOUS: u32 = 0x22;
const DONTNEED: u32 = 4;

/// SplitMix64: the same numbers each time.
struct Scatter(u64);

impl Scatter {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % bound
    }
}

/// A trace under construction.
pub(crate) struct Story {
    pub(crate) trace: Trace,
    now_ns: u64,
    scatter: Scatter,
    pace_ns: u64,
}

impl Story {
    /// About `faults` faults over twelve seconds.
    pub(crate) fn tell(faults: u64) -> Trace {
        let mut story = Self {
            trace: Trace::default(),
            now_ns: 5_000_000_000,
            scatter: Scatter(6),
            pace_ns: 900,
        };
        story.header();
        story.start();
        let maps = (faults / 512).max(8);
        for map in 0..maps {
            story.cache_map(map, maps, 12_000_000_000 / maps);
        }
        story.event(PID, PID, EventKind::Exit);
        let events = &story.trace.events;
        story.trace.totals = Totals {
            events: events.len() as u64,
            faults: events.iter().filter(|event| matches!(event.what, EventKind::Fault(_))).count()
                as u64,
            lost: 0,
            first_ns: events[0].time_ns,
            last_ns: story.now_ns,
        };
        story.trace
    }

    fn header(&mut self) {
        self.trace.header = Header {
            began_unix_seconds: 1_700_000_000,
            clock: "monotonic".into(),
            command: vec!["block_cache".into(), "--order".into(), "descending".into()],
            sampling_period: 1,
            sources: vec!["page-faults".into()],
            base_fault_ns: Some(640.0),
            ..Header::default()
        };
        let machine = &mut self.trace.header.machine;
        machine.kernel_release = "6.18.0".into();
        machine.architecture = "x86_64".into();
        machine.cpus = 2;
        machine.cpu_model = "made up".into();
        machine.memory_bytes = 24 << 30;
        machine.page_bytes = PAGE;
        machine.thp.insert("enabled".into(), "always [madvise] never".into());
        self.trace.stacks = (0..12_u64)
            .map(|top| {
                let frame = |depth: u64| EXE + 0x1000 + 0x40 * (top * 7 + depth * 31);
                (0..6 + top % 5).map(frame).collect()
            })
            .collect();
    }

    pub(crate) fn event(&mut self, pid: u32, tid: u32, what: EventKind) {
        self.trace.events.push(Event { time_ns: self.now_ns, pid, tid, what });
    }

    fn map(&mut self, start: u64, bytes: u64, name: Option<&str>, is_old: bool) {
        let map = Map {
            inode: 0,
            range: VirtRange::new(start as usize, bytes as usize),
            protection: if name.is_some_and(|name| name.starts_with('/')) { 5 } else { 3 },
            flags: if name.is_some() { 2 } else { ANONYMOUS },
            name: name.map(Into::into),
            is_old,
            stack: None,
            offset_bytes: if start == LIBC { LIBC_OFFSET } else { 0 },
        };
        self.event(PID, PID, EventKind::Map(map));
    }

    fn fault(&mut self, pid: u32, tid: u32, address: u64, access: Access, stack: u64) {
        self.now_ns += self.pace_ns * (50 + self.scatter.below(100)) / 100;
        let latency_ns =
            450 + self.scatter.below(400) as u32 + 20_000 * u32::from(self.scatter.below(300) == 0);
        let fault = Fault {
            access: Some(access),
            severity: Some(Severity::Minor),
            in_user_mode: Some(true),
            was_present: Some(false),
            huge: Some(false),
            latency_ns: Some(latency_ns),
            stack: std::num::NonZeroU32::new(stack as u32 + 1).map(StackId),
            ..Fault::at(address, EXE + 0x1000 + 0x40 * stack * 7)
        };
        self.event(pid, tid, EventKind::Fault(fault));
    }

    fn start(&mut self) {
        self.event(PID, PID, EventKind::Exec { name: "block_cache".into() });
        self.map(EXE, 2 * MIB, Some("/usr/local/bin/block_cache"), true);
        self.map(HEAP, MIB / 4, Some("[heap]"), true);
        self.map(LIBC, 2 * MIB, Some("/usr/lib/x86_64-linux-gnu/libc.so.6"), true);
        self.map(STACK, MIB / 8, Some("[stack]"), true);
        self.map(POOL, POOL_BYTES, None, false);
        for page in 0..120 {
            let address = LIBC + self.scatter.below(2 * MIB);
            self.fault(PID, PID, address, Access::Execute, page % 3);
            self.fault(PID, PID, EXE + page * PAGE, Access::Read, 3);
        }
        for page in 0..24 {
            self.fault(PID, PID, STACK + MIB / 8 - 1 - page * PAGE, Access::Write, 4);
        }
    }

    /// One map of the cache, filled from the top down; meanwhile the heap grows, and a thread touches random
    /// addresses.
    fn cache_map(&mut self, map: u64, maps: u64, budget_ns: u64) {
        let end_ns = self.now_ns + budget_ns;
        self.pace_ns = budget_ns / 520;
        let ring = (maps / 3).clamp(1, 256);
        let start = CACHE + map % ring * 2 * MIB;
        let range = VirtRange::new(start as usize, 2 * MIB as usize);
        if map >= ring {
            self.event(PID, PID, EventKind::Unmap { range });
        }
        self.map(start, 2 * MIB, None, false);
        if map == maps * 6 / 10 {
            self.event(PID, PID, EventKind::Fork { child_pid: CHILD, child_tid: CHILD });
        }
        if map == maps * 8 / 10 {
            self.event(CHILD, CHILD, EventKind::Exit);
        }
        if map == 1 {
            self.event(PID, PID, EventKind::Fork { child_pid: PID, child_tid: PID + 1 });
            self.event(PID, PID + 1, EventKind::Name { name: "scatter".into() });
        }
        for page in (0..400).rev() {
            let low = self.scatter.below(PAGE);
            self.fault(PID, PID, start + (page + 112) * PAGE + low, Access::Write, 5 + map % 4);
        }
        let heap_end = HEAP + MIB / 4 + (map + 1) * 32 * PAGE;
        self.event(PID, PID, EventKind::Break { end: heap_end });
        for page in 0..32 {
            self.fault(PID, PID, heap_end - (32 - page) * PAGE, Access::Write, 9);
        }
        for _ in 0..64 {
            let address = POOL + self.scatter.below(POOL_BYTES);
            self.fault(PID, PID + 1, address, Access::Write, 10);
        }
        if map % 40 == 39 {
            let range = VirtRange::new(POOL as usize, POOL_BYTES as usize);
            self.event(PID, PID + 1, EventKind::Advise { range, advice: DONTNEED });
        }
        if (maps * 6 / 10..maps * 8 / 10).contains(&map) {
            let address = HEAP + self.scatter.below(MIB / 4 + map * 32 * PAGE);
            self.fault(CHILD, CHILD, address, Access::Write, 11);
            for page in 0..16 {
                self.fault(PID, PID, HEAP + (map * 16 + page) * PAGE, Access::Write, 11);
            }
        }
        self.now_ns = self.now_ns.max(end_ns);
    }
}
