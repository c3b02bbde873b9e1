//! A trace file of any bytes is refused, or read up to its last whole block, summed up, drawn and exported.
//!
//! Checksums are made right first, so that the code behind them is reached.
#![no_main]

use std::num::NonZeroU32;

use cowslip_fuzz::{seed, sign, traces, u32_at};
use cowslip_sys::units::VirtRange;
use cowslip_trace::file::{Reader, Writer};
use cowslip_trace::model::{Access, Event, EventKind, Fault, Header, Map, Severity, Sink, StackId};
use libfuzzer_sys::fuzz_target;

const PRELUDE: usize = 64;
const HEAD: usize = 64;

/// A trace by the real writer, in blocks that are too short to be compressed.
fn trace(header: &Header, events: &[EventKind]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), header).expect("a trace");
    writer.stack(&[0x40_1000, 0x40_2000]).expect("a stack");
    for (time_ns, what) in (1000..).step_by(1000).zip(events) {
        let event = Event { time_ns, pid: 7, tid: 7, what: what.clone() };
        writer.event(&event).expect("an event");
        writer.flush().expect("a block");
    }
    writer.finish(0).expect("totals").0
}

fn seeds() {
    let range = VirtRange::new(0x7f00_0000_0000, 4 << 20);
    let to = VirtRange::new(0x7e00_0000_0000, 4 << 20);
    let map = |name: Option<&str>, flags| {
        let (name, stack) = (name.map(Into::into), NonZeroU32::new(1).map(StackId));
        let protection = 3;
        EventKind::Map(Map { range, protection, flags, name, stack, inode: 5, ..Map::default() })
    };
    let fault = |offset, access| {
        let severity = Some(Severity::Minor);
        let (latency_ns, stack) = (Some(700), NonZeroU32::new(1).map(StackId));
        let at = Fault::at(range.start as u64 + offset, 0x40_1000);
        EventKind::Fault(Fault { access: Some(access), severity, latency_ns, stack, ..at })
    };
    let faults =
        [fault(0, Access::Write), fault(4096, Access::Read), fault(2 << 20, Access::Write)];
    let fork = EventKind::Fork { child_pid: 8, child_tid: 8 };
    let sources = vec!["page-faults".to_owned(), "syscalls:sys_enter_munmap".to_owned()];
    let whole = Header { sampling_period: 1, sources, ..Header::default() };
    let begin = |first: EventKind| [&[first][..], &faults, &[fork.clone()], &faults[1..]].concat();
    seed("anonymous", &trace(&whole, &begin(map(None, 0x22))));
    seed("shared", &trace(&whole, &begin(map(Some("/memfd:cowslip"), 1))));
    let file = begin(map(Some("/usr/lib/libc.so"), 2));
    seed("sampled", &trace(&Header { sampling_period: 9, ..whole.clone() }, &file));
    let others = [
        map(Some("[heap]"), 0x8022),
        EventKind::Break { end: range.end() as u64 + 4096 },
        EventKind::Remap { from: range, to, kept: true },
        EventKind::Advise { range: to, advice: 14 },
        EventKind::Unmap { range: to },
        EventKind::Name { name: "worker".into() },
        EventKind::Lost { count: 3 },
        EventKind::Exec { name: "other".into() },
        EventKind::Exit,
        EventKind::Detach,
    ];
    seed("others", &trace(&whole, &others));
}

/// Makes the checksums of the prelude, the header, and each block right.
fn repair(bytes: &mut [u8]) {
    let mut at = PRELUDE.saturating_add(u32_at(bytes, 24));
    sign(bytes, PRELUDE..at, 32);
    sign(bytes, 0..48, 48);
    while at.saturating_add(HEAD) <= bytes.len() {
        let stored = at + HEAD..at.saturating_add(HEAD).saturating_add(u32_at(bytes, at + 12));
        sign(bytes, stored.clone(), at + 32);
        sign(bytes, at..at + 48, at + 48);
        at = stored.end;
    }
}

fuzz_target!(init: seeds(), |input: &[u8]| {
    let mut bytes = input.to_vec();
    repair(&mut bytes);
    let Ok(mut reader) = Reader::new(&bytes[..]) else { return };
    let mut events = Vec::new();
    while let Ok(true) = reader.read_block(&mut events) {
        events.iter().for_each(|event| _ = reader.frames_of(event));
        events.clear();
    }
    // The part before damage, or before wrong totals, is a trace that was cut short.
    bytes.truncate(reader.offset_bytes() as usize);
    if traces::look(&bytes).is_none() {
        let mut reader = Reader::new(&bytes[..]).expect("it was read before");
        let mut last = reader.offset_bytes();
        while let Ok(true) = reader.read_block(&mut Vec::new()) {
            last = reader.offset_bytes();
        }
        traces::look(&bytes[..last as usize]).expect("whole blocks");
    }
});
