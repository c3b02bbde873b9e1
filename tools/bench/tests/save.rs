//! `cowslip-bench save`, small: each way has its rows or a reason, phases add up to the cycle, and nothing is left behind.

mod support;

use std::fs;
use std::process::Command;

use serde_json::Value;
use support::BENCH;
use support::process::{Folder, redis_is_there, run};

const SETTINGS: [&str; 3] = ["shmem_enabled", "hugepages-64kB/enabled", "hugepages-2048kB/enabled"];
const PHASES: [&str; 4] = ["before", "during", "0-1 s", "1-5 s"];

fn settings() -> Vec<String> {
    let path = |name| format!("/sys/kernel/mm/transparent_hugepage/{name}");
    SETTINGS.map(|name| fs::read_to_string(path(name)).unwrap_or_default()).into()
}

#[test]
fn phases_add_up_to_the_cycle_and_nothing_is_left_behind() {
    if !redis_is_there() {
        return;
    }
    let folder = Folder::new("bench-save");
    let before = settings();
    let mut command = Command::new(BENCH);
    command.args(["save", "--size", "64M", "--runs", "1", "--only", "paced"]);
    let ran = run(command.args(["--json", "-"]).env("TMPDIR", &folder.0));
    // 1: a speed promise was missed, because the machine does other work.
    assert!(matches!(ran.status.code(), Some(0 | 1)), "{}", ran.stderr);
    assert_eq!(settings(), before);
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);

    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let mut measured = Vec::new();
    for system in ["stock-4k", "stock-thp", "stock-mthp-64k", "cowslip", "cowslip-user"] {
        let of = |metric: &str| {
            let metric = metric.to_owned();
            rows.iter().filter(move |row| row["system"] == system && row["metric"] == metric)
        };
        let value = |metric: &str, stat: &str| {
            let row = of(metric).find(|row| row["stat"] == stat);
            let row = row.unwrap_or_else(|| panic!("{system}: {metric} {stat}"));
            assert_eq!(row["variant"], "paced");
            row["value"].as_f64().unwrap()
        };
        if let Some(why) = of("requests").find_map(|row| row["skipped"].as_str()) {
            println!("SKIPPED: {system}: {why}");
            continue;
        }
        measured.push(system);
        let adds_up = |what: &str, of: &dyn Fn(&str) -> f64| {
            let sum: f64 = PHASES.iter().map(|phase| of(phase)).sum();
            let cycle = of("cycle");
            assert!((sum - cycle).abs() <= cycle * 1e-6, "{system}, {what}: {sum} of {cycle}");
        };
        let answered = |phase: &str| value("requests", phase) * value("duration", phase) / 1e9;
        adds_up("time", &|phase| value("duration", phase));
        adds_up("requests", &answered);
        for cpu in ["cpu_a_request", "main_cpu_a_request"] {
            adds_up(cpu, &|phase| value(cpu, phase) * answered(phase));
            assert!(value(cpu, "cycle") > 500.0, "{system}");
        }
        assert!(value("cpu_a_request", "cycle") > value("main_cpu_a_request", "cycle") * 0.95);
        for ms in ["2", "5", "10", "20"] {
            adds_up(ms, &|phase| value(&format!("windows_over_{ms}ms"), phase));
        }
        assert!(value("windows_over_20ms", "cycle") <= value("windows_over_2ms", "cycle"));
        // At least the answered requests, and at most one more for each client.
        let (cycle, latencies) = (answered("cycle"), of("latency_cycle").next().unwrap());
        let extra = latencies["n"].as_f64().unwrap() - cycle;
        assert!((-0.5..50.5).contains(&extra), "{system}: {latencies} and {cycle}");
        assert!(value("redis_fork", "p50") > 10_000.0, "{system}");
        let is_ours = system.starts_with("cowslip");
        assert_eq!(of("service_thread_cpu").count() > 0, is_ours, "{system}");
        assert_eq!(of("longest_stall").count() > 0, is_ours, "{system}");
        let lines = report["series"].as_array().unwrap().iter();
        assert_eq!(lines.filter(|line| line["system"] == system).count(), 2);
    }
    assert!(measured.contains(&"stock-4k"), "{}", ran.stdout);
    let ratios = report["ratios"].as_array().unwrap();
    assert_eq!(
        ratios.iter().filter(|ratio| ratio["name"].as_str().unwrap().starts_with("save_")).count(),
        7
    );
}
