//! Exports have the content of the trace, including losses.

mod support;

use std::collections::BTreeMap;

use cowslip_trace::export::{Format, export};
use cowslip_trace::file::{Reader, Writer};
use cowslip_trace::model::{Event, EventKind, Header, Sink, Trace};
use serde_json::Value;
use support::Scatter;

/// Random events; the loss of 12 is reported by no event.
fn trace() -> (Vec<u8>, Trace) {
    let mut writer = Writer::new(Vec::new(), &Header::default()).unwrap();
    writer.stack(&[0x10, 0x20, u64::MAX]).unwrap();
    writer.stack(&[]).unwrap();
    let events = Scatter(4).events(70_000, 2);
    let mut lost = 12;
    for event in &events {
        writer.event(event).unwrap();
        if let EventKind::Lost { count } = event.what {
            lost += count;
        }
    }
    let (bytes, _) = writer.finish(lost).unwrap();
    let trace = Trace::read_from(&bytes[..]).unwrap();
    (bytes, trace)
}

fn exported(bytes: &[u8], format: Format) -> Vec<u8> {
    let mut output = Vec::new();
    let mut offsets = vec![0];
    let mut progress = |offset| offsets.push(offset);
    export(&mut Reader::new(bytes).unwrap(), format, &mut output, &mut progress).unwrap();
    assert!(offsets.is_sorted() && *offsets.last().unwrap() <= bytes.len() as u64);
    output
}

/// The expected cells of an event: by name, as in CSV.
fn cells(event: &Event, trace: &Trace) -> BTreeMap<&'static str, String> {
    let hex = |number: u64| format!("{number:#x}");
    let mut cells: BTreeMap<&'static str, String> = BTreeMap::new();
    let mut set = |name, value: String| drop(cells.insert(name, value));
    set("time_ns", event.time_ns.to_string());
    set("pid", event.pid.to_string());
    set("tid", event.tid.to_string());
    let stack = |stack: Option<_>| {
        let frames = trace.frames(stack?);
        Some(frames.iter().map(|&frame| hex(frame)).collect::<Vec<_>>().join(" "))
    };
    match &event.what {
        EventKind::Fault(fault) => {
            set("kind", "fault".into());
            set("address", hex(fault.address));
            set("ip", hex(fault.ip));
            let word = |value: &dyn std::fmt::Debug| format!("{value:?}").to_lowercase();
            fault.severity.iter().for_each(|value| set("severity", word(value)));
            fault.access.iter().for_each(|value| set("access", word(value)));
            fault.was_present.iter().for_each(|value| set("was_present", value.to_string()));
            fault.in_user_mode.iter().for_each(|value| set("in_user_mode", value.to_string()));
            fault.huge.iter().for_each(|value| set("huge", value.to_string()));
            fault.latency_ns.iter().for_each(|value| set("latency_ns", value.to_string()));
            stack(fault.stack).into_iter().for_each(|value| set("stack", value));
        }
        EventKind::Map(map) => {
            set("kind", "map".into());
            set("address", hex(map.range.start as u64));
            set("length_bytes", map.range.len.to_string());
            set("protection", map.protection.to_string());
            set("flags", map.flags.to_string());
            set("offset_bytes", map.offset_bytes.to_string());
            map.name.iter().for_each(|value| set("name", value.to_string()));
            set("is_old", map.is_old.to_string());
            if map.inode != 0 {
                set("inode", map.inode.to_string());
            }
            stack(map.stack).into_iter().for_each(|value| set("stack", value));
        }
        EventKind::Unmap { range } => {
            set("kind", "unmap".into());
            set("address", hex(range.start as u64));
            set("length_bytes", range.len.to_string());
        }
        EventKind::Remap { from, to, kept } => {
            set("kind", "remap".into());
            set("address", hex(from.start as u64));
            set("length_bytes", from.len.to_string());
            set("to_address", hex(to.start as u64));
            set("to_length_bytes", to.len.to_string());
            set("kept", kept.to_string());
        }
        EventKind::Advise { range, advice } => {
            set("kind", "advise".into());
            set("address", hex(range.start as u64));
            set("length_bytes", range.len.to_string());
            set("advice", advice.to_string());
        }
        EventKind::Break { end } => {
            set("kind", "break".into());
            set("address", hex(*end));
        }
        EventKind::Fork { child_pid, child_tid } => {
            set("kind", "fork".into());
            set("child_pid", child_pid.to_string());
            set("child_tid", child_tid.to_string());
        }
        EventKind::Exec { name } => {
            set("kind", "exec".into());
            set("name", name.to_string());
        }
        EventKind::Name { name } => {
            set("kind", "name".into());
            set("name", name.to_string());
        }
        EventKind::Exit => set("kind", "exit".into()),
        EventKind::Lost { count } => {
            set("kind", "lost".into());
            set("count", count.to_string());
        }
        EventKind::Detach => set("kind", "detach".into()),
    }
    cells
}

/// The trace's events, and the loss that no event reports.
fn all(trace: &Trace) -> Vec<Event> {
    let what = EventKind::Lost { count: 12 };
    let loss = Event { time_ns: trace.totals.last_ns, pid: 0, tid: 0, what };
    trace.events.iter().cloned().chain([loss]).collect()
}

#[test]
fn csv_has_a_row_an_event() {
    let (bytes, trace) = trace();
    let text = exported(&bytes, Format::Csv);
    let mut csv = csv::Reader::from_reader(&text[..]);
    let names = csv.headers().unwrap().clone();
    let mut rows = csv.into_records();
    for event in all(&trace) {
        let row = rows.next().unwrap().unwrap();
        let mut wanted = cells(&event, &trace);
        for (name, cell) in names.iter().zip(&row) {
            assert_eq!(wanted.remove(name).unwrap_or_default(), cell, "{name} of {event:?}");
        }
        assert!(wanted.is_empty(), "{wanted:?}");
    }
    assert!(rows.next().is_none());
}

#[test]
fn json_lines_have_an_object_an_event() {
    let (bytes, trace) = trace();
    let text = String::from_utf8(exported(&bytes, Format::JsonLines)).unwrap();
    let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let first = lines.next().unwrap();
    assert_eq!(first["schema"], "cowslip.trace/1");
    assert_eq!(serde_json::from_value::<Header>(first["header"].clone()).unwrap(), trace.header);
    for event in all(&trace) {
        let line = lines.next().unwrap();
        let found = line.as_object().unwrap().iter().map(|(name, value)| {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Array(list) => {
                    list.iter().map(|frame| frame.as_str().unwrap()).collect::<Vec<_>>().join(" ")
                }
                other => other.to_string(),
            };
            (name.clone(), text)
        });
        let wanted = cells(&event, &trace);
        let wanted = wanted.into_iter().map(|(name, value)| (name.to_owned(), value));
        let (found, wanted): (BTreeMap<_, _>, BTreeMap<_, _>) = (found.collect(), wanted.collect());
        assert_eq!(found, wanted);
    }
    let last = lines.next().unwrap();
    assert_eq!(last["totals"]["lost"], trace.totals.lost);
    assert_eq!(last["is_cut_short"], false);
    assert!(lines.next().is_none());
    // The file of a killed recorder is marked as cut.
    let text = exported(&bytes[..bytes.len() - 1], Format::JsonLines);
    let text = String::from_utf8(text).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(last["is_cut_short"], true);
}

#[test]
fn losses_beyond_all_numbers_are_as_many_as_there_are() {
    let mut writer = Writer::new(Vec::new(), &Header::default()).unwrap();
    for time_ns in 0..2 {
        let what = EventKind::Lost { count: u64::MAX };
        writer.event(&Event { time_ns, pid: 1, tid: 1, what }).unwrap();
    }
    let (bytes, _) = writer.finish(0).unwrap();
    let csv = String::from_utf8(exported(&bytes, Format::Csv)).unwrap();
    assert_eq!(csv.lines().count(), 3, "a head and both events:\n{csv}");
}
