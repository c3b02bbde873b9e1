//! Commands with an end to every wait, and folders that are removed. The tests of `tools/bench` use it, too.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

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

/// Copies a program, by another process: a child that another test starts meanwhile would have the new file open for
/// writing, and no process could execute it (`ETXTBSY`).
pub fn copy_program(from: impl AsRef<std::ffi::OsStr>, to: impl AsRef<std::ffi::OsStr>) {
    assert!(run(Command::new("cp").arg(from).arg(to)).status.success());
}

/// Returns true if there is a Redis; otherwise reports a skipped test.
pub fn redis_is_there() -> bool {
    let there = Command::new("redis-server").arg("--version").output().is_ok();
    let expected = std::env::var("COWSLIP_EXPECT").is_ok_and(|list| list.contains("redis"));
    assert!(there || !expected, "redis-server is declared to be there and is not");
    if !there {
        println!("SKIPPED: redis-server is not installed");
    }
    there
}
