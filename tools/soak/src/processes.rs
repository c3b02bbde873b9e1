//! The processes of the soak: their lines, their stacks, their ends.

use std::io::{BufRead, BufReader, Result};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::say::Said;

/// A process that several threads may kill.
pub(crate) type Victim = Arc<Mutex<Child>>;

/// A running process.
pub(crate) struct Process {
    pub(crate) number: u32,
    pub(crate) victim: Victim,
    pub(crate) began: Instant,
    pub(crate) last: Instant,
    pub(crate) operation: String,
    /// Memory was lost, and the process was told.
    pub(crate) is_told: bool,
    /// It reported why it ends.
    pub(crate) is_refused: bool,
}

/// A line of the process with this number; `None` when it has ended.
pub(crate) type Line = (u32, Option<Said>);

impl Process {
    /// Starts a part of this program.
    pub(crate) fn start(number: u32, arguments: &[String], lines: &Sender<Line>) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        // A program that keeps all pages it ever had would need more than the soak may have.
        command.env("MALLOC_ARENA_MAX", "2");
        let mut child = command.spawn()?;
        let said = BufReader::new(child.stdout.take().expect("it is piped"));
        let lines = lines.clone();
        std::thread::spawn(move || {
            let mut said = said;
            loop {
                let mut line = String::new();
                // The last line of a killed process may be incomplete.
                match said.read_line(&mut line) {
                    Ok(_) if line.ends_with('\n') => {}
                    _ => break,
                }
                if let Some(parsed) = Said::parse(line.trim_end()) {
                    let _ = lines.send((number, Some(parsed)));
                }
            }
            let _ = lines.send((number, None));
        });
        let now = Instant::now();
        Ok(Self {
            number,
            victim: Arc::new(Mutex::new(child)),
            began: now,
            last: now,
            operation: String::new(),
            is_told: false,
            is_refused: false,
        })
    }

    pub(crate) fn kill(&self) {
        let _ = self.victim.lock().unwrap().kill();
    }

    /// Its end: the signal, or the exit code.
    pub(crate) fn ended(&self) -> Result<End> {
        let status = self.victim.lock().unwrap().wait()?;
        Ok(match status.signal() {
            Some(signal) => End::Signal(signal),
            None => End::Code(status.code().unwrap_or(-1)),
        })
    }

    pub(crate) fn is_silent_for(&self, limit: Duration) -> bool {
        self.last.elapsed() > limit
    }

    fn pid(&self) -> u32 {
        self.victim.lock().unwrap().id()
    }

    /// The stacks of its threads.
    pub(crate) fn stacks(&self) -> String {
        let pid = self.pid().to_string();
        let gdb = Command::new("gdb")
            .args(["-p", &pid, "-batch", "-nx", "-ex", "thread apply all bt 30"])
            .stdin(Stdio::null())
            .output();
        match gdb {
            Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
            Err(error) => format!("SKIPPED: gdb: {error}"),
        }
    }

    /// Its share of memory, in KiB.
    pub(crate) fn memory_kib(&self) -> u64 {
        memory_kib(self.pid())
    }
}

/// A process' share of memory, in KiB.
pub(crate) fn memory_kib(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Signal(i32),
    Code(i32),
}
