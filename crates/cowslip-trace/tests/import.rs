//! perf's recordings become the same events in both formats; compared with perf's own output.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cowslip_sys::units::VirtRange;
use cowslip_trace::import::{Imported, import};
use cowslip_trace::model::{Access, Event, EventKind, Fault, Trace};
use support::{Scatter, skip};

fn imported(path: &Path) -> io::Result<(Imported, Trace)> {
    let mut bytes = Vec::new();
    let mut steps = Vec::new();
    let imported = import(path, &mut bytes, &mut |done, all| {
        assert!(done <= all);
        steps.push(done);
    })?;
    assert!(steps.is_sorted());
    let trace = Trace::read_from(&bytes[..])?;
    assert!(!trace.is_cut_short && trace.totals == imported.totals);
    Ok((imported, trace))
}

fn stored(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn faults(trace: &Trace) -> Vec<(&Event, Fault)> {
    let fault = |event| match event {
        &Event { what: EventKind::Fault(fault), .. } => Some((event, fault)),
        _ => None,
    };
    trace.events.iter().filter_map(fault).collect()
}

/// A file that is removed when this value is dropped.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str, content: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("cowslip-{}-{name}", std::process::id()));
        fs::write(&path, content).unwrap();
        Self(path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn page_faults_as_text_with_mappings_and_tasks() {
    let (imported, trace) = imported(&stored("page-faults.txt")).unwrap();
    let text = fs::read_to_string(stored("page-faults.txt")).unwrap();
    let count = |part| text.lines().filter(|line| line.contains(part)).count();
    let faults = faults(&trace);
    assert_eq!(faults.len(), count(" page-faults: "));
    let is_map = |event: &&Event| matches!(event.what, EventKind::Map(_));
    // One of them is the kernel's own.
    assert_eq!(trace.events.iter().filter(is_map).count(), count("PERF_RECORD_MMAP2"));
    assert_eq!((imported.ignored, imported.without_address), (1, 0));
    let kinds = trace.events.iter().map(|event| match &event.what {
        EventKind::Exec { name } => format!("exec {name}"),
        EventKind::Name { name } => format!("name {name}"),
        EventKind::Exit => "exit".into(),
        _ => String::new(),
    });
    let kinds: Vec<String> = kinds.filter(|kind| !kind.is_empty()).collect();
    assert_eq!(kinds, ["name perf-exec", "exec true", "exit"]);
    assert_eq!(trace.header.clock, "perf");
    assert_eq!(trace.header.sampling_period, 1);
    let unseen = trace.header.unseen.join("\n");
    assert!(unseen.contains("munmap(2)") && !unseen.contains("threads"), "{unseen}");
}

#[test]
fn what_the_seed_recorded() {
    let (imported, trace) = imported(&stored("seed003.txt")).unwrap();
    let text = fs::read_to_string(stored("seed003.txt")).unwrap();
    let faults = faults(&trace);
    let lines = text.lines().filter(|line| line.contains("exceptions:page_fault_"));
    assert_eq!(faults.len(), lines.clone().count());
    for ((_, fault), line) in faults.iter().zip(lines) {
        assert!(line.contains(&format!("address={:#x} ", fault.address)), "{line}");
        let code = line.rsplit_once("error_code=0x").unwrap().1;
        let code = u64::from_str_radix(code.trim(), 16).unwrap();
        let access = match (code & 16, code & 2) {
            (0, 0) => Access::Read,
            (0, _) => Access::Write,
            _ => Access::Execute,
        };
        assert_eq!(fault.access, Some(access), "{line}");
        assert_eq!(fault.was_present, Some(code & 1 == 1), "{line}");
        assert_eq!(fault.in_user_mode, Some(line.contains("page_fault_user")), "{line}");
    }
    let ranges = |of: fn(&EventKind) -> Option<VirtRange>| -> Vec<VirtRange> {
        trace.events.iter().filter_map(|event| of(&event.what)).collect()
    };
    let maps = ranges(|what| match what {
        EventKind::Map(map) => Some(map.range),
        _ => None,
    });
    // The addresses that the kernel returned, in whole pages.
    let results = text.lines().filter_map(|line| line.split_once("sys_exit_mmap: 0x"));
    let results = results.map(|(_, at)| usize::from_str_radix(at.trim(), 16).unwrap());
    assert_eq!(
        maps.iter().map(|range| range.start).collect::<Vec<_>>(),
        results.collect::<Vec<_>>()
    );
    assert!(maps.iter().all(|range| range.len > 0 && range.len % 4096 == 0));
    let unmaps = ranges(|what| match what {
        EventKind::Unmap { range } => Some(*range),
        _ => None,
    });
    assert_eq!(unmaps.len(), text.matches("sys_enter_munmap").count());
    assert_eq!((imported.unplaced, imported.ignored), (0, 0));
}

/// perf prints a frame's place in its file, not in memory.
#[test]
fn call_stacks_as_text_are_left_out_and_that_is_said() {
    let (_, trace) = imported(&stored("call-stacks.txt")).unwrap();
    let text = fs::read_to_string(stored("call-stacks.txt")).unwrap();
    let faults = faults(&trace);
    assert_eq!(faults.len(), text.split("\n\n").count());
    for ((_, fault), sample) in faults.iter().zip(text.split("\n\n")) {
        let (first, frames) = sample.split_once('\n').unwrap_or((sample, ""));
        assert!(first.contains(&format!("page-faults: {:>16x} ", fault.address)), "{first}");
        let is_kernel = frames.starts_with("\tffffffff");
        assert_eq!(fault.ip, if is_kernel { 0xffff_ffff_8175_54ea } else { 0 });
        assert_eq!(fault.stack, None);
    }
    let unseen = trace.header.unseen.join("\n");
    assert!(unseen.contains("call stacks") && unseen.contains("perf.data itself"), "{unseen}");
}

/// Old versions of perf left an `f` after addresses; this recording has no results.
#[test]
fn the_seeds_own_text() {
    let text = "qfsd 17 [003] 12.000001: syscalls:sys_enter_mmap: addr: 0x7f2000000000, len: 0x00200000, \
                prot: 0x00000003, flags: 0x00000032, fd: 0xffffffff, off: 0x00000000\n\
                qfsd 17 [003] 12.000002: exceptions:page_fault_user: address=0x7f20001ff000f \
                ip=0x7f1000000123f error_code=0x6\n\
                qfsd 17 [003] 12.000003: syscalls:sys_enter_mmap: addr: 0x00000000, len: 0x00200000, \
                prot: 0x00000003, flags: 0x00000022, fd: 0xffffffff, off: 0x00000000\n";
    let file = Temporary::new("seed", text.as_bytes());
    let (imported, trace) = imported(&file.0).unwrap();
    let EventKind::Map(map) = &trace.events[0].what else { panic!("{trace:?}") };
    assert_eq!(map.range, VirtRange::new(0x7f20_0000_0000, 0x20_0000));
    let (event, fault) = faults(&trace)[0];
    assert_eq!((fault.address, fault.ip), (0x7f20_001f_f000, 0x7f10_0000_0123));
    assert_eq!((event.time_ns, event.tid), (12_000_002_000, 17));
    assert_eq!((trace.events.len(), imported.unplaced), (2, 1));
    let unseen = trace.header.unseen.join("\n");
    assert!(unseen.contains("sys_exit_m*map") && unseen.contains("-F +pid"), "{unseen}");
}

#[test]
fn refusals_say_what_to_do() {
    let without =
        "t 7 1.000001: 1 page-faults:  ffffffff817554ea elf_load+0x28a ([kernel.kallsyms])\n";
    let others =
        "t 7 1.000001: 1 cpu-clock:  ffffffff817554ea elf_load+0x28a ([kernel.kallsyms])\n";
    for (content, wanted) in [
        (&b""[..], "no page fault of perf's"),
        (others.as_bytes(), "-e page-faults"),
        (without.as_bytes(), "perf script -F +addr"),
        (b"COWSLIPT", "a trace already"),
        (b"PERFILE2 and no more", "damaged"),
    ] {
        let file = Temporary::new("refused", content);
        let error = imported(&file.0).map(drop).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let text = error.to_string();
        assert!(text.contains(wanted) && text.contains("-refused"), "{text}");
    }
    assert_eq!(imported(Path::new("/nowhere")).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn texts_that_are_damaged_are_read_as_far_as_they_make_sense() {
    let mut scatter = Scatter(8);
    for name in ["page-faults.txt", "seed003.txt", "call-stacks.txt"] {
        let whole = fs::read(stored(name)).unwrap();
        for _ in 0..300 {
            let mut bytes = whole.clone();
            for _ in 0..20 {
                let at = scatter.below(bytes.len() as u64) as usize;
                let with = whole[scatter.below(whole.len() as u64) as usize];
                bytes[at] = if scatter.below(8) == 0 { scatter.next() as u8 } else { with };
            }
            let file = Temporary::new("damaged.txt", &bytes);
            if let Err(error) = imported(&file.0) {
                assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
            }
        }
    }
}

fn run(command: &mut Command) -> Option<Output> {
    command.output().ok().filter(|output| output.status.success())
}

/// perf's recording of a shell that runs other programs; `None` without perf.
fn recorded(name: &str, options: &[&str]) -> Option<Temporary> {
    let file = Temporary::new(name, b"");
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-o"]).arg(&file.0).args(options);
    perf.args(["--", "/bin/sh", "-c", "ls / >/dev/null; ls /usr >/dev/null"]);
    match run(&mut perf) {
        Some(_) => Some(file),
        None => {
            skip("perf", "perf cannot record here");
            None
        }
    }
}

fn script(file: &Path, options: &[&str]) -> String {
    let mut perf = Command::new("perf");
    let output = perf.args(["script", "-i"]).arg(file).args(options).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The number of events of each kind; the time, the thread and the address of each fault.
type Said = (BTreeMap<String, usize>, Vec<(u64, u32, u64)>);

fn said(trace: &Trace) -> Said {
    let mut kinds = BTreeMap::new();
    for event in &trace.events {
        let kind = format!("{:?}", event.what);
        let kind = kind.split([' ', '(', '{']).next().unwrap().to_owned();
        *kinds.entry(kind).or_default() += 1;
    }
    let fault = |(event, fault): (&Event, Fault)| (event.time_ns, event.tid, fault.address);
    (kinds, faults(trace).into_iter().map(fault).collect())
}

#[test]
fn what_perf_records_now() {
    let Some(file) = recorded("now.data", &["-e", "page-faults", "-c", "1", "-d", "-g"]) else {
        return;
    };
    let (imported_data, data) = imported(&file.0).unwrap();
    // perf's own count: one line per fault.
    let lines = script(&file.0, &["-F", "tid,time,event,addr", "-G", "--ns"]);
    assert_eq!(data.totals.faults as usize, lines.lines().count());
    for ((event, fault), line) in faults(&data).iter().zip(lines.lines()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let time = words[1].trim_end_matches(':').replace('.', "");
        assert_eq!(time.parse(), Ok(event.time_ns), "{line}");
        assert_eq!(words[0].parse(), Ok(event.tid), "{line}");
        assert_eq!(u64::from_str_radix(words[3], 16), Ok(fault.address), "{line}");
    }
    assert_eq!(imported_data.late_ns, 0);
    assert!(!data.header.machine.kernel_release.is_empty() && data.header.machine.cpus > 0);
    assert!(data.header.command.iter().any(|word| word.contains("ls /usr")), "{:?}", data.header);

    let options = ["--header", "-F", "+addr,+pid", "--ns"];
    let events = ["--show-mmap-events", "--show-task-events", "--show-lost-events"];
    let text = script(&file.0, &[&options[..], &events[..]].concat());
    let text = Temporary::new("now.txt", text.as_bytes());
    let (_, text) = imported(&text.0).unwrap();
    let (data_said, text_said) = (said(&data), said(&text));
    assert_eq!(data_said.0, text_said.0);
    assert!(data_said.0["Fork"] >= 2 && data_said.0["Exec"] >= 3, "{:?}", data_said.0);
    assert!(data_said.1 == text_said.1);
    // In perf's text, too, there is one frame per line.
    let frames = |(_, fault): &(&Event, Fault)| data.frames(fault.stack.unwrap()).len();
    let frames: usize = faults(&data).iter().map(frames).sum();
    let lines = script(&file.0, &["-F", "ip"]);
    assert_eq!(frames, lines.lines().filter(|line| !line.trim().is_empty()).count());
    assert_eq!(data.header.machine, text.header.machine);
}

#[test]
fn what_the_seeds_command_records_now() {
    let options = ["-e", "syscalls:sys_*_m*map", "-e", "exceptions:page_fault_*"];
    let Some(file) = recorded("seed.data", &options) else { return };
    let (_, data) = imported(&file.0).unwrap();
    let lines = script(&file.0, &["-F", "event,trace"]);
    let count = |part: &str| lines.lines().filter(|line| line.contains(part)).count();
    assert_eq!(data.totals.faults as usize, count("exceptions:page_fault_"));
    let text = script(&file.0, &["-F", "+pid", "--ns", "--show-mmap-events", "--show-task-events"]);
    let text = Temporary::new("seed.txt", text.as_bytes());
    let (_, text) = imported(&text.0).unwrap();
    let (data_said, text_said) = (said(&data), said(&text));
    assert_eq!(data_said.0, text_said.0);
    assert!(data_said.1 == text_said.1);
    assert!(data_said.0["Map"] > 10 && data_said.0["Unmap"] > 0, "{:?}", data_said.0);
    for ((_, data), (_, text)) in faults(&data).iter().zip(faults(&text)) {
        assert_eq!((data.access, data.was_present), (text.access, text.was_present));
        assert_eq!(data.in_user_mode, text.in_user_mode);
    }
}

#[test]
fn perf_data_that_is_damaged_is_refused_or_read_as_far_as_it_makes_sense() {
    let Some(file) = recorded("damaged.data", &["-e", "page-faults", "-c", "1", "-d"]) else {
        return;
    };
    let whole = fs::read(&file.0).unwrap();
    let mut scatter = Scatter(9);
    for round in 0..900 {
        let mut bytes = whole.clone();
        // The head, the tables after the records, or any part.
        let part = match round % 3 {
            0 => 0..104,
            1 => bytes.len() - 4096..bytes.len(),
            _ => 0..bytes.len(),
        };
        for _ in 0..1 + round % 8 {
            let at = part.start + scatter.below(part.len() as u64) as usize;
            bytes[at] = scatter.next() as u8;
        }
        bytes.truncate(bytes.len() - scatter.below(2) as usize * 100);
        let file = Temporary::new("damaged.perf", &bytes);
        if let Err(error) = imported(&file.0) {
            let kind = error.kind();
            let is_expected =
                kind == io::ErrorKind::InvalidData || kind == io::ErrorKind::UnexpectedEof;
            assert!(is_expected, "{kind:?}: {error}");
        }
    }
}
