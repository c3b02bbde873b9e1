//! `cowslip-bench bloat`, small: every way has its rows, no byte changes, and the system's settings are as before.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::BENCH;
use support::process::run;

const PATIENCE: Duration = Duration::from_secs(60);
/// Held while the settings are changed: they are the whole system's.
static SETTINGS_ARE_MINE: Mutex<()> = Mutex::new(());

const SETTINGS: &str = "/sys/kernel/mm/transparent_hugepage";

/// The settings that can be changed, by file.
fn settings() -> BTreeMap<String, String> {
    let below = ["", "khugepaged/"].map(|part| format!("{SETTINGS}/{part}"));
    let files = below.iter().flat_map(|path| fs::read_dir(path).unwrap()).flatten();
    let files = files.filter(|entry| {
        entry.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.mode() & 0o200 != 0)
    });
    let text = |path| fs::read_to_string(path).unwrap_or_default();
    files.map(|entry| (entry.path().display().to_string(), text(entry.path()))).collect()
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

fn bench(part: &str) -> Command {
    let mut command = Command::new(BENCH);
    command.args(["bloat", "--size", "64M", "--runs", "1", "--json", "-"]);
    command.args(["--only", part]);
    command
}

#[test]
fn coverage_is_measured_content_stays_and_settings_are_put_back() {
    let _alone = SETTINGS_ARE_MINE.lock().unwrap_or_else(PoisonError::into_inner);
    if !is_root() {
        return println!(
            "SKIPPED: bench bloat changes the system's settings, and this is not root"
        );
    }
    let before = settings();
    let ran = run(&mut bench("coverage"));
    // 1: a speed promise was missed, because the machine does other work.
    assert!(matches!(ran.status.code(), Some(0 | 1)), "{}", ran.stderr);
    assert_eq!(settings(), before);

    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    for (system, variant) in [
        ("cowslip", Value::from("once")),
        ("cowslip", Value::from("daemon")),
        ("madv-collapse", Value::Null),
        ("khugepaged", Value::Null),
        ("khugepaged-eager", Value::Null),
    ] {
        let is_it = |row: &&Value| row["system"] == system && row["variant"] == variant;
        let row = rows.iter().find(|row| row["metric"] == "coverage_time" && is_it(row)).unwrap();
        match row["skipped"].as_str() {
            Some(why) => println!("SKIPPED: {system} {variant}: {why}"),
            None => assert!(row["value"].as_f64().unwrap() > 0.0, "{row}"),
        }
        let changed = rows.iter().find(|row| row["metric"] == "bytes_changed" && is_it(row));
        assert_eq!(changed.map(|row| &row["value"]), Some(&Value::from(0.0)), "{system} {variant}");
    }
    let ratios = report["ratios"].as_array().unwrap();
    let ratio = |name: &str| ratios.iter().find(|ratio| ratio["name"] == name).unwrap();
    assert_eq!(ratio("bytes_changed")["value"], 0.0);
}

#[test]
fn however_it_ends_the_settings_are_put_back() {
    let _alone = SETTINGS_ARE_MINE.lock().unwrap_or_else(PoisonError::into_inner);
    if !is_root() {
        return println!(
            "SKIPPED: bench bloat changes the system's settings, and this is not root"
        );
    }
    let before = settings();
    for signal in ["-TERM", "-KILL"] {
        let mut child =
            bench("coverage").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until(|| settings() != before, "it never changed the settings");
        Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        child.wait().unwrap();
        // After SIGKILL its child puts them back.
        until(|| settings() == before, "they were not put back");
    }
}

fn until(is_so: impl Fn() -> bool, else_it: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{else_it}");
        thread::yield_now();
    }
}
