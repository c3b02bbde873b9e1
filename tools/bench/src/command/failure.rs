//! Failures of the command, and their exit codes: those of `cowslip`.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use cowslip_bench::Error;
use cowslip_sys::exit_code::{self, DENIED, FAILED};

/// It ran, and the answer is no.
pub(super) const NO: u8 = 1;

pub(crate) type CommandResult = Result<ExitCode, Failure>;

/// Why the command failed: a sentence for people and an exit code for programs.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    pub(super) fn new(code: u8, message: impl fmt::Display) -> Self {
        Self { code, message: message.to_string() }
    }

    pub(crate) fn report(self) -> ExitCode {
        // An error could not be reported.
        let _ = writeln!(io::stderr(), "cowslip-bench: {}", self.message);
        ExitCode::from(self.code)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = if matches!(error, Error::Denied(_)) { DENIED } else { FAILED };
        Self::new(code, error)
    }
}

/// Turns an I/O error on a named file into a failure, with a sentence about the operation and an exit code.
pub(super) fn io(what: impl fmt::Display) -> impl FnOnce(io::Error) -> Failure {
    move |error| Failure::new(exit_code::of_file(&error), format!("{what}: {error}"))
}

/// The same as [`io`], for a call that no named object can make fail.
pub(super) fn system(what: impl fmt::Display) -> impl FnOnce(io::Error) -> Failure {
    move |error| Failure::new(exit_code::of_system(&error), format!("{what}: {error}"))
}
