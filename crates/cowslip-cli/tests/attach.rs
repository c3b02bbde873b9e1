//! `cowslip attach` says what each command can do, and the commands do it.

mod support;

use std::io::Read;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use support::python::{self, PYTHON};
use support::{COWSLIP, run};

/// Says that it runs, and ends with its standard input.
struct Program(Child);

impl Program {
    fn start(command: &[&str], script: &str) -> Self {
        let mut start = Command::new(command[0]);
        start.args(&command[1..]).args(["-c", script]);
        let mut child = start.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        Self(child)
    }

    fn attach(&self, options: &[&str]) -> support::Ran {
        run(Command::new(COWSLIP).args(["attach", &self.0.id().to_string()]).args(options))
    }

    fn table(&self) -> Value {
        serde_json::from_str(&self.attach(&["--json", "-"]).stdout).unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn works(table: &Value, command: &str) -> bool {
    let rows = table["commands"].as_array().unwrap();
    let row = rows.iter().find(|row| row["command"] == command).unwrap();
    assert_eq!(row["works"], row["why"].is_null(), "{row}");
    row["works"].as_bool().unwrap()
}

const PLAIN: &str = "import sys
print('ready', flush=True)
sys.stdin.read()";
const SHARING: &str = "import mmap, sys
shared = mmap.mmap(-1, 65 << 20)
print('ready', flush=True)
sys.stdin.read()";

#[test]
fn a_program_without_cowslip_is_copied_where_it_shares_no_memory() {
    if !python::is_there() {
        return;
    }
    let plain = Program::start(&[PYTHON], PLAIN);
    let table = plain.table();
    assert_eq!((&table["schema"], &table["name"]), (&"cowslip.attach/1".into(), &"python3".into()));
    assert!(!works(&table, "status") && !table["is_under_cowslip"].as_bool().unwrap(), "{table}");
    let is_copied = works(&table, "branch");
    assert_eq!(is_copied, works(&table, "mark, rollback"));
    let status = run(Command::new(COWSLIP).args(["status", &plain.0.id().to_string()]));
    assert!(!status.status.success());
    let mark = |options: &[&str]| {
        run(Command::new(COWSLIP).args(["mark", &plain.0.id().to_string()]).args(options))
    };
    assert_eq!(mark(&[]).status.success(), is_copied, "{table}");
    mark(&["--drop"]);

    let sharing = Program::start(&[PYTHON], SHARING);
    let table = sharing.table();
    assert!(!works(&table, "branch") && !works(&table, "checkpoint"), "{table}");
    let lacks = table["lacks"].as_array().unwrap();
    assert!(lacks.iter().any(|lack| lack["is_fatal"] == true), "{table}");
    let text = sharing.attach(&[]).stdout;
    let line = text.lines().find(|line| line.trim_start().starts_with("refused")).unwrap();
    assert!(line.contains("shared memory at"), "{text}");
}

#[test]
fn a_program_under_cowslip_has_a_status() {
    if !python::is_there() {
        return;
    }
    let ours = Program::start(&[COWSLIP, "run", "--", PYTHON], PLAIN);
    let table = ours.table();
    assert!(table["is_under_cowslip"].as_bool().unwrap(), "{table}");
    let status = run(Command::new(COWSLIP).args(["status", &ours.0.id().to_string()]));
    assert_eq!(works(&table, "status"), status.status.success(), "{table} {}", status.stderr);
    // Its copies need no branch point.
    let branch = |options: &[&str]| {
        let pid = ours.0.id().to_string();
        run(Command::new(COWSLIP).args(["branch", &pid, "--input", "/dev/null"]).args(options))
    };
    let branched = branch(&["--running"]);
    assert_eq!(works(&table, "branch"), branched.status.success(), "{table} {}", branched.stderr);
    let marked = run(Command::new(COWSLIP).args(["mark", &ours.0.id().to_string()]));
    assert_eq!(
        works(&table, "mark, rollback"),
        marked.status.success(),
        "{table} {}",
        marked.stderr
    );
}

#[test]
fn a_process_that_is_gone_is_named() {
    let mut ended = Command::new("true").spawn().unwrap();
    let pid = ended.id().to_string();
    ended.wait().unwrap();
    let ran = run(Command::new(COWSLIP).args(["attach", &pid]));
    assert_eq!(ran.status.code(), Some(5), "{}", ran.stderr);
    assert!(ran.stderr.contains("process"), "{}", ran.stderr);
}
