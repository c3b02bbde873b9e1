//! A program under `cowslip run` with threads that are anywhere in its library, each with a check of its own memory.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::{COWSLIP, Folder, compile};

pub struct Working {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Has the program, and may have files of the test.
    pub folder: Folder,
}

impl Working {
    /// Starts it. `None` without a compiler.
    pub fn start() -> Option<Self> {
        let folder = Folder::new("working");
        let program = compile(&folder, "working")?;
        let mut command = Command::new(COWSLIP);
        command.args(["run", "--threshold", "64K", "--"]).arg(program);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut working = Self { child, input, output: BufReader::new(output), folder };
        assert_eq!(working.line(), "ready");
        Some(working)
    }

    pub fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Waits until all threads have gone on, and found what they had written.
    pub fn go_on(&mut self) {
        writeln!(self.input, "go on").unwrap();
        assert_eq!(self.line(), "right");
    }

    /// Waits for its end.
    pub fn end(self) {
        let Self { mut child, input, .. } = self;
        drop(input);
        assert!(child.wait().unwrap().success());
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}
