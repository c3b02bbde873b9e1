//! `cowslip status PID`: reads the counters of a running program from its memory.
//!
//! Nothing runs in the program for it: the page of counters is found by its name in
//! `/proc/PID/maps` and read through `/proc/PID/mem`, so that it works for a stopped program too.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;

use cowslip::units::{ByteCount, VirtRange};
use cowslip::{Departure, Footprint, Metrics};
use serde_json::{Map, Value, json};

use crate::args::StatusArgs;
use crate::exit::{Answer, DENIED, Failure, NO, VANISHED};
use crate::output;

struct Arena {
    metrics: Metrics,
    footprint: Footprint,
}

pub(crate) fn run(args: StatusArgs) -> Answer {
    let pid = args.pid;
    let arenas = arenas(pid).map_err(|error| explain(pid, &error))?;
    if arenas.is_empty() {
        return Err(Failure::new(
            NO,
            format!(
                "process {pid} has no arena: it was not started with `cowslip run`, or never mapped \
                 large memory"
            ),
        ));
    }
    if let Some(file) = &args.json {
        let arenas: Vec<Value> = arenas.iter().map(to_json).collect();
        let whole = json!({"schema": "cowslip.status/1", "pid": pid, "arenas": arenas});
        output::json::write(&whole, file).map_err(|error| Failure::new(NO, error))?;
        return Ok(ExitCode::SUCCESS);
    }
    for arena in &arenas {
        print(arena);
    }
    Ok(ExitCode::SUCCESS)
}

fn explain(pid: i32, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::NotFound => Failure::new(VANISHED, format!("there is no process {pid}")),
        io::ErrorKind::PermissionDenied => Failure::new(
            DENIED,
            format!("may not look into process {pid}: run as its user or as root"),
        ),
        _ if error.raw_os_error() == Some(3) => {
            Failure::new(VANISHED, format!("process {pid} ended meanwhile"))
        }
        _ => Failure::new(NO, format!("cannot look into process {pid}: {error}")),
    }
}

fn arenas(pid: i32) -> io::Result<Vec<Arena>> {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps"))?;
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    let mut arenas = Vec::new();
    for line in smaps.lines().filter(|line| line.contains(cowslip::PAGE_NAME)) {
        let Some((start, _)) = range_of(line) else { continue };
        let mut page = [0u8; 4096];
        memory.read_exact_at(&mut page, start)?;
        if let Some(metrics) = Metrics::from_page(&page) {
            arenas.push(measure(metrics, &smaps));
        }
    }
    Ok(arenas)
}

fn range_of(line: &str) -> Option<(u64, u64)> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

fn measure(metrics: Metrics, smaps: &str) -> Arena {
    let arena =
        VirtRange::new(metrics.arena_start_address as usize, metrics.capacity_bytes as usize);
    Arena { metrics, footprint: Footprint::parse(smaps, arena) }
}

fn state(metrics: &Metrics) -> &'static str {
    match (metrics.is_owner, metrics.frozen_chunks) {
        (0, _) => "reads its parent's arena",
        (_, 0) => "live",
        _ => "frozen",
    }
}

fn left(metrics: &Metrics) -> String {
    let why: Vec<_> = Departure::of_metrics(metrics.left_for).map(|why| why.to_string()).collect();
    match why.is_empty() {
        true => "nothing".into(),
        false => format!("{}: {}", ByteCount(metrics.left_bytes), why.join("; ")),
    }
}

fn to_json(arena: &Arena) -> Value {
    let mut fields: Map<String, Value> = arena
        .metrics
        .fields()
        .into_iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect();
    fields.insert("state".into(), state(&arena.metrics).into());
    let footprint = &arena.footprint;
    fields.insert("private_bytes".into(), footprint.private_bytes.into());
    fields.insert("resident_bytes".into(), footprint.resident_bytes.into());
    fields.insert("huge_mapped_bytes".into(), footprint.huge_mapped_bytes.into());
    fields.insert("anonymous_elsewhere_bytes".into(), footprint.elsewhere_bytes.into());
    fields.insert("anonymous_in_arena_percent".into(), footprint.in_arena_percent().into());
    Value::Object(fields)
}

fn print(arena: &Arena) {
    let (m, footprint) = (&arena.metrics, &arena.footprint);
    let us = |ns: u64| format!("{:.1} us", ns as f64 / 1e3);
    let rows = [
        ("state", format!("{}, {} frozen chunks of 2 MiB", state(m), m.frozen_chunks)),
        ("arena", format!("{:#x}, {}", m.arena_start_address, ByteCount(m.capacity_bytes))),
        ("in use", ByteCount(m.used_bytes).to_string()),
        ("resident", ByteCount(footprint.resident_bytes).to_string()),
        ("mapped by huge pages", ByteCount(footprint.huge_mapped_bytes).to_string()),
        ("private copies", ByteCount(footprint.private_bytes).to_string()),
        (
            "anonymous memory",
            format!(
                "{:.1} % in the arena, {} elsewhere",
                footprint.in_arena_percent(),
                ByteCount(footprint.elsewhere_bytes)
            ),
        ),
        ("way", if m.has_userfaultfd == 1 { "userfaultfd" } else { "plain" }.into()),
        (
            "freezes",
            format!("{} ({} plain, {} failed)", m.freezes, m.plain_freezes, m.failed_freezes),
        ),
        ("forks", m.forks.to_string()),
        ("last, longest freeze", format!("{}, {}", us(m.last_freeze_ns), us(m.longest_freeze_ns))),
        ("thaws", format!("{} ({} chunks, {} pages)", m.thaws, m.thawed_chunks, m.thawed_pages)),
        ("longest thaw step", us(m.longest_thaw_chunk_ns)),
        ("longest stall", us(m.longest_stall_ns)),
        ("mappings elsewhere", m.passed_mappings.to_string()),
        ("left the arena", left(m)),
        ("children ended", m.ended_children.to_string()),
    ];
    println!("process {}", m.pid);
    for (name, value) in rows {
        println!("  {name:<22} {value}");
    }
}
