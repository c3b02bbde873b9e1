//! A trace is read as it was written, up to the place where the file was cut; writers refuse input that no
//! reader would accept.

mod support;

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use cowslip_sys::units::VirtRange;
use cowslip_trace::file::{FRAMES_MOST, Reader, TEXT_MOST_BYTES, Writer, create};
use cowslip_trace::model::{
    Event, EventKind, Fault, Header, Latencies, LatencyBucket, Machine, Map, Severity, Sink,
    Totals, Trace,
};
use support::{Scatter, written};

fn header() -> Header {
    Header {
        began_unix_seconds: 1_795_286_400,
        clock: "monotonic".into(),
        command: vec!["./cache".into(), "--slots=ä".into()],
        sampling_period: 1,
        environment: [("MALLOC_ARENA_MAX".into(), "1".into())].into(),
        base_fault_ns: Some(0.1),
        machine: Machine {
            thp: [("enabled".into(), "madvise".into())].into(),
            ..Machine::default()
        },
        ..Header::default()
    }
}

fn stacks() -> Vec<Box<[u64]>> {
    vec![Box::new([]), Box::new([0x40_1000, 0, u64::MAX]), (0..FRAMES_MOST as u64).collect()]
}

fn fault(time_ns: u64) -> Event {
    Event { time_ns, pid: 1, tid: 1, what: EventKind::Fault(Fault::at(time_ns << 12, 7)) }
}

#[test]
fn what_was_written_is_read() {
    let mut scatter = Scatter(6);
    for count in [0, 1, 500, 70_000, 150_000] {
        let events = scatter.events(count, 3);
        let (bytes, totals) = written(&header(), &stacks(), &events);
        let trace = Trace::read_from(&bytes[..]).unwrap();
        assert_eq!(trace.header, header());
        assert_eq!(trace.stacks, stacks());
        assert!(trace.events == events, "{count} events");
        assert_eq!(trace.totals, totals);
        assert!(!trace.is_cut_short);
        let is_fault = |event: &&Event| matches!(event.what, EventKind::Fault(_));
        let lost = |event: &Event| match event.what {
            EventKind::Lost { count } => count,
            _ => 0,
        };
        let wanted = Totals {
            events: count as u64,
            faults: events.iter().filter(is_fault).count() as u64,
            lost: events.iter().map(lost).sum(),
            first_ns: events.first().map_or(0, |event| event.time_ns),
            last_ns: events.last().map_or(0, |event| event.time_ns),
        };
        assert_eq!(totals, wanted);
    }
}

#[test]
fn a_stack_has_one_number_and_its_frames() {
    let mut writer = Writer::new(Vec::new(), &header()).unwrap();
    let all = stacks();
    let ids: Vec<_> = all.iter().map(|frames| writer.stack(frames).unwrap()).collect();
    assert_eq!(writer.stack(&all[1]).unwrap(), ids[1]);
    let (bytes, _) = writer.finish(0).unwrap();
    let trace = Trace::read_from(&bytes[..]).unwrap();
    assert_eq!(trace.stacks.len(), all.len());
    ids.iter().zip(&all).for_each(|(&id, frames)| assert_eq!(trace.frames(id), &frames[..]));
}

/// More stacks than are remembered, and more than fit into a block, without an event in between.
#[test]
fn any_number_of_stacks_is_kept() {
    let mut writer = Writer::new(Vec::new(), &header()).unwrap();
    let stack = |i: u64| [i, i * i, i << 40];
    let ids: Vec<_> = (0..300_000).map(|i| writer.stack(&stack(i)).unwrap()).collect();
    let (bytes, _) = writer.finish(0).unwrap();
    let trace = Trace::read_from(&bytes[..]).unwrap();
    for (i, &id) in ids.iter().enumerate() {
        assert_eq!(trace.frames(id), stack(i as u64));
    }
}

#[test]
fn losses_that_no_event_tells_of_are_counted() {
    let mut writer = Writer::new(Vec::new(), &header()).unwrap();
    writer
        .event(&Event { time_ns: 1, pid: 1, tid: 1, what: EventKind::Lost { count: 3 } })
        .unwrap();
    let (bytes, totals) = writer.finish(10).unwrap();
    assert_eq!(totals.lost, 10);
    assert_eq!(Trace::read_from(&bytes[..]).unwrap().totals, totals);
}

#[test]
fn a_file_that_was_cut_is_read_up_to_its_last_whole_block() {
    let mut writer = Writer::new(Vec::new(), &Header::default()).unwrap();
    let mut events = Scatter(9).events(90, 0);
    let mut lengths = vec![0];
    for (i, event) in events.iter_mut().enumerate() {
        event.time_ns = i as u64;
        writer.event(event).unwrap();
        if i % 30 == 29 {
            writer.flush().unwrap();
            lengths.push(i + 1);
        }
    }
    let (bytes, _) = writer.finish(0).unwrap();
    let mut seen = Vec::new();
    for cut in 0..bytes.len() {
        match Trace::read_from(&bytes[..cut]) {
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::InvalidData);
                assert!(seen.is_empty(), "{cut}: {error}");
            }
            Ok(trace) => {
                assert!(trace.is_cut_short, "{cut}");
                let count = trace.events.len();
                assert!(lengths.contains(&count), "{cut}: {count}");
                assert!(trace.events == events[..count]);
                assert_eq!(trace.totals.events, count as u64);
                seen.push(count);
            }
        }
    }
    seen.dedup();
    assert_eq!(seen, lengths);
    assert!(!Trace::read_from(&bytes[..]).unwrap().is_cut_short);
}

#[test]
fn any_flipped_bit_is_found() {
    let (bytes, _) = written(&Header::default(), &stacks()[..2], &Scatter(3).events(40, 2));
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let error = Trace::read_from(&bytes[..]).map(drop).expect_err("a bit was flipped");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "bit {bit}: {error}");
    }
    let longer = [&bytes[..], b"x"].concat();
    assert!(Trace::read_from(&longer[..]).is_err());
}

#[test]
fn writers_refuse_what_no_reader_would_take() {
    let mut writer = Writer::new(Vec::new(), &header()).unwrap();
    writer.event(&fault(10)).unwrap();
    let what = |what| Event { time_ns: 10, pid: 1, tid: 1, what };
    let other = written(&header(), &stacks(), &[]);
    let stack = Trace::read_from(&other.0[..]).unwrap().stacks.len() as u32;
    let stack = Some(cowslip_trace::StackId(stack.try_into().unwrap()));
    let long: Arc<str> = "x".repeat(TEXT_MOST_BYTES + 1).into();
    let range = VirtRange { start: usize::MAX, len: 2 };
    let map = Map {
        inode: 0,
        range: VirtRange::new(0, 1),
        protection: 0,
        flags: 0,
        offset_bytes: 0,
        name: None,
        is_old: false,
        stack: None,
    };
    let bad = [
        fault(9),
        what(EventKind::Fault(Fault { stack, ..Fault::at(0, 0) })),
        what(EventKind::Map(Map { stack, ..map.clone() })),
        what(EventKind::Map(Map { range, ..map.clone() })),
        what(EventKind::Map(Map { name: Some(long.clone()), ..map })),
        what(EventKind::Unmap { range }),
        what(EventKind::Remap { from: VirtRange::new(0, 1), to: range, kept: false }),
        what(EventKind::Advise { range, advice: 4 }),
        what(EventKind::Exec { name: long.clone() }),
        what(EventKind::Name { name: long }),
    ];
    for event in &bad {
        let error = writer.event(event).expect_err("it was refused");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
    }
    assert!(writer.stack(&[0; FRAMES_MOST + 1]).is_err());
    writer.event(&fault(10)).unwrap();
    let (bytes, _) = writer.finish(0).unwrap();
    assert_eq!(Trace::read_from(&bytes[..]).unwrap().events, [fault(10), fault(10)]);
}

#[test]
fn only_the_owner_may_read_a_new_file() {
    use std::os::unix::fs::PermissionsExt;
    let path = std::env::temp_dir().join(format!("cowslip-create-{}", std::process::id()));
    let file = create(&path).unwrap();
    let mode = file.metadata().unwrap().permissions().mode();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(mode & 0o777, 0o600);
}

/// A disk that becomes full.
struct Small<'a> {
    bytes: Vec<u8>,
    is_full: &'a AtomicBool,
}

impl Write for Small<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_full.load(Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_told() {
    let is_full = AtomicBool::new(false);
    let mut writer =
        Writer::new(Small { bytes: Vec::new(), is_full: &is_full }, &header()).unwrap();
    writer.event(&fault(1)).unwrap();
    is_full.store(true, Relaxed);
    assert_eq!(writer.flush().unwrap_err().kind(), io::ErrorKind::StorageFull);
}

/// Blocks end after a second, so that little is missing if the recorder is killed.
#[test]
fn a_reader_sees_what_is_older_than_a_second() {
    let mut writer = Writer::new(Vec::new(), &header()).unwrap();
    for second in 0..5 {
        writer.event(&fault(second * 1_000_000_001)).unwrap();
    }
    let (bytes, _) = writer.finish(0).unwrap();
    let mut reader = Reader::new(&bytes[..]).unwrap();
    let mut blocks = Vec::new();
    let mut events = Vec::new();
    while reader.read_block(&mut events).unwrap() {
        blocks.push(events.drain(..).count());
    }
    assert_eq!(blocks, [1; 5]);
}

#[test]
fn errors_name_the_file_the_place_and_the_reason() {
    let error = Trace::read("/proc/self/status".as_ref()).unwrap_err().to_string();
    assert!(error.contains("/proc/self/status: at byte 0: this is no Cowslip trace"), "{error}");
    let error = Trace::read("/nowhere/trace".as_ref()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    let (mut bytes, _) = written(&header(), &[], &[fault(1)]);
    bytes[8] = 2;
    let error = Trace::read_from(&bytes[..]).unwrap_err().to_string();
    assert!(error.contains("at byte 8: a version that this program does not know"), "{error}");
}

/// Realistic faults: some threads walk through memory, one touches random addresses.
#[test]
fn a_fault_needs_less_than_eight_bytes() {
    const FAULTS: u64 = 400_000;
    let mut scatter = Scatter(1);
    let mut time_ns = 1 << 40;
    let mut walks = [0x7f12_3456_7000_u64, 0x5555_0000_0000, 0x7fff_0000_0000];
    let mut next = |i: u64| {
        time_ns += 350 + scatter.below(900);
        let thread = (i / 7 % 4) as usize;
        let address = match walks.get_mut(thread) {
            Some(walk) => {
                *walk -= 4096;
                *walk + 8 * scatter.below(4)
            }
            None => 0x7e00_0000_0000 + 8 * scatter.below(1 << 27),
        };
        let ip = 0x40_1000 + 3 * scatter.below(40);
        Event {
            time_ns,
            pid: 1,
            tid: thread as u32,
            what: EventKind::Fault(Fault::at(address, ip)),
        }
    };
    let events: Vec<Event> = (0..FAULTS).map(&mut next).collect();
    let began = std::time::Instant::now();
    let (bytes, _) = written(&header(), &[], &events);
    let wrote = began.elapsed();
    let trace = Trace::read_from(&bytes[..]).unwrap();
    let per_fault = bytes.len() as f64 / FAULTS as f64;
    println!(
        "{per_fault:.2} bytes a fault; {wrote:?} to write, {:?} to read",
        began.elapsed() - wrote
    );
    assert!(trace.events == events);
    assert!(per_fault < 8.0);
}

#[test]
fn the_kernels_histogram_is_kept_behind_the_events() {
    let bucket = LatencyBucket {
        in_user_mode: true,
        severity: Severity::Minor,
        up_to_ns: 1 << 63,
        faults: u64::MAX,
    };
    let latencies = Latencies { buckets: vec![bucket], uncounted: 3 };
    let mut writer = Writer::new(Vec::new(), &header()).unwrap();
    writer.event(&fault(7)).unwrap();
    writer.latencies(&latencies).unwrap();
    let (bytes, totals) = writer.finish(0).unwrap();
    let trace = Trace::read_from(&bytes[..]).unwrap();
    assert_eq!((trace.events, trace.totals), (vec![fault(7)], totals));
    assert_eq!(trace.latencies, Some(latencies));
}
