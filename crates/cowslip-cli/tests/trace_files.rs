//! `cowslip trace import` and `export`, as a user runs them.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use support::{COWSLIP, Folder, run};

fn sample() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../cowslip-trace/tests/data/page-faults.txt")
}

/// How many faults the text of perf has.
fn faults() -> usize {
    fs::read_to_string(sample()).unwrap().matches(" page-faults: ").count()
}

fn imported(folder: &Folder) -> PathBuf {
    let trace = folder.0.join("true.trace");
    let mut command = Command::new(COWSLIP);
    command.args(["trace", "import"]).arg(sample()).arg("-o").arg(&trace).args(["--json", "-"]);
    let ran = run(&mut command);
    assert!(ran.status.success(), "{}", ran.stderr);
    let numbers: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(numbers["schema"], "cowslip.trace-import/1");
    assert_eq!(numbers["faults"], faults());
    assert!(ran.stderr.contains("not seen: munmap(2)"), "{}", ran.stderr);
    trace
}

#[test]
fn what_is_imported_is_exported() {
    let folder = Folder::new("trace-files");
    let trace = imported(&folder);
    assert_eq!(fs::metadata(&trace).unwrap().permissions().mode() & 0o777, 0o600);
    let export = |format: &str| {
        let mut command = Command::new(COWSLIP);
        command.args(["trace", "export"]).arg(&trace).args(["--format", format]);
        let ran = run(&mut command);
        assert!(ran.status.success(), "{}", ran.stderr);
        ran.stdout
    };
    let csv = export("csv");
    assert_eq!(csv.lines().filter(|line| line.contains(",fault,")).count(), faults());
    let jsonl = export("jsonl");
    let lines = jsonl.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert_eq!(lines.filter(|line| line["kind"] == "fault").count(), faults());
    let folded = export("folded");
    let counts = folded.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<usize>());
    assert_eq!(counts.map(Result::unwrap).sum::<usize>(), faults());
    let file = folder.0.join("out.csv");
    let mut command = Command::new(COWSLIP);
    command.args(["trace", "export"]).arg(&trace).arg("-o").arg(&file);
    assert!(run(&mut command).status.success());
    assert_eq!(fs::read_to_string(&file).unwrap(), csv);
}

#[test]
fn damage_and_other_files_have_their_exit_code_and_leave_nothing() {
    let folder = Folder::new("trace-damage");
    let trace = imported(&folder);
    let mut bytes = fs::read(&trace).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&trace, &bytes).unwrap();
    let out = folder.0.join("out.csv");
    let mut command = Command::new(COWSLIP);
    command.args(["trace", "export"]).arg(&trace).arg("-o").arg(&out);
    let ran = run(&mut command);
    assert_eq!(ran.status.code(), Some(6), "{}", ran.stderr);
    assert!(ran.stderr.contains("true.trace: at byte "), "{}", ran.stderr);
    // A recorder that was killed: read, and said.
    fs::write(&trace, &bytes[..bytes.len() - 1]).unwrap();
    let ran = run(&mut command);
    assert!(ran.status.success() && ran.stderr.contains("cut short"), "{}", ran.stderr);
    fs::remove_file(&out).unwrap();
    let mut command = Command::new(COWSLIP);
    let ran = run(command.args(["trace", "import", "/proc/self/status", "-o"]).arg(&out));
    assert_eq!(ran.status.code(), Some(6), "{}", ran.stderr);
    assert!(ran.stderr.contains("no page fault of perf's"), "{}", ran.stderr);
    let left: Vec<_> = fs::read_dir(&folder.0).unwrap().map(|it| it.unwrap().path()).collect();
    assert_eq!(left, [trace]);
}
