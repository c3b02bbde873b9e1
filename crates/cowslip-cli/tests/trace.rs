//! `cowslip trace` of programs that touch known pages in a known order.
//!
//! The oracles are the program, which reports its touches and their threads, and the kernel's own count of its faults
//! (`getrusage(2)`).

mod support;
#[path = "support/touched.rs"]
mod touched;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use cowslip::units::VirtRange;
use cowslip_trace::model::{Access, Event, EventKind, Severity, Trace};
use serde_json::Value;
use support::{COWSLIP, Folder, run};
use touched::{PAGE, Program, Recording, check, faults, has, place, read};

const DONTNEED: u32 = 4;

fn range(at: u64, pages: u64) -> VirtRange {
    VirtRange::new(at as usize, (pages * PAGE) as usize)
}

fn position(trace: &Trace, what: &EventKind) -> usize {
    let found = trace.events.iter().position(|event| event.what == *what);
    found.unwrap_or_else(|| panic!("there is no {what:x?}"))
}

#[test]
fn every_fault_is_seen_once_with_its_address_thread_and_kind() {
    if !has("access") || !has("huge") || !has("calls") {
        return;
    }
    let Some((_folder, program)) = place("trace-kinds") else { return };
    let mut target = Program::start(&mut Command::new(program));
    let old = target.map(16);
    let recording = Recording::start(target.child.id(), &["--detail", "access"]);
    let at = target.map(2048);
    let down = target.touch("write", at + 511 * PAGE, 512, -1);
    let skipping = target.touch("thread", at + 512 * PAGE, 64, 8);
    let read_first = target.touch("read", at + 1024 * PAGE, 100, 1);
    let copied = target.touch("child", at, 30, 2);
    target.tell(&format!("drop {at} 40"));
    let again = target.touch("write", at, 40, 1);
    assert_eq!(target.tell(&format!("fill {} {}", at + 1200 * PAGE, 3 * PAGE)), [3 * PAGE]);
    target.tell(&format!("unmap {} 100", at + 1024 * PAGE));
    let moved = target.tell(&format!("move {} 50", at + 1900 * PAGE))[0];
    let in_old = target.touch("write", old, 16, 1);
    let (trace, json) = recording.end();

    let pid = target.child.id();
    let all = faults(&trace, pid, at, 1024);
    let (first, rest) = all.split_at(512);
    check(first, down, (0..512).rev().map(|page| at + page * PAGE));
    let (second, third) = rest.split_at(64);
    check(second, skipping, (0..64).map(|page| at + (512 + 8 * page) * PAGE));
    check(third, again, (0..40).map(|page| at + page * PAGE));
    assert!(down.tid == pid && skipping.tid != pid);
    for (_, fault) in &all {
        let told =
            (fault.access, fault.was_present, fault.severity, fault.in_user_mode, fault.huge);
        let wanted =
            (Some(Access::Write), Some(false), Some(Severity::Minor), Some(true), Some(false));
        assert_eq!(told, wanted, "{fault:x?}");
        assert!(fault.latency_ns.is_some_and(|ns| ns > 0) && fault.ip != 0);
    }
    let reads = faults(&trace, pid, at + 1024 * PAGE, 100);
    check(&reads, read_first, (0..100).map(|page| at + (1024 + page) * PAGE));
    assert!(reads.iter().all(|(_, fault)| fault.access == Some(Access::Read)));

    assert_ne!(copied.pid, pid);
    let copies = faults(&trace, copied.pid, at, 1024);
    check(&copies, copied, (0..30).map(|page| at + 2 * page * PAGE));
    assert!(copies.iter().all(|(_, fault)| fault.was_present == Some(true)), "copied on write");
    let fork = EventKind::Fork { child_pid: copied.pid, child_tid: copied.tid };
    let copy = |event: &Event| event.pid == copied.pid && matches!(event.what, EventKind::Fault(_));
    assert!(position(&trace, &fork) < trace.events.iter().position(copy).unwrap());
    assert!(
        trace.events.iter().any(|event| event.pid == copied.pid && event.what == EventKind::Exit)
    );

    let filled = faults(&trace, pid, at + 1200 * PAGE, 3);
    assert_eq!(filled.len(), 3);
    assert!(filled.iter().all(|(_, fault)| fault.in_user_mode == Some(false)));
    check(&faults(&trace, pid, old, 16), in_old, (0..16).map(|page| old + page * PAGE));

    let maps = trace.events.iter().filter_map(|event| match &event.what {
        EventKind::Map(map) => Some(map),
        _ => None,
    });
    let maps: Vec<_> = maps.collect();
    let new = maps.iter().find(|map| map.range == range(at, 2048)).expect("as long as asked for");
    assert!(!new.is_old && !trace.frames(new.stack.unwrap()).is_empty());
    assert!(maps.iter().any(|map| map.is_old && map.range.contains(old as usize)));
    let dropped = position(&trace, &EventKind::Advise { range: range(at, 40), advice: DONTNEED });
    let second_touch = trace.events.iter().rposition(
        |event| matches!(event.what, EventKind::Fault(fault) if event.pid == pid && fault.address == at),
    );
    assert!(dropped < second_touch.unwrap());
    position(&trace, &EventKind::Unmap { range: range(at + 1024 * PAGE, 100) });
    let (from, to) = (range(at + 1900 * PAGE, 50), range(moved, 50));
    position(&trace, &EventKind::Remap { from, to, kept: false });
    assert_eq!((json["lost"].as_u64(), json["malformed"].as_u64()), (Some(0), Some(0)));
    assert_eq!(json["faults"], json["faults_counted"]);
}

#[test]
fn huge_pages_are_told_from_base_pages() {
    let Some((_folder, program)) = place("trace-huge") else { return };
    let mut target = Program::start(&mut Command::new(program));
    let thp = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if !has("huge") || thp.is_empty() || thp.contains("[never]") {
        println!("SKIPPED: huge pages are switched off: {thp:?}");
        return;
    }
    let recording = Recording::start(target.child.id(), &["--detail", "access"]);
    let at = target.tell("huge 6")[0];
    let touched = target.touch("write", at, 6, 512);
    let again = target.touch("write", at, 6 * 512, 1);
    let (trace, _) = recording.end();
    let seen = faults(&trace, target.child.id(), at, 6 * 512);
    assert_eq!(seen.len() as u64, touched.minor_faults + again.minor_faults);
    let huge = seen.iter().filter(|(_, fault)| fault.huge == Some(true)).count() as u64;
    let base = seen.iter().filter(|(_, fault)| fault.huge == Some(false)).count() as u64;
    // Where no huge page is free, 512 faults take its place.
    assert_eq!(6 * 512, huge * 512 + base, "each page came once");
    if huge == 0 {
        println!("SKIPPED: no huge page was free");
    }
}

#[test]
fn a_command_is_seen_from_its_first_instruction_to_its_end() {
    let Some((folder, program)) = place("trace-command") else { return };
    let script = format!("echo 'map 3000' | {0}; exec {0} < /dev/null", program.display());
    let ran = run(Command::new(COWSLIP)
        .args(["trace", "-o"])
        .arg(folder.0.join("trace"))
        .arg("--json")
        .arg(folder.0.join("json"))
        .args(["--", "sh", "-c", &script]));
    assert!(ran.status.success(), "{}", ran.stderr);
    let (trace, json) = read(&folder.0);
    assert_eq!(trace.header.command[..2], ["sh", "-c"]);
    assert!(!trace.header.machine.thp.is_empty() && trace.header.base_fault_ns.is_some());
    let names = trace.events.iter().filter_map(|event| match &event.what {
        EventKind::Exec { name } => Some((event.pid, name.to_string())),
        _ => None,
    });
    let names = names.collect::<Vec<_>>();
    assert_eq!(names.len(), 3, "{names:?}");
    assert_eq!((names[0].1.as_str(), names[2].1.as_str()), ("sh", "touched"));
    assert!(names[0].0 == names[2].0 && names[1].0 != names[0].0, "{names:?}");
    assert_eq!(trace.events.last().map(|event| event.what.clone()), Some(EventKind::Exit));
    assert_eq!(json["exit_code"], 0);
    assert_eq!(json["faults"], json["faults_counted"]);
}

/// Like env(1) and a shell.
#[test]
fn the_exit_code_is_the_commands() {
    let folder = Folder::new("trace-exit");
    let named = folder.0.join("report");
    fs::write(&named, "#!/bin/sh\nexit 9\n").unwrap();
    let traced = |words: &[&str]| {
        let mut command = Command::new(COWSLIP);
        command.args(["trace", "-o"]).arg(folder.0.join("trace")).args(words);
        let ran = run(command.env("PATH", format!("{}:/usr/bin:/bin", folder.0.display())));
        (ran.status.code(), ran.stderr)
    };
    let (code, said) = traced(&["--", "report"]);
    assert!(code == Some(126) && said.contains("run report: Permission denied"), "{said}");
    fs::set_permissions(&named, fs::Permissions::from_mode(0o755)).unwrap();
    for (words, code, said) in [
        (&["true"][..], 0, ""),
        (&["sh", "-c", "exit 7"], 7, "exit status: 7"),
        (&["--", "sh", "-c", "exit 7"], 7, "exit status: 7"),
        (&["--stacks", "none", "sh", "-c", "kill -9 $$"], 137, "signal: 9"),
        (&["--", "report"], 9, "exit status: 9"),
        (&["/nonexistent/program"], 127, "run /nonexistent/program: No such file"),
        (&["no-such-program", "--help"], 127, "run no-such-program: No such file"),
        (&["/etc"], 126, "run /etc: Permission denied"),
        (&["--ring", "5000", "--", "true"], 125, "power of two"),
        (&["--one-in", "2", "--detail", "access", "true"], 125, "one"),
    ] {
        let (got, message) = traced(words);
        assert!(got == Some(code) && message.contains(said), "{words:?}: {got:?} {message}");
    }
    // Names of its own commands are not looked up as programs.
    let ran = run(Command::new(COWSLIP).args(["trace", "report", "/nonexistent/trace"]));
    assert!(ran.status.code() == Some(2) && ran.stderr.contains("/nonexistent"), "{}", ran.stderr);
    let help = run(Command::new(COWSLIP).args(["trace", "--help"])).stdout;
    for wanted in ["128+N", "125", "126", "127", "cowslip trace -- report"] {
        assert!(help.contains(wanted), "{wanted}: {help}");
    }
}

/// Events that a killed recorder saw a second before are in its file, even if nothing happened since.
#[test]
fn a_recorder_that_is_killed_leaves_what_it_had() {
    const PAGES: u64 = 100;
    const ROUNDS: u64 = 5;
    let Some((_folder, program)) = place("trace-killed") else { return };
    let mut target = Program::start(&mut Command::new(program));
    let pid = target.child.id();
    let mut recording = Recording::start(pid, &[]);
    let file = recording.folder.0.join("trace");
    let at = target.map(PAGES * ROUNDS);
    let seen = |pages: u64| {
        let trace = Trace::read(&file).unwrap();
        (faults(&trace, pid, at, PAGES * ROUNDS).len() as u64 == pages).then_some(trace)
    };
    let mut written = Vec::new();
    for round in 0..ROUNDS {
        target.touch("write", at + round * PAGES * PAGE, PAGES, 1);
        let touched = Instant::now();
        let length = || fs::metadata(&file).unwrap().len();
        let mut before = length();
        while seen((round + 1) * PAGES).is_none() {
            while length() == before {
                assert!(touched.elapsed() < Duration::from_secs(60), "nothing is written");
                thread::yield_now();
            }
            before = length();
        }
        written.push(touched.elapsed());
    }
    // Other processes use the machine as well.
    assert!(*written.iter().min().unwrap() < Duration::from_secs(1), "{written:?}");
    recording.signal("-KILL");
    assert_eq!(recording.child.wait().unwrap().signal(), Some(9));

    let trace = seen(PAGES * ROUNDS).expect("all of them are there");
    assert!(trace.is_cut_short);
    let report =
        |more: &[&str]| run(Command::new(COWSLIP).args(["trace", "report"]).arg(&file).args(more));
    let text = report(&[]).stdout;
    let second = text.lines().nth(1).unwrap();
    assert!(second.contains("the end is missing: the recorder was killed"), "{text}");
    let json = report(&["--json", "-"]);
    assert!(json.stderr.contains("the end is missing"), "{}", json.stderr);
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["is_cut_short"], true);
    assert!(json["faults"].as_u64() >= Some(PAGES * ROUNDS), "{}", json["faults"]);
}

#[test]
fn what_is_lost_is_counted() {
    let Some((_folder, program)) = place("trace-lost") else { return };
    let mut target = Program::start(&mut Command::new(program));
    let at = target.map(20_000);
    let recording = Recording::start(target.child.id(), &["--ring", "64K", "--stacks", "none"]);
    recording.signal("-STOP");
    let touched = target.touch("write", at, 20_000, 1);
    recording.signal("-CONT");
    let (trace, json) = recording.end();
    assert_eq!(touched.minor_faults, 20_000);
    let number = |name: &str| json[name].as_u64().unwrap();
    assert!(number("lost") > 10_000, "{json:#}");
    assert_eq!(number("faults") + number("lost"), number("faults_counted"), "{json:#}");
    assert_eq!(trace.totals.lost, number("lost"));
    let told = trace.events.iter().filter_map(|event| match event.what {
        EventKind::Lost { count } => Some(count),
        _ => None,
    });
    assert_eq!(told.sum::<u64>(), number("lost"));
}

#[test]
fn one_of_n_is_recorded_and_all_are_counted() {
    let Some((_folder, program)) = place("trace-sampled") else { return };
    let mut target = Program::start(&mut Command::new(program));
    let at = target.map(10_000);
    let options = ["--one-in", "10", "--stacks", "faults"];
    let recording = Recording::start(target.child.id(), &options);
    target.touch("write", at, 10_000, 1);
    let (trace, json) = recording.end();
    let seen = faults(&trace, target.child.id(), at, 10_000);
    // Each processor counts by itself.
    assert!((980..=1000).contains(&seen.len()), "{}", seen.len());
    for (_, fault) in &seen {
        assert_eq!(trace.frames(fault.stack.unwrap())[0], fault.ip, "the innermost frame");
    }
    assert!(json["faults_counted"].as_u64().unwrap() >= 10_000);
    assert_eq!(trace.header.sampling_period, 10);
}

/// Threads that start during the attaching are neither missed nor seen twice.
#[test]
fn threads_that_come_meanwhile_are_seen_once() {
    const THREADS: u64 = 4_000;
    let Some((_folder, program)) = place("trace-storm") else { return };
    let mut target = Program::start(&mut Command::new(program));
    writeln!(target.commands, "storm {THREADS}").unwrap();
    let recording = Recording::start(target.child.id(), &[]);
    let at = target.answer()[0];
    let after = target.map(100);
    let touched = target.touch("thread", after, 100, 1);
    let (trace, _) = recording.end();
    let seen = faults(&trace, target.child.id(), at, THREADS * 8);
    let mut pages: Vec<_> = seen.iter().map(|(_, fault)| fault.address).collect();
    assert!(pages.is_sorted(), "as they were touched");
    let all = pages.len();
    pages.dedup();
    assert_eq!(pages.len(), all, "none is seen twice");
    if let Some(first) = pages.first() {
        let rest = (at + THREADS * 8 * PAGE - first) / PAGE;
        // A thread that is being made at that moment may be missed.
        assert!(rest - all as u64 <= 2 * 8, "{all} of {rest}");
    }
    let later = faults(&trace, target.child.id(), after, 100);
    check(&later, touched, (0..100).map(|page| after + page * PAGE));
}

#[test]
fn the_last_seconds_are_kept_until_something_happens() {
    let Some((_folder, program)) = place("trace-last") else { return };
    let mut target = Program::start(&mut Command::new(program));
    let at = target.map(30_000);
    let options = ["--last", "60", "--memory", "1M", "--trigger", "faults/s > 25000"];
    let recording = Recording::start(target.child.id(), &options);
    target.touch("write", at, 30_000, 1);
    let (trace, _) = recording.result();
    let seen = faults(&trace, target.child.id(), at, 30_000);
    assert!((1000..10_000).contains(&seen.len()), "as many as fit: {}", seen.len());
    let mapped = |event: &Event| match &event.what {
        EventKind::Map(map) => map.is_old && map.range.contains(at as usize),
        _ => false,
    };
    assert!(trace.events.iter().any(mapped), "what was mapped before is told");
    let more = target.touch("write", at, 1, 1);
    assert_eq!(more.pid, target.child.id(), "it goes on");

    let recording = Recording::start(target.child.id(), &["--last", "60"]);
    let at = target.map(100);
    let touched = target.touch("write", at, 100, 1);
    recording.signal("-USR2");
    let (trace, _) = recording.result();
    let seen = faults(&trace, target.child.id(), at, 100);
    check(&seen, touched, (0..100).map(|page| at + page * PAGE));
}

/// Runs a program as an unprivileged user, with the named capabilities (`,+perfmon`).
fn as_nobody(program: &Path, capabilities: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.arg(format!("--inh-caps=-all{capabilities}"));
    command.arg(format!("--ambient-caps=-all{capabilities}"));
    command.arg(program);
    command
}

/// A copy of the command that every user can run, if this test may become another user and the kernel has its default
/// setting.
fn for_everybody() -> Option<(Folder, PathBuf)> {
    let level = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    if level.trim() != "2" || !is_root {
        println!("SKIPPED: perf_event_paranoid is {:?}, root {is_root}", level.trim());
        return None;
    }
    let folder = Folder::new("trace-copy");
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).unwrap();
    let cowslip = folder.0.join("cowslip");
    // Another process copies: if this one had the copy open for writing while another test forks, the kernel would
    // refuse to run it.
    assert!(Command::new("cp").arg(COWSLIP).arg(&cowslip).status().unwrap().success());
    Some((folder, cowslip))
}

#[test]
fn programs_of_ones_own_need_no_privileges() {
    let Some((_folder, program)) = place("trace-own") else { return };
    let Some((_copy, cowslip)) = for_everybody() else { return };
    let mut target = Program::start(&mut as_nobody(&program, ""));
    target.map(1);
    let options = ["--detail", "access"];
    let pid = target.child.id();
    let recording =
        Recording::start_by(&mut as_nobody(&cowslip, ""), &["--pid", &pid.to_string()], &options);
    let at = target.map(1000);
    let touched = target.touch("write", at, 1000, 1);
    target.tell(&format!("drop {at} 10"));
    let again = target.touch("thread", at, 10, 1);
    let (trace, json) = recording.end();
    let seen = faults(&trace, pid, at, 1000);
    check(&seen[..1000], touched, (0..1000).map(|page| at + page * PAGE));
    check(&seen[1000..], again, (0..10).map(|page| at + page * PAGE));
    assert!(seen.iter().all(|(_, fault)| fault.latency_ns.is_some() && fault.access.is_none()));
    let maps = trace.events.iter().any(|event| match &event.what {
        EventKind::Map(map) => !map.is_old && map.range.contains(at as usize),
        _ => false,
    });
    assert!(maps, "the kernel tells new mappings");
    assert_eq!(json["lost"], 0);
    let unseen = trace.header.unseen.join("\n");
    for wanted in ["munmap", "read(2)", "sysctl kernel.perf_event_paranoid=1", "setcap"] {
        assert!(unseen.contains(wanted), "{wanted}: {unseen}");
    }

    let other = std::process::id().to_string();
    let mut command = as_nobody(&cowslip, "");
    let refused = run(command.args(["trace", "--pid", &other, "-o", "/dev/null"]));
    assert_eq!(refused.status.code(), Some(4), "{}", refused.stderr);
    assert!(refused.stderr.contains("run as root"), "{}", refused.stderr);
}

#[test]
fn permissions_names_what_is_missing_and_the_commands_that_fix_it() {
    let table = |command: &mut Command| -> String {
        let ran = run(command.args(["trace", "permissions"]));
        assert!(ran.status.success(), "{}", ran.stderr);
        ran.stdout
    };
    let own = table(&mut Command::new(COWSLIP));
    let mut lines = own.lines().skip(1).peekable();
    while let Some(line) = lines.next() {
        let is_denied = line.split_whitespace().nth(1) == Some("denied");
        let advice = lines.next_if(|next| next.starts_with(' '));
        assert_eq!(is_denied, advice.is_some(), "{line}: {own}");
    }

    let Some((_copy, cowslip)) = for_everybody() else { return };
    let answers = |capabilities: &str| {
        let report = table(&mut as_nobody(&cowslip, capabilities));
        let answer = move |name: &str| {
            let mut rows = report.lines().map(|line| line.split_whitespace());
            let mut row = rows.find(|row| row.clone().next() == Some(name)).unwrap();
            row.nth(1).unwrap().to_owned()
        };
        ["faults", "latency", "kernel-faults", "calls", "access", "huge", "others"].map(answer)
    };
    let (yes, no) = ("yes", "denied");
    assert_eq!(answers(""), [yes, yes, no, no, no, no, no]);
    // The permissions that the commands grant.
    assert_eq!(answers(",+perfmon,+dac_read_search"), [yes; 7]);
}

#[test]
fn what_cannot_be_recorded_is_said_and_leaves_the_old_trace() {
    let folder = Folder::new("trace-wrong");
    let trace = folder.0.join("trace");
    fs::write(&trace, "old").unwrap();
    let run_with = |arguments: &[&str]| {
        let ran = run(Command::new(COWSLIP).args(["trace", "-o"]).arg(&trace).args(arguments));
        (ran.status.code(), ran.stderr)
    };
    for (arguments, code, said) in [
        (&["--pid", "2147483647"][..], 5, "process 2147483647"),
        (&["--", "/nonexistent/program"], 127, "/nonexistent/program"),
        (&["--ring", "5000", "--pid", "1"], 2, "power of two"),
        (&["--ring", "5000", "--", "true"], 125, "power of two"),
        (&[], 2, "which program"),
    ] {
        let (got, message) = run_with(arguments);
        assert!(got == Some(code) && message.contains(said), "{arguments:?}: {got:?} {message}");
    }
    assert_eq!(fs::read_to_string(&trace).unwrap(), "old");
}

/// Both count the same faults, one by one and as the kernel's sum.
#[test]
fn metrics_are_recorded_beside_the_trace() {
    let folder = Folder::new("trace-metrics");
    let (trace, metrics) = (folder.0.join("trace"), folder.0.join("metrics"));
    let mut command = Command::new(COWSLIP);
    command.args(["trace", "--json", "-", "-o"]).arg(&trace).arg("--metrics").arg(&metrics);
    let ran = run(command.args(["--", "dd", "if=/dev/zero", "of=/dev/null", "count=1", "bs=8M"]));
    let json: Value = serde_json::from_str(&ran.stdout).expect(&ran.stderr);
    let recorded = json["faults"].as_f64().expect(&ran.stdout);

    let text = fs::read_to_string(&metrics).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut place = None;
    let mut seen = Vec::new();
    for line in &lines {
        if let Some(names) = line["metrics"].as_array() {
            place = names.iter().position(|metric| metric["name"] == "process.minor_faults");
        }
        seen.extend(place.and_then(|place| line["sample"]["values"][place].as_f64()));
    }
    let counted = seen.last().unwrap() - seen.first().unwrap();
    assert!((counted - recorded).abs() <= 100.0, "{counted} counted, {recorded} recorded: {text}");
    assert!(lines.last().unwrap()["totals"]["wall_seconds"].as_f64() > Some(0.0));
}
