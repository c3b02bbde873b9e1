//! Traces of a real, unmodified Redis that saves in the background, natively and under `cowslip run`: their difference
//! shows which process' writes copy which memory.

mod support;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::process::redis_is_there;
use support::{COWSLIP, Folder, run};

const PATIENCE: Duration = Duration::from_secs(60);
/// Values of 1,000 bytes each: 7,500 pages at least, if four fit in one.
const KEYS: u32 = 30_000;
const PAGES: f64 = 7_000.0;

/// Traces a server that saves while every value is written to; `None`, reported as skipped, where that is not possible.
fn trace(folder: &Folder, name: &str, prefix: &[&str]) -> Option<PathBuf> {
    let trace = folder.0.join(name);
    let socket = folder.0.join("socket");
    let mut command = Command::new(COWSLIP);
    command.args(["trace", "--detail", "access", "-o"]).arg(&trace);
    command.arg("--").args(prefix).args(["redis-server", "--port", "0", "--save", ""]);
    // Long enough for all writes: the child lives until the server ends.
    command.args(["--enable-debug-command", "yes", "--rdb-key-save-delay", "1000"]);
    command.arg("--unixsocket").arg(&socket).arg("--dir").arg(&folder.0);
    let mut recorder = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let ask = |words: &[&str]| {
        let answer = Command::new("redis-cli").arg("-s").arg(&socket).args(words).output();
        String::from_utf8_lossy(&answer.unwrap().stdout).trim().to_owned()
    };
    let deadline = Instant::now() + PATIENCE;
    while ask(&["ping"]) != "PONG" {
        if let Some(status) = recorder.try_wait().unwrap() {
            let expected = std::env::var("COWSLIP_EXPECT").is_ok_and(|text| text.contains("trace"));
            assert!(!expected, "the recorder ended with {status}");
            println!("SKIPPED: cowslip trace: {status}");
            return None;
        }
        assert!(Instant::now() < deadline, "the server never answered");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(ask(&["debug", "populate", &KEYS.to_string(), "key", "1000"]), "OK");
    assert_eq!(ask(&["bgsave"]), "Background saving started");
    let script = format!(
        "for i = 0, {} do redis.call('setrange', 'key:' .. i, 0, 'x') end return 'done'",
        KEYS - 1
    );
    assert_eq!(ask(&["eval", &script, "0"]), "done");
    assert!(
        ask(&["info", "persistence"]).contains("rdb_bgsave_in_progress:1"),
        "it ended too early"
    );
    ask(&["shutdown", "nosave"]);
    while recorder.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline + PATIENCE, "the recorder never ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    Some(trace)
}

#[test]
fn the_difference_shows_whose_writes_copied_what() {
    if !redis_is_there() {
        return;
    }
    let folder = Folder::new("trace-redis");
    let Some(stock) = trace(&folder, "stock.trace", &[]) else { return };
    let helped = [COWSLIP, "run", "--capacity", "1G", "--"];
    let Some(helped) = trace(&folder, "helped.trace", &helped) else { return };
    let mut diff = Command::new(COWSLIP);
    let ran =
        run(diff.args(["trace", "diff", "--by", "run", "--json", "-"]).arg(stock).arg(helped));
    assert_eq!(ran.status.code(), Some(1), "{}", ran.stderr);
    let diff: Value = serde_json::from_str(&ran.stdout).unwrap();
    if !diff["headers"][0]["sources"].to_string().contains("page_fault_user") {
        return println!("SKIPPED: whether memory was written is not seen here");
    }
    let of = |kind: &str| -> [f64; 2] {
        let kinds = diff["diff"]["kinds"].as_array().unwrap();
        let found = kinds.iter().find(|entry| entry["kind"] == kind);
        let of = |side: usize| found.map_or(0.0, |entry| entry["compared"][side].as_f64().unwrap());
        [of(0), of(1)]
    };
    let (forked, copied) = (of("cow_after_fork"), of("file_copy"));
    assert!(forked[0] >= PAGES && forked[1] < PAGES / 4.0, "{forked:?} {copied:?}");
    // Hot chunks move to a place of their own, which copies fewer.
    assert!(copied[1] > copied[0], "{forked:?} {copied:?}");
    let explanations = diff["diff"]["explanations"].to_string();
    assert!(
        explanations.contains("only the second program has its memory in an arena"),
        "{diff:#}"
    );
    assert!(explanations.contains("copy-on-write after fork"), "{explanations}");
}
