//! Exit codes and failures of commands.
//!
//! | code | |
//! | --- | --- |
//! | 0 | it did the requested work; the answer is yes |
//! | 1 | it ran, and the answer is no |
//! | 2 | the request makes no sense, or a file that it names is missing or cannot be read or written |
//! | 3 | the kernel lacks it, or this build does |
//! | 4 | not permitted: a file too |
//! | 5 | the target vanished |
//! | 6 | a file is damaged, or of another kind |
//! | 70 | it failed: memory or room ran out, something is in use, or the kernel refused for another reason |
//! | 125, 126, 127 | of commands that run others, like `env(1)`: it failed, cannot be run, is not there |

use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

use cowslip_sys::exit_code;
pub(crate) use cowslip_sys::exit_code::{CORRUPT, DENIED, FAILED, UNSUPPORTED, USAGE, VANISHED};

/// Why a command failed: a sentence for people and an exit code for programs.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

/// The result of a command.
pub(crate) type CommandResult = Result<ExitCode, Failure>;

/// It ran, and the answer is no.
pub(crate) const NO: u8 = 1;

// Commands that run others pass on their exit codes. Their own failures have the codes of env(1).

/// Cowslip failed, not the command.
pub(crate) const NOT_THE_COMMAND: u8 = 125;
/// The command is there and cannot be run.
pub(crate) const CANNOT_RUN: u8 = 126;
/// There is no such command.
pub(crate) const NOT_FOUND: u8 = 127;
/// Above this is the number of the signal that killed the command.
const KILLED: i32 = 128;

/// For the help of commands that run others.
pub(crate) const OF_COMMANDS: &str = "Exit code: the command's, or 128+N if signal N killed it. 125: \
cowslip failed, 126: the command cannot be run, 127: it was not found.";

/// The exit code that passes on how a command ended, as a shell would.
pub(crate) fn from_status(status: ExitStatus) -> u8 {
    let killed = status.signal().map(|signal| KILLED + signal);
    let code = status.code().or(killed).and_then(|code| u8::try_from(code).ok());
    code.unwrap_or(NOT_THE_COMMAND)
}

/// The exit code of a command that could not be started.
pub(crate) fn not_run(error: &io::Error) -> u8 {
    match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        // The command is not at fault.
        io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock => NOT_THE_COMMAND,
        _ => CANNOT_RUN,
    }
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl fmt::Display) -> Self {
        Self { code, message: message.to_string() }
    }

    /// Adds an earlier attempt to the failure.
    pub(crate) fn after(self, tried: impl fmt::Display) -> Self {
        Self { message: format!("{tried}: {}", self.message), ..self }
    }

    /// The same failure where a command should have run: it must not look like an exit code of that command.
    pub(crate) fn instead_of_command(self) -> Self {
        match self.code {
            CANNOT_RUN | NOT_FOUND => self,
            _ => Self { code: NOT_THE_COMMAND, ..self },
        }
    }

    pub(crate) fn report(self) -> ExitCode {
        errln!("cowslip: {self}");
        ExitCode::from(self.code)
    }

    /// Ends the process from any thread.
    pub(crate) fn exit(self) -> ! {
        errln!("cowslip: {self}");
        std::process::exit(self.code.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<cowslip::Error> for Failure {
    fn from(error: cowslip::Error) -> Self {
        Self::new(exit_code::from_error(&error), error)
    }
}

/// Turns an I/O error on a named file, socket or address into a failure, with a sentence about the operation and an
/// exit code.
pub(crate) fn io(what: impl fmt::Display) -> impl FnOnce(io::Error) -> Failure {
    move |error| Failure::new(exit_code::of_file(&error), format!("{what}: {error}"))
}

/// The same as [`io`], for a call that no named object can make fail.
pub(crate) fn system(what: impl fmt::Display) -> impl FnOnce(io::Error) -> Failure {
    move |error| Failure::new(exit_code::of_system(&error), format!("{what}: {error}"))
}
