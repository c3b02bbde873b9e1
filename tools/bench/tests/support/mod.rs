//! The command under test, and folders that are removed.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

pub const BENCH: &str = env!("CARGO_BIN_EXE_cowslip-bench");

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

/// Runs a command to its end.
pub fn run(command: &mut Command) -> Ran {
    let output = command.output().unwrap();
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    Ran { status: output.status, stdout, stderr }
}

/// True if there is a Redis; otherwise reports a skipped test.
pub fn redis_is_there() -> bool {
    let there = Command::new("redis-server").arg("--version").output().is_ok();
    let expected = std::env::var("COWSLIP_EXPECT").is_ok_and(|list| list.contains("redis"));
    assert!(there || !expected, "redis-server is declared to be there and is not");
    if !there {
        println!("SKIPPED: redis-server is not installed");
    }
    there
}
