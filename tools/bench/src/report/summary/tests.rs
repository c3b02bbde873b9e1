//! The results in this tree: whole, explained, and of a program like this one.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::json;

use super::*;
use crate::promise::Promise;

/// Commits in the measured crates after which results are of another program.
const MOST_COMMITS: u32 = 30;
/// The measured sources. No bench runs the two crates of whole processes and their two parts of cowslip-sys, nor that of
/// virtual machines, nor that of comparisons, nor measures the command's output.
const MEASURED: [&str; 8] = [
    ":(glob)crates/cowslip*/src/**",
    ":!crates/cowslip-process",
    ":!crates/cowslip-criu",
    ":!crates/cowslip-vm",
    ":!crates/cowslip-compare",
    ":!crates/cowslip-cli",
    ":!crates/cowslip-sys/src/ptrace.rs",
    ":!crates/cowslip-sys/src/shared_queue.rs",
];

/// Measured sources that one bench alone runs.
const OF_ONE_BENCH: [(&str, &str); 5] = [
    ("trace", ":!crates/cowslip-trace"),
    ("bloat", ":!crates/cowslip-promote"),
    ("process", ":!crates/cowslip-sys/src/hold_point.rs"),
    ("process", ":!crates/cowslip-preload/src/branch/hold.rs"),
    ("process", ":!crates/cowslip-preload/src/branch/marks.rs"),
];

fn benchmarks() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks")
}

fn run(is_quiet: bool, value: f64, host_fit: bool) -> Run {
    let ratio = json!({ "name": "a", "value": value, "host_fit": host_fit });
    let folder = value.to_string();
    Run { folder, is_quiet, report: json!({ "bench": "cow", "ratios": [ratio] }) }
}

#[test]
fn the_newest_quiet_result_counts_and_the_worst_busy_one() {
    let mut runs: Vec<_> = [1.0, 0.9, 1.2].map(|value| run(false, value, true)).into();
    let results = |runs: &[Run]| Results::new(runs, "a", Bound::AtMost(1.0));
    assert_eq!(results(&runs).worst().map(|worst| worst.value), Some(1.2));
    assert_eq!(results(&runs).status(), "misses when busy");
    runs.push(run(true, 3.0, true));
    assert_eq!(results(&runs).status(), "misses");
    runs.push(run(true, 1.0, true));
    assert_eq!(results(&runs).status(), "misses when busy");
    assert_eq!(results(&runs[3..]).status(), "holds");
    runs.push(run(true, 0.5, false));
    assert_eq!(results(&runs).status(), "host unfit");
    assert_eq!(results(&runs).quiet.as_ref().map(Measured::told).as_deref(), Some("0.500 ‡"));
    assert_eq!(results(&[]).status(), "not measured");
    let failed = json!({ "bench": "cow", "ratios": [{ "name": "a", "value": null }] });
    runs.push(Run { folder: "newest".to_owned(), is_quiet: true, report: failed });
    assert_eq!(results(&runs[3..]).status(), "not measured", "an older value would pass for it");
}

/// `cowslip-bench report` was forgotten if this fails.
#[test]
fn the_page_is_that_of_the_results() {
    let page = fs::read_to_string(benchmarks().join("../BENCHMARKS.md")).unwrap();
    assert_eq!(markdown(&benchmarks()).unwrap(), page);
}

/// Fails for results that are missing or old, where `COWSLIP_EXPECT` has `results`.
fn judge(wrong: &[String]) {
    if wrong.is_empty() {
        return;
    }
    let declared = std::env::var("COWSLIP_EXPECT").unwrap_or_default();
    let remedy = "run benchmarks/run, and see benchmarks/reasons.json";
    assert!(!declared.split(',').any(|word| word == "results"), "{remedy}: {wrong:#?}");
    println!("SKIPPED: results: {remedy}: {} are missing or old", wrong.len());
}

#[test]
fn every_promise_has_a_result_and_each_missed_one_a_reason() {
    let runs = runs(&benchmarks()).unwrap();
    let reasons = parse(&benchmarks().join("reasons.json")).unwrap();
    let mut wrong = Vec::new();
    for (bench, promises) in BENCHES {
        for promise in promises {
            let results = Results::new(&runs, promise.name, promise.bound);
            let is_missed = results.quiet.as_ref().is_some_and(|quiet| !results.holds(quiet));
            if results.quiet.is_none() {
                wrong.push(format!("{bench} {}: no result", promise.name));
            } else if is_missed && !reasons[promise.name].is_string() {
                wrong.push(format!("{bench} {}: missed without a reason", promise.name));
            }
        }
    }
    let names: Vec<_> =
        BENCHES.iter().flat_map(|(_, all)| all.iter().map(|promise| promise.name)).collect();
    let reasons = reasons.as_object().unwrap().keys();
    let unknown = reasons.filter(|name| !names.contains(&name.as_str()));
    wrong.extend(unknown.map(|name| format!("{name}: a reason for no promise")));
    judge(&wrong);
}

/// The standard output of git in the sources.
fn git(words: &[&str]) -> Option<String> {
    let output =
        Command::new("git").arg("-C").arg(benchmarks().join("..")).args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

#[test]
fn results_are_of_a_program_like_this_one() {
    if git(&["rev-parse", "--is-shallow-repository"]).as_deref() != Some("false") {
        println!("SKIPPED: git: the history is not here");
        return;
    }
    let runs = runs(&benchmarks()).unwrap();
    let mut wrong = Vec::new();
    for (bench, promises) in BENCHES {
        let results = |promise: &Promise| Results::new(&runs, promise.name, promise.bound).quiet;
        let commits: BTreeSet<_> =
            promises.iter().filter_map(results).map(|measured| measured.commit).collect();
        let others =
            OF_ONE_BENCH.iter().filter(|(one, _)| *one != bench).map(|(_, source)| *source);
        let sources: Vec<&str> = MEASURED.into_iter().chain(others).collect();
        for commit in commits {
            let since = format!("{}..HEAD", commit.as_deref().unwrap_or("none"));
            let later = git(&[&["rev-list", "--count", &since, "--"][..], &sources].concat());
            match later.as_deref().map(str::parse::<u32>) {
                Some(Ok(0..=MOST_COMMITS)) => {}
                later => wrong.push(format!("{bench}: {commit:?}, commits since: {later:?}")),
            }
        }
    }
    judge(&wrong);
}
