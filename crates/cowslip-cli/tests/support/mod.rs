//! Programs run under `cowslip run`, with an end to every wait.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

pub mod checkpoint;
pub mod process;
pub mod python;
pub mod redis;
pub mod working;

use std::path::{Path, PathBuf};
use std::process::Command;

pub use process::{Folder, Ran, run};

pub const COWSLIP: &str = env!("CARGO_BIN_EXE_cowslip");

/// Runs `cowslip run` with options, a program and its arguments; returns the report that it left.
pub fn under_cowslip(
    options: &[&str],
    program: &[&std::ffi::OsStr],
) -> (Ran, Option<serde_json::Value>) {
    let folder = Folder::new("report");
    let report = folder.0.join("report.json");
    let mut command = Command::new(COWSLIP);
    command.arg("run").args(options).arg("--report").arg(&report).arg("--").args(program);
    let ran = run(&mut command);
    let text = std::fs::read_to_string(&report).ok();
    (ran, text.map(|text| serde_json::from_str(&text).unwrap()))
}

/// Compiles a C program of `tests/programs`; `None`, reported as skipped, without a compiler.
pub fn compile(folder: &Folder, name: &str) -> Option<PathBuf> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let program = folder.0.join(name);
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-fno-builtin", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]);
    match cc.arg(&program).arg(sources.join(format!("{name}.c"))).status() {
        Ok(status) => {
            assert!(status.success(), "cc {name}.c: {status}");
            Some(program)
        }
        Err(error) => {
            println!("SKIPPED: cc: {error}");
            None
        }
    }
}
