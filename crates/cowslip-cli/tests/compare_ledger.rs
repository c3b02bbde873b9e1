//! `cowslip compare run`: the ledger of time, two modes of a side, and the end by precision.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support::{COWSLIP, Folder, Ran, run};

fn record(folder: &Folder, options: &[&str]) -> Ran {
    let mut command = Command::new(COWSLIP);
    command.args(["compare", "run", "--output"]).arg(folder.0.join("runs")).args(options);
    run(&mut command)
}

fn report(folder: &Folder, options: &[&str]) -> Value {
    let ran = record(folder, &[options, &["--json", "-"]].concat());
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.stderr))
}

/// The added seconds of a part.
fn added(report: &Value, part: &str) -> f64 {
    let ledger = report["time"]["ledger"].as_array().unwrap();
    let entry = ledger.iter().find(|entry| entry["part"] == part);
    entry.map_or(0.0, |entry| entry["added"]["value"].as_f64().unwrap())
}

fn sum(report: &Value) -> f64 {
    let ledger = report["time"]["ledger"].as_array().unwrap();
    ledger.iter().map(|entry| entry["added"]["value"].as_f64().unwrap()).sum()
}

#[test]
fn sleep_is_asleep_and_the_rows_add_up_to_the_wall_time() {
    let folder = Folder::new("ledger-sleep");
    let options = ["-n", "5", "--good", "sleep 0.05", "--bad", "sleep 0.25"];
    let report = report(&folder, &options);
    let wall = report["time"]["wall"]["added"]["value"].as_f64().unwrap();
    assert!((sum(&report) - wall).abs() < 1e-9, "{:#}", report["time"]);
    let asleep = added(&report, "asleep");
    assert!(wall > 0.19 && asleep > 0.7 * wall, "{asleep} of {wall}");
    assert_eq!(added(&report, "lock_wait"), 0.0);
    let [good, bad] = ["good", "bad"].map(|side| folder.0.join("runs").join(side));
    let ran = run(Command::new(COWSLIP).arg("compare").arg(good).arg("--").arg(bad));
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines[0].contains("; the time went to being asleep (+"), "{}", lines[0]);
    assert!(lines[2].trim_start().starts_with("ms a run"), "{}", ran.stdout);
    assert!(ran.stdout.contains("asleep otherwise") && ran.stdout.contains("  wall time "));
    assert!(ran.stdout.contains("Hodges and Lehmann's shift is +"), "{}", ran.stdout);
}

/// Four threads, each with a lock of its own or one that all share, which is held while its holder sleeps or computes.
const THREADS: &str = "import threading, time, sys
locks = [threading.Lock() for _ in range(4)]
def work(own):
    for _ in range(10):
        with locks[own]:
            time.sleep(0.02)
threads = [threading.Thread(target=work, args=(n if sys.argv[1] == 'own' else 0,)) for n in range(4)]
for it in threads: it.start()
for it in threads: it.join()
";

#[test]
fn a_lock_held_in_sleep_is_sleep_and_processes_at_once_are_taken_back() {
    let folder = Folder::new("ledger-threads");
    let script = folder.0.join("threads.py");
    fs::write(&script, THREADS).unwrap();
    let python = |how: &str| format!("exec /usr/bin/python3 {} {how}", script.display());
    if !Path::new("/usr/bin/python3").exists() {
        println!("SKIPPED: /usr/bin/python3 is not installed");
        return;
    }
    let report = report(&folder, &["-n", "4", "--good", &python("own"), "--bad", &python("one")]);
    let wall = report["time"]["wall"]["added"]["value"].as_f64().unwrap();
    assert!((sum(&report) - wall).abs() < 1e-9);
    // 800 ms one after the other in place of 200: the holder sleeps, so the reason is no lock.
    assert!(wall > 0.48 && added(&report, "asleep") > 0.6 * wall, "{:#}", report["time"]);

    let folder = Folder::new("ledger-processes");
    let busy = "n=0; while [ $n -lt 30000 ]; do n=$((n + 1)); done";
    let bad = format!("({busy}) & ({busy}) & ({busy}) & wait");
    let report = self::report(&folder, &["-n", "4", "--good", busy, "--bad", &bad]);
    let wall = report["time"]["wall"]["added"]["value"].as_f64().unwrap();
    assert!((sum(&report) - wall).abs() < 1e-9);
    let used: f64 = ["user", "system", "running", "processor_wait"]
        .iter()
        .map(|part| added(&report, part))
        .sum();
    assert!(used > wall && added(&report, "overlap") < 0.0, "{:#}", report["time"]);
}

#[test]
fn two_modes_of_a_side_are_named_with_the_counter_that_tells_them_apart() {
    let folder = Folder::new("modes");
    let file = |name: &str, slow: u32| {
        let row = |index: u32| {
            let setting = if name == "good" { "always" } else { "never" };
            let noise = f64::from(index * 7 % 20) / 2_000.0;
            let (wall, faults) = if index < slow { (0.58, 90_000.0) } else { (0.41, 1_000.0) };
            let text = format!(
                r#"{{"start": {{"schema": "cowslip.recording/1", "created_unix_ns": 1, "facts": {{"thp.enabled": "{setting}", "command": "{name}"}}}}}}
{{"totals": {{"wall_seconds": {}, "rusage.minor_faults": {}, "other": {}}}}}
"#,
                wall + noise,
                faults + f64::from(index * 3 % 7),
                index * 11 % 13
            );
            let side = folder.0.join(name);
            fs::create_dir_all(&side).unwrap();
            fs::write(side.join(format!("{index:02}.jsonl")), text).unwrap();
        };
        (0..20).for_each(row);
        folder.0.join(name)
    };
    let (good, bad) = (file("good", 0), file("bad", 6));
    let mut command = Command::new(COWSLIP);
    let ran = run(command
        .args(["compare", &format!("--json={}", folder.0.join("json").display())])
        .arg(&good)
        .arg("--")
        .arg(&bad));
    let lines: Vec<&str> = ran.stdout.lines().collect();
    let settings = "not the same: thp.enabled is always in good runs, never in bad ones (to return: echo always > \
                    /sys/kernel/mm/transparent_hugepage/enabled)";
    assert_eq!(lines[1], settings, "{}", ran.stdout);
    let line = lines[2];
    assert!(
        line.starts_with("bad has two modes of wall time: 14 of 20 runs near 41"),
        "{}",
        ran.stdout
    );
    assert!(
        line.contains(", 6 near 58")
            && line.ends_with("told apart best by minor faults: 1.00k and 90.0k"),
        "{line}"
    );
    let report: Value =
        serde_json::from_str(&fs::read_to_string(folder.0.join("json")).unwrap()).unwrap();
    let modes = report["modes"].as_array().unwrap();
    assert_eq!((modes.len(), &modes[0]["side"]), (1, &"bad".into()));
    assert_eq!(modes[0]["told_apart_by"]["metric"], "rusage.minor_faults");
    let ran = run(Command::new(COWSLIP).arg("compare").arg(&good).arg("--").arg(&good));
    assert!(!ran.stdout.contains("two modes"), "{}", ran.stdout);
    assert_eq!(ran.stdout.lines().nth(1), Some(""), "{}", ran.stdout);
    let said = "or more would have been shown with a probability of 80 %";
    assert!(ran.stdout.contains(said), "{}", ran.stdout);
}

#[test]
fn a_session_ends_when_its_interval_is_as_narrow_as_asked_for_or_after_the_most_runs() {
    let count = |folder: &Folder| {
        let count = |side: &str| fs::read_dir(folder.0.join("runs").join(side)).unwrap().count();
        [count("good"), count("bad")]
    };
    // Sleep varies by far less than it takes.
    let folder = Folder::new("until-reached");
    let both = ["--good", "sleep 0.05", "--bad", "sleep 0.05", "--warmup", "0"];
    let ran = record(&folder, &[&both[..], &["--until", "200"]].concat());
    assert_eq!(count(&folder), [10, 10], "{}", ran.stderr);
    assert!(ran.stderr.contains("% wide after 10 runs of each"), "{}", ran.stderr);
    let folder = Folder::new("until-bound");
    let ran = record(&folder, &[&both[..], &["--until", "0.000001", "-n", "12"]].concat());
    assert_eq!(count(&folder), [12, 12], "{}", ran.stderr);
    assert!(ran.stderr.contains("still") && ran.stderr.contains("after 12 runs"), "{}", ran.stderr);
    // A metric that is the same in all runs needs no more of them.
    let folder = Folder::new("until-same");
    let ran = record(&folder, &[&both[..], &["--until", "1", "--primary", "exit_code"]].concat());
    assert_eq!(count(&folder), [10, 10], "{}", ran.stderr);
    let folder = Folder::new("until-unknown");
    let ran = record(&folder, &[&both[..], &["--until", "1", "--primary", "none"]].concat());
    assert_eq!(ran.status.code(), Some(2), "{}", ran.stderr);
}
