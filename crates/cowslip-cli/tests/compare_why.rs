//! `cowslip compare run` names the function in which a difference arose.

mod support;

use std::fs;
use std::process::Command;

use serde_json::Value;
use support::{COWSLIP, Folder, Ran, compile, run};

fn record(folder: &Folder, options: &[&str]) -> Command {
    let mut command = Command::new(COWSLIP);
    command.args(["compare", "run", "--output"]).arg(folder.0.join("runs")).args(options);
    command
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.stderr))
}

#[test]
fn the_function_that_became_slower_is_named_with_its_caller() {
    let folder = Folder::new("record-why");
    let Some(rows) = compile(&folder, "rows") else { return };
    let command = |work: u32| format!("{} {work}", rows.display());
    let (good, bad) = (command(100_000), command(1_000_000));
    // On a busy machine the wall time may not be shown to differ; the time of functions is.
    let options = ["-n", "2", "--why", "--good", &good, "--bad", &bad, "--json", "-"];
    let ran = run(&mut record(&folder, &options));
    let report = json(&ran);
    let profile = &report["profile"];
    if profile.is_null() && ran.stderr.contains("run `") {
        return println!("SKIPPED: no event of processor time: {}", ran.stderr);
    }
    let path: Vec<&str> =
        profile["path"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert_eq!(path[..3], ["parse_row", "load", "main"], "{path:?}");
    let cause = report["cause"].as_str().unwrap();
    assert!(cause.contains("; in `parse_row` < `load` < `main` (+"), "{cause}");
    // The runs that are compared are those that were recorded.
    assert_eq!(report["comparison"]["runs"], serde_json::json!([2, 2]));
    let added = |row: &Value| row["added"]["value"].as_f64().unwrap();
    let (part, all) = (added(&profile["explained"]), added(&profile["all"]));
    assert!(part > 0.6 * all && part < 1.4 * all, "{part} of {all}");
}

#[test]
fn the_page_has_the_call_stacks_of_both_sides() {
    let folder = Folder::new("record-why-page");
    let Some(rows) = compile(&folder, "rows") else { return };
    let command = |work: u32| format!("{} {work}", rows.display());
    let (good, bad) = (command(100_000), command(1_000_000));
    let page = folder.0.join("page.html");
    let options = ["-n", "2", "--why", "--good", &good, "--bad", &bad, "--html"];
    let ran = run(record(&folder, &options).arg(&page));
    if ran.stderr.contains("no functions: ") {
        return println!("SKIPPED: no event of processor time: {}", ran.stderr);
    }
    let page = fs::read_to_string(page).unwrap();
    let data = page.split("flame.draw(coloured(").nth(1).unwrap().split("));").next().unwrap();
    let mut at: &Value = &serde_json::from_str(data).unwrap();
    for name in ["main", "load", "parse_row"] {
        let callees = at["callees"].as_array().unwrap();
        // The shell is beside it.
        at = callees.iter().find(|callee| callee["name"] == name).unwrap();
        assert!(at["hue"].as_f64().unwrap() > 0.5, "{at}");
    }
}

#[test]
fn a_system_call_that_grew_is_counted() {
    let folder = Folder::new("record-why-calls");
    let command = |times: u32| {
        format!("i=0; while [ $i -lt {times} ]; do i=$((i + 1)); [ -e /no/where ]; done; true")
    };
    let (good, bad) = (command(100), command(20_100));
    let options = ["-n", "2", "--why", "--good", &good, "--bad", &bad, "--json", "-"];
    let ran = run(&mut record(&folder, &options));
    let calls = &json(&ran)["calls"];
    if calls.is_null() {
        let obstacle = ran.stderr.lines().find(|line| line.contains("no system calls: "));
        return println!("SKIPPED: {}", obstacle.expect("it is said"));
    }
    let rows = calls["calls"].as_array().unwrap();
    let is_stat = |row: &&Value| row["name"].as_str().unwrap().contains("stat");
    let row = rows.iter().find(is_stat).unwrap_or_else(|| panic!("{calls}"));
    let added = row["count"]["added"]["value"].as_f64().unwrap();
    assert!((added - 20_000.0).abs() < 500.0, "{row}");
}

#[test]
fn equal_commands_are_not_sampled_unless_that_is_asked_for() {
    let folder = Folder::new("record-why-equal");
    let same = ["--good", "true", "--bad", "true", "-n", "3", "--json", "-"];
    let ran = run(record(&folder, &[]).args(same));
    assert!(json(&ran)["profile"].is_null(), "{}", ran.stdout);
    fs::remove_dir_all(folder.0.join("runs")).unwrap();
    let ran = run(record(&folder, &["--why"]).args(same));
    assert_eq!(json(&ran)["profile"]["runs"], serde_json::json!([3, 3]), "{}", ran.stderr);
}
