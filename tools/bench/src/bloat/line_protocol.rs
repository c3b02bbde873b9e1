//! A program that reads one command a line and answers each with a line.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result, during};
use crate::interrupt::Interrupt;

const LOOK: Duration = Duration::from_millis(50);
/// The longest that any answer may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// A running program, killed with this value.
#[derive(Debug)]
pub(super) struct LineProtocol {
    child: Child,
    commands: ChildStdin,
    answers: Receiver<String>,
}

impl LineProtocol {
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        // Keeps Ctrl-C from it: the bench handles Ctrl-C and ends it.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(during("start a program to measure"))?;
        let (Some(commands), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::Failed("a program to measure has no pipes".to_owned()));
        };
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let lines = BufReader::new(answers).lines().map_while(|line| line.ok());
            lines.take_while(|line| tell.send(line.clone()).is_ok()).for_each(drop);
        });
        Ok(Self { child, commands, answers: told })
    }

    pub(super) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub(super) fn ask(&mut self, line: &str) -> Result<()> {
        writeln!(self.commands, "{line}").map_err(during("tell a program what to do"))
    }

    pub(super) fn answer(&mut self, stop: &Interrupt) -> Result<String> {
        let began = Instant::now();
        loop {
            stop.check()?;
            match self.answers.recv_timeout(LOOK) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) if began.elapsed() < PATIENCE => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Error::Failed(format!("no answer within {PATIENCE:?}")));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait().map_err(during("wait for a program"))?;
                    let why = format!("the program that was measured ended: {status}");
                    return Err(Error::Failed(why));
                }
            }
        }
    }
}

impl Drop for LineProtocol {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
