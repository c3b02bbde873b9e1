//! A trace from before mappings had the numbers of their files is read as before.

use std::num::NonZeroU32;

use cowslip_sys::units::VirtRange;
use cowslip_trace::model::{Access, Event, EventKind, Fault, Map, Severity, StackId, Trace};

/// The events in the file.
fn events() -> Vec<Event> {
    let range = |start, len| VirtRange::new(start, len);
    let stack = NonZeroU32::new(1).map(StackId);
    let anonymous =
        Map { range: range(0x20_0000, 0x8000), protection: 3, flags: 0x22, ..Map::default() };
    let name = Some("/memfd:shared (deleted)".into());
    let (protection, flags, offset_bytes) = (3, 1, 0x1000);
    let is_old = true;
    let shared = Map {
        range: range(0x40_0000, 0x4000),
        protection,
        flags,
        offset_bytes,
        name,
        is_old,
        stack,
        ..Map::default()
    };
    let fault = Fault {
        severity: Some(Severity::Minor),
        access: Some(Access::Write),
        was_present: Some(false),
        in_user_mode: Some(true),
        huge: Some(false),
        latency_ns: Some(700),
        stack,
        ..Fault::at(0x20_1008, 0x40_1000)
    };
    let all = [
        EventKind::Exec { name: "program".into() },
        EventKind::Map(anonymous),
        EventKind::Map(shared),
        EventKind::Fault(fault),
        EventKind::Fault(Fault::at(0x40_0000, 0x40_1004)),
        EventKind::Advise { range: range(0x20_0000, 0x1000), advice: 4 },
        EventKind::Remap {
            from: range(0x20_0000, 0x1000),
            to: range(0x60_0000, 0x2000),
            kept: false,
        },
        EventKind::Unmap { range: range(0x40_0000, 0x4000) },
        EventKind::Break { end: 0x80_0000 },
        EventKind::Fork { child_pid: 8, child_tid: 8 },
        EventKind::Name { name: "thread".into() },
        EventKind::Lost { count: 3 },
        EventKind::Exit,
    ];
    let event = |(nth, what)| Event { time_ns: 1_000 * nth as u64, pid: 7, tid: 7, what };
    all.into_iter().enumerate().map(event).collect()
}

#[test]
fn an_older_trace_is_read() {
    let trace = Trace::read_from(&include_bytes!("data/without_inodes.trace")[..]).unwrap();
    assert_eq!(trace.events, events());
    assert_eq!(trace.header.command, ["program"]);
    assert_eq!(*trace.stacks, [[0x40_1000, 0x40_2000].into()]);
    assert_eq!((trace.totals.lost, trace.is_cut_short), (3, false));
}
