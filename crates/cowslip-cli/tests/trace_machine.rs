//! `cowslip trace` of a control group, and of the machine.

mod support;
#[path = "support/touched.rs"]
mod touched;

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;

use cowslip_trace::model::{EventKind, Trace};
use support::{COWSLIP, run};
use touched::{PAGE, Program, Recording, Touched, check, faults, has, place};

const PAGES: u64 = 500;

/// Maps and writes pages; returns their address too.
fn write(target: &mut Program) -> (u64, Touched) {
    let at = target.map(PAGES);
    (at, target.touch("write", at, PAGES, 1))
}

fn check_all(trace: &Trace, pid: u32, (at, touched): (u64, Touched)) {
    check(&faults(trace, pid, at, PAGES), touched, (0..PAGES).map(|page| at + page * PAGE));
}

#[test]
fn programs_that_run_and_programs_that_start_are_seen_on_the_whole_machine() {
    if !has("machine") || !has("calls") {
        return;
    }
    let Some((_folder, program)) = place("trace-machine") else { return };
    let mut old = Program::start(&mut Command::new(&program));
    let before = old.map(16);
    let recording = Recording::start_by(&mut Command::new(COWSLIP), &["--system"], &[]);
    let recorder = recording.child.id();
    let in_old = write(&mut old);
    let in_before = old.touch("write", before, 16, 1);
    let mut new = Program::start(&mut Command::new(&program));
    let in_new = write(&mut new);
    let (trace, _) = recording.end();
    check_all(&trace, old.child.id(), in_old);
    check_all(&trace, new.child.id(), in_new);
    let seen = faults(&trace, old.child.id(), before, 16);
    check(&seen, in_before, (0..16).map(|page| before + page * PAGE));
    let is_mapped = |pid, at: u64, was_there| {
        trace.events.iter().any(|event| match &event.what {
            EventKind::Map(map) => {
                event.pid == pid && map.range.contains(at as usize) && map.is_old == was_there
            }
            _ => false,
        })
    };
    assert!(is_mapped(old.child.id(), before, true) && is_mapped(new.child.id(), in_new.0, false));
    assert!(trace.events.iter().all(|event| event.pid != recorder), "not the recorder itself");
    assert_eq!(trace.header.title(), "all programs of the machine");
    assert!(trace.header.attached_pids.contains(&old.child.id()));
}

#[test]
fn metrics_of_many_processes_are_refused_and_the_old_trace_stays() {
    let Some((folder, _)) = place("trace-metrics") else { return };
    let trace = folder.0.join("trace");
    fs::write(&trace, "old").unwrap();
    for subject in [&["--system"][..], &["--pid", "1", "--pid", "2"]] {
        let mut command = Command::new(COWSLIP);
        command.arg("trace").args(subject).arg("--metrics").arg(folder.0.join("metrics"));
        let ran = run(command.arg("-o").arg(&trace));
        assert_eq!(ran.status.code(), Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains("metrics are of one process"), "{}", ran.stderr);
        assert_eq!(fs::read_to_string(&trace).unwrap(), "old");
    }
}

/// A control group of version 2.
struct Group(PathBuf);

impl Group {
    fn new() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"));
        let Some(mount) = mount.and_then(|line| line.split(' ').nth(1)) else {
            println!("SKIPPED: control groups: no cgroup2 is mounted");
            return None;
        };
        let folder = PathBuf::from(mount).join(format!("cowslip-trace-{}", std::process::id()));
        match fs::create_dir(&folder) {
            Ok(()) => Some(Self(folder)),
            Err(error) => {
                println!("SKIPPED: control groups: {}: {error}", folder.display());
                None
            }
        }
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// Starts a program in it.
    fn start(&self, program: &PathBuf) -> Program {
        let script = r#"echo $$ > "$1/cgroup.procs" && exec "$2""#;
        let mut sh = Command::new("sh");
        Program::start(sh.args(["-c", script, "sh", self.path()]).arg(program))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Programs that ended leave it a little later.
        while fs::remove_dir(&self.0).is_err_and(|error| error.kind() == ErrorKind::ResourceBusy) {
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_control_group_is_seen_whole_and_nothing_else() {
    if !has("machine") || !has("calls") {
        return;
    }
    let Some((_folder, program)) = place("trace-group") else { return };
    let Some(group) = Group::new() else { return };
    let mut outside = Program::start(&mut Command::new(&program));
    let mut old = group.start(&program);
    // It is in the group once it answers.
    old.map(1);
    let subject = ["--cgroup", group.path()];
    let recording = Recording::start_by(&mut Command::new(COWSLIP), &subject, &[]);
    let in_old = write(&mut old);
    write(&mut outside);
    let mut new = group.start(&program);
    let in_new = write(&mut new);
    let (at, _) = in_old;
    let copied = old.touch("child", at, 30, 2);
    let (trace, json) = recording.end();
    check_all(&trace, old.child.id(), in_old);
    check_all(&trace, new.child.id(), in_new);
    let copies = faults(&trace, copied.pid, at, PAGES);
    check(&copies, copied, (0..30).map(|page| at + 2 * page * PAGE));
    assert!(trace.events.iter().all(|event| event.pid != outside.child.id()));
    assert_eq!(json["lost"].as_u64(), Some(0));
    assert_eq!(trace.header.attached_pids, [old.child.id()]);
}

#[test]
fn a_recording_ends_after_its_duration_and_the_program_goes_on() {
    let Some((_folder, program)) = place("trace-duration") else { return };
    let mut target = Program::start(&mut Command::new(&program));
    let recording = Recording::start(target.child.id(), &["--duration", "0.3"]);
    let (trace, json) = recording.result();
    assert!(trace.header.attached_pids == [target.child.id()] && json["exit_code"].is_null());
    // The program did nothing, all the time.
    assert_eq!(trace.events.last().map(|event| event.what.clone()), Some(EventKind::Detach));
    assert!(trace.totals.last_ns - trace.totals.first_ns >= 300_000_000, "{:?}", trace.totals);
    write(&mut target);
}

#[test]
fn a_control_group_that_is_none_is_refused_and_nothing_is_written() {
    if !has("machine") {
        return;
    }
    let Some((folder, _)) = place("trace-no-group") else { return };
    let trace = folder.0.join("trace");
    for path in ["/nowhere/at/all", folder.0.to_str().unwrap()] {
        let ran = run(Command::new(COWSLIP).args(["trace", "--cgroup", path, "-o"]).arg(&trace));
        assert_eq!(ran.status.code(), Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains(&format!("control group {path}: there is none")));
        assert!(!trace.exists());
    }
}
