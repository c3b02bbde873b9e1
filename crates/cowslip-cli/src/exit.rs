//! Exit codes, and how a command fails.
//!
//! | code | |
//! | --- | --- |
//! | 0 | it did what was asked; the answer is yes |
//! | 1 | it ran, and the answer is no |
//! | 2 | the request makes no sense, or a file that it names is missing or cannot be read or written |
//! | 3 | the kernel lacks it, or this build does |
//! | 4 | not permitted: a file too |
//! | 5 | the target vanished |
//! | 6 | a file is not what it should be: damaged, or of another kind |
//! | 70 | it failed: memory ran out, something is in use, or the kernel refused for another reason |
//! | 125, 126, 127 | of commands that run others, as `env(1)`: it failed, cannot be run, is not there |

use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

use cowslip::ErrorKind;

/// Why a command failed: a sentence for people and an exit code for programs.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

/// What a command returns.
pub(crate) type CommandResult = Result<ExitCode, Failure>;

/// It ran, and the answer is no.
pub(crate) const NO: u8 = 1;
/// The request makes no sense, or a file that it names cannot be read or written.
pub(crate) const USAGE: u8 = 2;
/// The kernel lacks it, or this build does.
pub(crate) const UNSUPPORTED: u8 = 3;
/// Not permitted.
pub(crate) const DENIED: u8 = 4;
/// The target vanished.
pub(crate) const VANISHED: u8 = 5;
/// What was read is not what it should be.
pub(crate) const CORRUPT: u8 = 6;
/// Memory ran out, something is in use, or the kernel refused for another reason (`EX_SOFTWARE`, `sysexits.h(3head)`).
pub(crate) const FAILED: u8 = 70;

// What runs a command passes its exit code on. The codes of what went wrong instead are those of env(1).

/// Cowslip failed, not the command.
pub(crate) const NOT_THE_COMMAND: u8 = 125;
/// The command is there and cannot be run.
pub(crate) const CANNOT_RUN: u8 = 126;
/// There is no such command.
pub(crate) const NOT_FOUND: u8 = 127;
/// Above this is the number of the signal that killed the command.
const KILLED: i32 = 128;

/// For the help of what runs a command.
pub(crate) const OF_COMMANDS: &str = "Exit code: the command's, or 128+N if signal N killed it. 125: \
cowslip failed, 126: the command cannot be run, 127: it was not found.";

/// The exit code that passes on how a command ended, as a shell would.
pub(crate) fn of(status: ExitStatus) -> u8 {
    let killed = status.signal().map(|signal| KILLED + signal);
    let code = status.code().or(killed).and_then(|code| u8::try_from(code).ok());
    code.unwrap_or(NOT_THE_COMMAND)
}

/// The exit code of a command that could not be started.
pub(crate) fn not_run(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN }
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl fmt::Display) -> Self {
        Self { code, message: message.to_string() }
    }

    /// The same where a command was to be run, whose own exit codes are not to be mistaken for it.
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
        let code = match error.kind() {
            ErrorKind::Usage | ErrorKind::File => USAGE,
            ErrorKind::Unsupported => UNSUPPORTED,
            ErrorKind::Denied => DENIED,
            ErrorKind::Vanished => VANISHED,
            ErrorKind::Corrupt => CORRUPT,
            _ => FAILED,
        };
        Self::new(code, error)
    }
}

/// Gives an I/O error the sentence of what was being done, and its exit code.
pub(crate) fn io(what: impl fmt::Display) -> impl FnOnce(io::Error) -> Failure {
    use io::ErrorKind as Io;
    move |error| {
        let code = match error.kind() {
            Io::PermissionDenied => DENIED,
            Io::Unsupported => UNSUPPORTED,
            Io::InvalidData => CORRUPT,
            Io::OutOfMemory | Io::ResourceBusy => FAILED,
            _ => USAGE,
        };
        Failure::new(code, format!("{what}: {error}"))
    }
}
