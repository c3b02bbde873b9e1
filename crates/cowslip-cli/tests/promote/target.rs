//! The promoted program, and its commands.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use serde_json::Value;

use crate::support::{COWSLIP, Folder, Ran, compile, run};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Held while khugepaged's settings are changed: they are the whole system's.
pub(crate) static SETTINGS: Mutex<()> = Mutex::new(());

/// The program of `tests/programs/promoted.c`.
pub(crate) struct Program {
    pub(crate) child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Program {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let commands = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, commands, answers }
    }

    pub(crate) fn tell(&mut self, command: &str) -> String {
        writeln!(self.commands, "{command}").unwrap();
        self.hear()
    }

    /// The next line of its output.
    pub(crate) fn hear(&mut self) -> String {
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer.trim().to_owned()
    }

    pub(crate) fn fill(&mut self, regions: std::ops::Range<usize>, pages: usize) {
        for region in regions {
            self.tell(&format!("fill {region} {pages}"));
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Anonymous huge memory, in MiB.
    pub(crate) fn huge_mib(&self) -> u64 {
        self.sum("AnonHugePages:") / MIB
    }

    pub(crate) fn sum(&self, field: &str) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid())).unwrap();
        // It has no memory while it becomes another program.
        let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or("0 kB");
        line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() << 10
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder that every user can reach, and the program in it; `None` without a compiler.
pub(crate) fn place(name: &str) -> Option<(Folder, PathBuf)> {
    let folder = Folder::new(name);
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).unwrap();
    let program = compile(&folder, "promoted")?;
    Some((folder, program))
}

pub(crate) fn promote(pid: u32, options: &[&str]) -> Ran {
    run(Command::new(COWSLIP).args(["promote", "--pid", &pid.to_string()]).args(options))
}

/// The JSON of a one-shot promotion without pauses, and its exit code.
pub(crate) fn once(pid: u32, options: &[&str]) -> (Value, Option<i32>) {
    let fast = ["--once", "--stall-budget", "100", "--json", "-"];
    let ran = promote(pid, &[&fast[..], options].concat());
    let json = serde_json::from_str(&ran.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", ran.stdout, ran.stderr));
    (json, ran.status.code())
}

pub(crate) fn regions(report: &Value, reason: &str) -> u64 {
    report["processes"][0]["regions_by_reason"][reason].as_u64().unwrap_or(0)
}
