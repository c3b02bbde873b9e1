//! The kernel's histogram of fault latencies: against the trace's own faults, and a program's own clock.

use std::ffi::OsString;
use std::hint::black_box;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{env, fs, io};

use cowslip_trace::file::Writer;
use cowslip_trace::model::{EventKind, Latencies, LatencyBucket, Severity, Trace};
use cowslip_trace::record::{Options, PermissionStatus, Recorder, permissions};
use memmap2::{Advice, MmapMut, MmapOptions};

const TRACEFS: &str = "/sys/kernel/tracing";
const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;
/// Faults of base pages, of huge pages, and from swap.
const BASE: usize = 2000;
const HUGE_PAGES: usize = 24;
const SWAPPED: usize = 500;
/// Faults between the beginning of one way of counting and that of the other.
const BOUND: u64 = 16;

/// Histograms count the faults of the machine, and leave traces in tracefs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// True if the histogram works; otherwise a skip with its reason.
fn has_histogram() -> bool {
    let all = permissions();
    let status = &all.iter().find(|permission| permission.name == "histogram").unwrap().status;
    let declared = env::var("COWSLIP_EXPECT").unwrap_or_default();
    let is_available = *status == PermissionStatus::Available;
    assert!(is_available || !declared.split(',').any(|word| word == "latency"), "{status:?}");
    if !is_available {
        println!("SKIPPED: histogram of latencies: {status:?}");
    }
    is_available
}

/// Names in tracefs that belong to histograms.
fn left() -> Vec<String> {
    let instances = fs::read_dir(Path::new(TRACEFS).join("instances")).into_iter().flatten();
    let instances = instances.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let events = fs::read_to_string(Path::new(TRACEFS).join("dynamic_events")).unwrap_or_default();
    let events: Vec<String> = events.lines().map(str::to_owned).collect();
    instances.chain(events).filter(|name| name.contains("cowslip_")).collect()
}

/// Fresh private memory.
fn map(bytes: usize, advice: Advice) -> MmapMut {
    let memory = MmapOptions::new().len(bytes + HUGE).map_anon().unwrap();
    memory.advise(advice).unwrap();
    memory
}

/// Writes a byte in each `step`, from a multiple of 2 MiB on; returns the nanoseconds that each took.
fn touch(memory: &mut MmapMut, count: usize, step: usize) -> Vec<u64> {
    let first = memory.as_ptr().align_offset(HUGE);
    let time = |number: usize| {
        let began = Instant::now();
        *black_box(&mut memory[first + number * step]) = 7;
        began.elapsed().as_nanos() as u64
    };
    (0..count).map(time).collect()
}

#[expect(unsafe_code, reason = "no crate has this advice as a safe function")]
fn page_out(memory: &mut MmapMut) {
    // SAFETY: the memory is mapped, and keeps its content.
    let answer =
        unsafe { libc::madvise(memory.as_mut_ptr().cast(), memory.len(), libc::MADV_PAGEOUT) };
    assert_eq!(answer, 0, "{}", io::Error::last_os_error());
}

/// The recorded program: writes its own measurements to the file of the variable.
#[test]
#[ignore = "a part of another test"]
fn the_program() {
    let Ok(file) = env::var("COWSLIP_TIMES") else { return };
    let base = touch(&mut map(BASE * PAGE, Advice::NoHugePage), BASE, PAGE);
    let huge = touch(&mut map(HUGE_PAGES * HUGE, Advice::HugePage), HUGE_PAGES, HUGE);
    let mut memory = map(SWAPPED * PAGE, Advice::NoHugePage);
    touch(&mut memory, SWAPPED, PAGE);
    page_out(&mut memory);
    let swapped = touch(&mut memory, SWAPPED, PAGE);
    fs::write(file, serde_json::to_string(&[base, huge, swapped]).unwrap()).unwrap();
}

fn command(name: &str, variable: &str) -> Vec<OsString> {
    let own = env::current_exe().unwrap();
    let script = format!("{variable} exec {} --exact {name} --ignored", own.display());
    ["/bin/sh".into(), "-c".into(), script.into()].into()
}

/// Records the program with the histogram; also returns its own measurements.
fn record() -> (Trace, Latencies, [Vec<u64>; 3]) {
    let times = env::temp_dir().join(format!("cowslip-times-{}", std::process::id()));
    let command = command("the_program", &format!("COWSLIP_TIMES={}", times.display()));
    let options = Options { latency: true, ..Options::default() };
    let mut recorder = Recorder::launch(&command, &options).unwrap();
    let mut writer = Writer::new(Vec::new(), recorder.header()).unwrap();
    let (never, _kept) = io::pipe().unwrap();
    recorder.start(&mut writer).unwrap();
    while !recorder.has_ended() {
        recorder.round(never.as_fd(), &mut writer).unwrap();
    }
    let outcome = recorder.finish(&mut writer).unwrap();
    writer.latencies(outcome.latencies.as_ref().expect("it was possible")).unwrap();
    let (bytes, _) = writer.finish(outcome.lost).unwrap();
    let trace = Trace::read_from(&bytes[..]).unwrap();
    assert_eq!((trace.totals.lost, trace.is_cut_short), (0, false));
    assert_eq!(trace.latencies, outcome.latencies, "the file keeps it");
    let measured = serde_json::from_slice(&fs::read(&times).unwrap()).unwrap();
    fs::remove_file(times).unwrap();
    (trace, outcome.latencies.unwrap(), measured)
}

fn sum(latencies: &Latencies, counts: impl Fn(&LatencyBucket) -> bool) -> u64 {
    latencies.buckets.iter().filter(|bucket| counts(bucket)).map(|bucket| bucket.faults).sum()
}

#[test]
fn each_fault_of_a_program_is_in_the_bucket_of_its_own_clock() {
    let _alone = alone();
    if !has_histogram() {
        return;
    }
    let (trace, latencies, [base, huge, swapped]) = record();
    println!("{latencies:?}");
    assert_eq!(latencies.uncounted, 0);
    for in_user_mode in [true, false] {
        for severity in [Severity::Minor, Severity::Major] {
            let is_of = |what: &EventKind| match what {
                EventKind::Fault(fault) => {
                    (fault.in_user_mode, fault.severity) == (Some(in_user_mode), Some(severity))
                }
                _ => false,
            };
            let traced = trace.events.iter().filter(|event| is_of(&event.what)).count() as u64;
            let kind = |bucket: &LatencyBucket| {
                bucket.in_user_mode == in_user_mode && bucket.severity == severity
            };
            let counted = sum(&latencies, kind);
            println!("{severity:?}, user {in_user_mode}: {traced} traced, {counted} counted");
            assert!(counted.abs_diff(traced) <= BOUND, "{severity:?}, user {in_user_mode}");
        }
    }
    // The clock of the program also measures the way to the kernel and back, and interruptions.
    let median = |times: &[u64]| {
        let mut times = times.to_vec();
        times.sort_unstable();
        times[times.len() / 2]
    };
    for (name, times, severity) in [
        ("base", &base, Severity::Minor),
        ("huge", &huge, Severity::Minor),
        ("swapped", &swapped, Severity::Major),
    ] {
        let median = median(times);
        let is_near = |bucket: &LatencyBucket| {
            bucket.severity == severity && (median / 4..=2 * median).contains(&bucket.up_to_ns)
        };
        let near = sum(&latencies, |bucket| bucket.in_user_mode && is_near(bucket));
        println!("{name}: median {median} ns, {near} of {} near", times.len());
        assert!(near * 2 >= times.len() as u64, "{name}: {near}");
    }
    // Zeroing 2 MiB takes longer than a base page by far; no bucket may hide that.
    let slow = median(&huge) / 4;
    assert!(slow > 2 * median(&base), "{slow}");
    let slow =
        sum(&latencies, |bucket| bucket.severity == Severity::Minor && bucket.up_to_ns >= slow);
    assert!(slow >= HUGE_PAGES as u64 && slow < BASE as u64 / 2, "{slow}");
    assert_eq!(left(), [""; 0], "everything was removed");
}

/// A recorder that is killed.
#[test]
#[ignore = "a part of another test"]
fn the_recorder() {
    let Ok(file) = env::var("COWSLIP_RECORDS") else { return };
    let options = Options { latency: true, ..Options::default() };
    let recorder = Recorder::launch(&["/bin/true".into()], &options).unwrap();
    fs::write(&file, "ready").unwrap();
    loop {
        std::thread::park();
        assert!(recorder.header().clock.len() > 1);
    }
}

#[test]
fn the_next_recorder_removes_the_histogram_of_a_killed_one() {
    let _alone = alone();
    // In a process of its own, as a recorder cleans once.
    if !has_histogram() {
        return;
    }
    let ready: PathBuf = env::temp_dir().join(format!("cowslip-ready-{}", std::process::id()));
    let start = |name: &str| {
        let command = command(name, &format!("COWSLIP_RECORDS={}", ready.display()));
        Command::new(&command[0]).args(&command[1..]).spawn().unwrap()
    };
    let wait = || {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !ready.exists() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        fs::remove_file(&ready).unwrap();
    };
    let mut killed = start("the_recorder");
    wait();
    let ours =
        |pid: u32| left().into_iter().filter(|name| name.contains(&format!("_{pid}_"))).count();
    assert_eq!(ours(killed.id()), 4, "{:?}", left());
    let mut second = start("the_recorder");
    wait();
    assert_eq!(ours(killed.id()), 4, "a living one keeps its own: {:?}", left());
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(ours(killed.id()), 4, "{:?}", left());
    let mut third = start("the_recorder");
    wait();
    assert_eq!((ours(killed.id()), ours(second.id())), (0, 4), "{:?}", left());
    for child in [&mut second, &mut third] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let mut last = start("the_cleaner");
    assert!(last.wait().unwrap().success());
    assert_eq!(left(), [""; 0]);
}

#[test]
#[ignore = "a part of another test"]
fn the_cleaner() {
    permissions();
}

#[test]
fn a_kernel_without_it_names_the_option() {
    let _alone = alone();
    let lacks: Vec<_> =
        [("kprobe_events", "CONFIG_KPROBE_EVENTS"), ("synthetic_events", "CONFIG_HIST_TRIGGERS")]
            .into_iter()
            .filter(|(file, _)| !Path::new(TRACEFS).join(file).exists())
            .map(|(_, option)| option)
            .collect();
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    let has_tracefs = Path::new(TRACEFS).join("dynamic_events").exists();
    if lacks.is_empty() || !is_root || !has_tracefs {
        println!(
            "SKIPPED: a kernel without histograms: {lacks:?}, root {is_root}, tracefs {has_tracefs}"
        );
        return;
    }
    assert!(!has_histogram());
    let options = Options { latency: true, ..Options::default() };
    let recorder = Recorder::launch(&["/bin/true".into()], &options).unwrap();
    let wanted = format!("latencies counted by the kernel: this kernel lacks {}", lacks.join(", "));
    assert!(recorder.header().unseen.contains(&wanted), "{:?}", recorder.header().unseen);
    assert_eq!(left(), [""; 0]);
}
