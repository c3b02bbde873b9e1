//! `cowslip-bench trace`, small: the time of a fault, for each tracer that can run here.

mod support;

use std::process::Command;

use serde_json::Value;
use support::BENCH;
use support::process::run;

#[test]
fn what_a_fault_takes_is_measured_beside_perf() {
    let mut command = Command::new(BENCH);
    command.args(["trace", "--only", "overhead", "--runs", "1", "--json", "-"]);
    let ran = run(&mut command);
    // 1: a speed promise was missed, because the machine does other work.
    assert!(matches!(ran.status.code(), Some(0 | 1)), "{}", ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    for system in ["plain", "perf", "cowslip"] {
        let row = rows.iter().find(|row| row["system"] == system).expect("a row or a reason");
        assert_eq!(row["metric"], "fault_time");
        match row["skipped"].as_str() {
            Some(why) => println!("SKIPPED: {system}: {why}"),
            // No fault is quicker than this, and none takes a millisecond.
            None => assert!((50.0..1e6).contains(&row["value"].as_f64().unwrap()), "{row}"),
        }
    }
    let ratios = report["ratios"].as_array().unwrap();
    assert!(ratios.iter().any(|ratio| ratio["name"] == "trace_overhead_over_perf"));
}
