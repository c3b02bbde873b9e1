//! perf's recordings become the events that perf itself prints.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

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
fn a_stored_recording_is_what_perf_counted_in_it() {
    let (imported, trace) = imported(&stored("page-faults.data")).unwrap();
    // `perf script --show-mmap-events --show-task-events` has these numbers of lines.
    let (kinds, faults) = said(&trace);
    let count = |kind: &str| kinds.get(kind).copied().unwrap_or_default();
    assert_eq!((faults.len(), count("Map"), count("Exit")), (47, 23, 1));
    assert_eq!((count("Exec"), count("Name")), (1, 1));
    assert_eq!(faults[0], (67_119_478_654_665, 7649, 0x7f41_c7f8_1b70));
    assert_eq!(faults[46], (67_119_479_151_431, 7649, 0x7f41_c7e4_15e0));
    assert_eq!((imported.ignored, imported.without_address, imported.late_ns), (0, 0, 0));
    assert_eq!(trace.header.sampling_period, 1);
    assert_eq!(trace.header.machine.architecture, "x86_64");
    let unseen = trace.header.unseen.join("\n");
    assert!(unseen.contains("munmap(2)"), "{unseen}");
}

#[test]
fn refusals_say_what_to_do() {
    for (content, wanted) in [
        (&b""[..], "no perf.data"),
        (b"t 7 1.000001: 1 page-faults:  7f00 (/bin/true)", "no perf.data"),
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

    let kinds = said(&data).0;
    let lines = script(&file.0, &["--show-mmap-events", "--show-task-events"]);
    let count = |part: &str| lines.lines().filter(|line| line.contains(part)).count();
    for (kind, part) in [("Fork", "_FORK("), ("Exec", "_COMM exec"), ("Exit", "_EXIT(")] {
        assert_eq!(kinds[kind], count(part), "{kinds:?}");
    }
    // The kernel's own mapping belongs to no process.
    assert_eq!(
        kinds["Map"],
        count("_MMAP2 ") + count("_MMAP ") - count("_MMAP2 -1/") - count("_MMAP -1/")
    );
    assert!(kinds["Fork"] >= 2 && kinds["Exec"] >= 3, "{kinds:?}");
    // perf's text has one frame a line.
    let frames = |(_, fault): &(&Event, Fault)| data.frames(fault.stack.unwrap()).len();
    let frames: usize = faults(&data).iter().map(frames).sum();
    let lines = script(&file.0, &["-F", "ip"]);
    assert_eq!(frames, lines.lines().filter(|line| !line.trim().is_empty()).count());
}

/// perf writes no period into a sample if it is the same in all.
#[test]
fn a_fixed_period_is_that_of_the_event_and_a_frequency_is_an_estimate() {
    let event = ["-e", "page-faults", "-d"];
    let Some(file) = recorded("period.data", &[&event[..], &["-c", "10"]].concat()) else { return };
    let header = imported(&file.0).unwrap().1.header;
    assert_eq!(header.sampling_period, 10);
    assert!(!header.unseen.join("\n").contains("estimated"), "{:?}", header.unseen);
    let file = recorded("frequency.data", &[&event[..], &["-F", "99"]].concat()).unwrap();
    let header = imported(&file.0).unwrap().1.header;
    assert!(header.unseen.join("\n").contains("estimated"), "{:?}", header.unseen);
}

#[test]
fn what_the_seeds_command_records_now() {
    let options = ["-e", "syscalls:sys_*_m*map", "-e", "exceptions:page_fault_*"];
    let Some(file) = recorded("seed.data", &options) else { return };
    let (_, data) = imported(&file.0).unwrap();
    let lines = script(&file.0, &["-F", "event,trace"]);
    let count = |part: &str| lines.lines().filter(|line| line.contains(part)).count();
    assert_eq!(data.totals.faults as usize, count("exceptions:page_fault_"));
    let kinds = said(&data).0;
    assert_eq!(kinds["Unmap"], count("sys_enter_munmap"));
    assert!(kinds["Map"] > 10 && kinds["Unmap"] > 0, "{kinds:?}");
    let faults = faults(&data);
    let of_faults = lines.lines().filter(|line| line.contains("exceptions:page_fault_"));
    for ((_, fault), line) in faults.iter().zip(of_faults) {
        assert!(
            line.contains(&format!("address=0x{:x} ", fault.address)) || fault.address == 0,
            "{line}"
        );
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
