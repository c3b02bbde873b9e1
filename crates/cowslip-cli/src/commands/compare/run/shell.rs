//! A command of the user's, and its end.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use cowslip_sys::usage::{self, Usage};
use cowslip_sys::{AsFd, Errno, process};

use crate::commands::signals::Signals;
use crate::exit::{self, Failure};

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::commands::compare) enum Ended {
    /// By itself.
    Itself,
    /// We ended it, because of a signal.
    Interrupted,
}

pub(super) struct Shell {
    child: Child,
    command: String,
}

impl Shell {
    /// Starts it in a process group of its own: a Ctrl-C reaches us, and we end all of it.
    pub(super) fn start(command: &str, shows_output: bool) -> Result<Self, Failure> {
        let output = || if shows_output { Stdio::inherit() } else { Stdio::null() };
        let mut sh = Command::new("sh");
        sh.args(["-c", command]).stdin(Stdio::null()).stdout(output()).stderr(output());
        let unstarted = |error| Failure::new(exit::not_run(&error), format!("start sh: {error}"));
        let child = sh.process_group(0).spawn().map_err(unstarted)?;
        Ok(Self { child, command: command.to_owned() })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has ended, without reaping it.
    pub(super) fn wait(&mut self, signals: &mut Signals) -> Result<Ended, Failure> {
        let failed = |errno: Errno| self.failed(errno);
        let end = process::pidfd(self.pid() as i32).map_err(failed)?;
        let mut ready = [false; 2];
        while !ready[0] {
            if signals.stops() {
                // It may have ended meanwhile.
                let _ = process::end_group(self.pid() as i32, true);
                process::wait_readable(&[end.as_fd()], &mut ready[..1], None).map_err(failed)?;
                return Ok(Ended::Interrupted);
            }
            process::wait_readable(&[end.as_fd(), signals.woken()], &mut ready, None)
                .map_err(failed)?;
        }
        Ok(Ended::Itself)
    }

    pub(super) fn reap(&self) -> Result<(ExitStatus, Usage), Failure> {
        usage::wait(self.pid() as i32).map_err(|errno| self.failed(errno))
    }

    fn failed(&self, errno: Errno) -> Failure {
        let error = std::io::Error::from(errno);
        Failure::new(exit::NOT_THE_COMMAND, format!("wait for {}: {error}", self.command))
    }
}
