//! Events of any kind, in any order and at any address, are written as a trace and read back unchanged. Analyses, pictures
//! and exports take them.
#![no_main]

use std::num::NonZeroU32;

use cowslip_fuzz::traces;
use cowslip_sys::units::VirtRange;
use cowslip_trace::file::Writer;
use cowslip_trace::model::{Access, Event, EventKind, Fault, Header, Map, Severity, Sink, StackId};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    sampling_period: u8,
    sees_unmaps: bool,
    is_attached: bool,
    page_bytes: u64,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
struct Step {
    elapsed: Elapsed,
    process: u8,
    thread: u8,
    what: What,
}

#[derive(Arbitrary, Debug)]
enum Elapsed {
    Nothing,
    Little(u8),
    Much(u64),
}

#[derive(Arbitrary, Debug)]
enum What {
    Fault {
        address: Address,
        ip: Address,
        stack: bool,
        latency_ns: Option<u32>,
        bits: u16,
    },
    Map {
        range: Range,
        protection: u8,
        flags: u32,
        offset_bytes: Address,
        inode: u8,
        name: Name,
        is_old: bool,
        stack: bool,
    },
    Unmap(Range),
    Remap {
        from: Range,
        to: Range,
        kept: bool,
    },
    Advise(Range, u8),
    Break(Address),
    Fork {
        process: u8,
        thread: u8,
    },
    Exec(Name),
    Name(Name),
    Exit,
    Lost(u64),
    Detach,
}

/// Neighbours, so that events meet, and anything else.
#[derive(Arbitrary, Debug)]
enum Address {
    Page(u16),
    Chunk(u8),
    Any(u64),
}

#[derive(Arbitrary, Debug)]
enum Range {
    Pages(u8, u8),
    Between(Address, Address),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Name {
    None,
    Heap,
    Stack,
    Arena,
    Shared,
    File,
    Markup,
}

impl Address {
    fn number(&self) -> u64 {
        const BASE: u64 = 0x7f00_0000_0000;
        match *self {
            Self::Page(page) => BASE + (u64::from(page) << 12),
            Self::Chunk(chunk) => BASE + (u64::from(chunk) << 21),
            Self::Any(address) => address,
        }
    }
}

impl Range {
    fn range(&self) -> VirtRange {
        match self {
            Self::Pages(page, pages) => {
                let start = Address::Page(u16::from(*page)).number() as usize;
                VirtRange::new(start, usize::from(*pages) << 12)
            }
            Self::Between(one, other) => {
                let (one, other) = (one.number() as usize, other.number() as usize);
                VirtRange::between(one.min(other), one.max(other))
            }
        }
    }
}

impl Name {
    fn text(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Heap => Some("[heap]"),
            Self::Stack => Some("[stack]"),
            Self::Arena => Some("/memfd:cowslip (deleted)"),
            Self::Shared => Some("/dev/shm/table"),
            Self::File => Some("/usr/lib/none.so"),
            Self::Markup => Some("</script><b>'\"&\n,;\u{202e}"),
        }
    }
}

impl What {
    fn kind(&self) -> EventKind {
        let stack = |has| NonZeroU32::new(u32::from(has)).map(StackId);
        let bits = |bits: u16, at: u16, of: u16| usize::from(bits >> at) % usize::from(of);
        match self {
            Self::Fault { address, ip, stack: has_stack, latency_ns, bits: all } => {
                let yes_or_no = |at| [None, Some(false), Some(true)][bits(*all, at, 3)];
                EventKind::Fault(Fault {
                    severity: [None, Some(Severity::Minor), Some(Severity::Major)]
                        [bits(*all, 0, 3)],
                    access: [None, Some(Access::Read), Some(Access::Write), Some(Access::Execute)]
                        [bits(*all, 2, 4)],
                    was_present: yes_or_no(4),
                    in_user_mode: yes_or_no(6),
                    huge: yes_or_no(8),
                    latency_ns: *latency_ns,
                    stack: stack(*has_stack),
                    ..Fault::at(address.number(), ip.number())
                })
            }
            Self::Map {
                range,
                protection,
                flags,
                offset_bytes,
                inode,
                name,
                is_old,
                stack: has,
            } => EventKind::Map(Map {
                range: range.range(),
                protection: (*protection).into(),
                flags: *flags,
                offset_bytes: offset_bytes.number(),
                inode: (*inode).into(),
                name: name.text().map(Into::into),
                is_old: *is_old,
                stack: stack(*has),
            }),
            Self::Unmap(range) => EventKind::Unmap { range: range.range() },
            Self::Remap { from, to, kept } => {
                EventKind::Remap { from: from.range(), to: to.range(), kept: *kept }
            }
            Self::Advise(range, advice) => {
                EventKind::Advise { range: range.range(), advice: (*advice).into() }
            }
            Self::Break(end) => EventKind::Break { end: end.number() },
            Self::Fork { process, thread } => {
                EventKind::Fork { child_pid: (*process).into(), child_tid: (*thread).into() }
            }
            Self::Exec(name) => EventKind::Exec { name: name.text().unwrap_or_default().into() },
            Self::Name(name) => EventKind::Name { name: name.text().unwrap_or_default().into() },
            Self::Exit => EventKind::Exit,
            Self::Lost(count) => EventKind::Lost { count: *count },
            Self::Detach => EventKind::Detach,
        }
    }
}

fn header(input: &Input) -> Header {
    let mut header = Header { sampling_period: input.sampling_period.into(), ..Header::default() };
    header.sources = vec!["page-faults".into()];
    if input.sees_unmaps {
        header.sources.push("syscalls:sys_enter_munmap".into());
    }
    if input.is_attached {
        header.attached_pids.push(0);
    } else {
        header.command.push("true".into());
    }
    header.machine.page_bytes = input.page_bytes;
    let policy = ["always", "madvise", "never"][input.steps.len() % 3];
    header.machine.thp.insert("enabled".into(), policy.into());
    header.base_fault_ns = Some(250.0);
    header
}

fuzz_target!(|input: Input| {
    let mut writer = Writer::new(Vec::new(), &header(&input)).expect("a trace");
    writer.stack(&[0x40_1000, u64::MAX, 0]).expect("a stack");
    let (mut time_ns, mut events) = (0_u64, Vec::new());
    for step in &input.steps {
        time_ns = time_ns.saturating_add(match step.elapsed {
            Elapsed::Nothing => 0,
            Elapsed::Little(elapsed) => elapsed.into(),
            Elapsed::Much(elapsed) => elapsed,
        });
        let (pid, tid) = (step.process.into(), step.thread.into());
        let event = Event { time_ns, pid, tid, what: step.what.kind() };
        writer.event(&event).expect("an event in its order");
        events.push(event);
    }
    let (bytes, totals) = writer.finish(0).expect("a trace");
    let trace = traces::look(&bytes).expect("what was written is a trace");
    assert!(trace.events == events && trace.totals == totals && !trace.is_cut_short);
});
