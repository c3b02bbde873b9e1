//! Recordings of programs that touch known pages in a known order.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};

use cowslip_trace::model::{EventKind, Fault, Trace};
use cowslip_trace::record::{PermissionStatus, permissions};
use serde_json::Value;

use crate::support::{COWSLIP, Folder, compile};

pub const PAGE: u64 = 4096;

/// The program of `tests/programs/touched.c`.
pub struct Program {
    pub child: Child,
    pub commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// The program's report on pages that it touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touched {
    pub pid: u32,
    pub tid: u32,
    pub minor_faults: u64,
}

impl Program {
    pub fn start(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let commands = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, commands, answers }
    }

    pub fn tell(&mut self, command: &str) -> Vec<u64> {
        writeln!(self.commands, "{command}").unwrap();
        self.answer()
    }

    pub fn answer(&mut self) -> Vec<u64> {
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer.split_whitespace().map(|number| number.parse().unwrap()).collect()
    }

    /// Maps this number of private base pages.
    pub fn map(&mut self, pages: u64) -> u64 {
        self.tell(&format!("map {pages}"))[0]
    }

    pub fn touch(&mut self, how: &str, at: u64, pages: u64, stride: i64) -> Touched {
        let answer = self.tell(&format!("{how} {at} {pages} {stride}"));
        let [pid, tid, minor_faults] = answer[..] else { panic!("{answer:?}") };
        Touched { pid: pid as u32, tid: tid as u32, minor_faults }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A recording of running programs.
pub struct Recording {
    pub child: Child,
    messages: BufReader<ChildStderr>,
    pub folder: Folder,
}

impl Recording {
    /// Returns once it is attached.
    pub fn start(pid: u32, options: &[&str]) -> Self {
        let mut command = Command::new(COWSLIP);
        Self::start_by(&mut command, &["--pid", &pid.to_string()], options)
    }

    pub fn start_by(command: &mut Command, subject: &[&str], options: &[&str]) -> Self {
        let folder = Folder::new("trace");
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o777)).unwrap();
        command.arg("trace").args(subject).arg("-o").arg(folder.0.join("trace"));
        command.arg("--json").arg(folder.0.join("json")).args(options);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut messages = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("recording") {
            line.clear();
            assert!(messages.read_line(&mut line).unwrap() > 0, "it ended before it recorded");
        }
        Self { child, messages, folder }
    }

    pub fn signal(&self, name: &str) {
        let kill = Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(kill.unwrap().success());
    }

    /// Interrupts it, and returns the trace and its numbers.
    pub fn end(self) -> (Trace, Value) {
        self.signal("-INT");
        self.result()
    }

    /// Waits for its end, and returns the trace and its numbers.
    pub fn result(mut self) -> (Trace, Value) {
        let status = self.child.wait().unwrap();
        let messages = std::io::read_to_string(&mut self.messages).unwrap();
        assert!(status.success(), "{status}: {messages}");
        read(&self.folder.0)
    }
}

pub fn read(folder: &Path) -> (Trace, Value) {
    let trace = Trace::read(&folder.join("trace")).unwrap();
    assert!(!trace.is_cut_short && trace.events.is_sorted_by_key(|event| event.time_ns));
    (trace, serde_json::from_str(&fs::read_to_string(folder.join("json")).unwrap()).unwrap())
}

/// The program, in a folder that every user can reach; `None` without a compiler.
pub fn place(name: &str) -> Option<(Folder, PathBuf)> {
    let folder = Folder::new(name);
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).unwrap();
    let program = compile(&folder, "touched")?;
    Some((folder, program))
}

/// Returns true if a permission is there; otherwise reports a skipped test.
pub fn has(name: &str) -> bool {
    let permission = permissions()
        .into_iter()
        .find(|permission| permission.name == name)
        .expect("there is such a permission");
    let is_there = permission.status == PermissionStatus::Available;
    if !is_there {
        let is_root = std::env::var("COWSLIP_EXPECT").is_ok_and(|list| list.contains("root"));
        assert!(!is_root || permission.status == PermissionStatus::Unsupported, "{permission:?}");
        println!("SKIPPED: {name}: {}", permission.status);
    }
    is_there
}

/// The faults of `pages` pages from `at` on, with their threads, in the order of time.
pub fn faults(trace: &Trace, pid: u32, at: u64, pages: u64) -> Vec<(u32, Fault)> {
    let range = at..at + pages * PAGE;
    let mut found = Vec::new();
    for event in trace.events.iter().filter(|event| event.pid == pid) {
        if let EventKind::Fault(fault) = event.what
            && range.contains(&fault.address)
        {
            found.push((event.tid, fault));
        }
    }
    found
}

/// Asserts that these are the faults of exactly these addresses, in this order, in the reported thread, and that the
/// kernel counted as many.
pub fn check(faults: &[(u32, Fault)], touched: Touched, addresses: impl Iterator<Item = u64>) {
    let seen: Vec<_> = faults.iter().map(|(tid, fault)| (*tid, fault.address)).collect();
    let wanted: Vec<_> = addresses.map(|address| (touched.tid, address)).collect();
    assert_eq!(seen, wanted);
    assert_eq!(touched.minor_faults, wanted.len() as u64);
}
