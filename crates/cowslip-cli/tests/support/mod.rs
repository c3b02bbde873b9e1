//! Programs run under `cowslip run`, with an end to every wait.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

pub mod redis;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

pub const COWSLIP: &str = env!("CARGO_BIN_EXE_cowslip");
const PATIENCE: Duration = Duration::from_secs(120);

/// A directory that is removed with this value.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let name = format!("cowslip-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub struct Ran {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a command to its end; a hang is killed, and fails the test.
pub fn run(command: &mut Command) -> Ran {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id() as i32;
    let read = |mut from: Box<dyn Read + Send>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            from.read_to_end(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let stdout = read(Box::new(child.stdout.take().unwrap()));
    let stderr = read(Box::new(child.stderr.take().unwrap()));
    let (ended, end) = mpsc::channel::<()>();
    let watchdog = thread::spawn(move || {
        let hangs = end.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout);
        if hangs {
            let kill = ["-KILL", &pid.to_string()].map(str::to_owned);
            let _ = Command::new("kill").args(kill).status();
        }
        hangs
    });
    let status = child.wait().unwrap();
    drop(ended);
    let ran = Ran { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() };
    assert!(!watchdog.join().unwrap(), "it hung: {command:?}\n{}\n{}", ran.stdout, ran.stderr);
    ran
}

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
