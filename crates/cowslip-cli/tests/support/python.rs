//! Programs, most of them for Debian's Python, which read lines and answer each.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::Folder;

pub const PYTHON: &str = "/usr/bin/python3";

/// A user without rights.
pub const OTHER_USER: u32 = 65534;

/// False, reported as skipped, without a Python.
pub fn is_there() -> bool {
    let is_there = Path::new(PYTHON).exists();
    if !is_there {
        println!("SKIPPED: python: {PYTHON} is not there");
    }
    is_there
}

/// A running program. It is killed with this value.
pub struct Program {
    pub child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub folder: Folder,
}

impl Program {
    /// Starts a program, of another user if one is named, and waits until it says "ready". Its argument is a folder.
    pub fn start(text: &str, user: Option<u32>) -> Option<Self> {
        Self::start_by(&[PYTHON, "-c"], text, user)
    }

    /// Like [`Self::start`], by a command before the program's text.
    pub fn start_by(starter: &[&str], text: &str, user: Option<u32>) -> Option<Self> {
        if starter.contains(&PYTHON) && !is_there() {
            return None;
        }
        let folder = Folder::new("python");
        let mut command = Command::new(starter[0]);
        command.args(&starter[1..]).arg(text).arg(&folder.0);
        if let Some(user) = user {
            std::os::unix::fs::chown(&folder.0, Some(user), Some(user)).unwrap();
            command.uid(user).gid(user);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut program = Self { child, input, output: BufReader::new(output), folder };
        assert_eq!(program.line(), "ready");
        Some(program)
    }

    pub fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Its answer to a line.
    pub fn ask(&mut self, line: &str) -> serde_json::Value {
        writeln!(self.input, "{line}").unwrap();
        serde_json::from_str(&self.line()).unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
