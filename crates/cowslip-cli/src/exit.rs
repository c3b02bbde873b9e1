//! Exit codes, and how a command fails.

use std::fmt;
use std::process::ExitCode;

use cowslip::ErrorKind;

/// Why a command failed: a sentence for people and an exit code for programs.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

/// What a command returns.
pub(crate) type Answer = Result<ExitCode, Failure>;

/// It ran, and the answer is no.
pub(crate) const NO: u8 = 1;
/// The request makes no sense.
pub(crate) const USAGE: u8 = 2;
/// The kernel lacks it.
pub(crate) const UNSUPPORTED: u8 = 3;
/// Not permitted.
pub(crate) const DENIED: u8 = 4;
/// The target vanished.
pub(crate) const VANISHED: u8 = 5;
/// What was read is not what it should be.
pub(crate) const CORRUPT: u8 = 6;
/// The program to run is there and cannot be run (`env(1)`).
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// There is no such program (`env(1)`).
pub(crate) const NOT_FOUND: u8 = 127;

impl Failure {
    pub(crate) fn new(code: u8, message: impl fmt::Display) -> Self {
        Self { code, message: message.to_string() }
    }

    pub(crate) fn report(self) -> ExitCode {
        eprintln!("cowslip: {self}");
        ExitCode::from(self.code)
    }

    /// Ends the process from any thread.
    pub(crate) fn exit(self) -> ! {
        eprintln!("cowslip: {self}");
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
            ErrorKind::Usage => USAGE,
            ErrorKind::Unsupported => UNSUPPORTED,
            ErrorKind::Denied => DENIED,
            ErrorKind::Vanished => VANISHED,
            ErrorKind::Corrupt => CORRUPT,
            _ => NO,
        };
        Self::new(code, error)
    }
}

/// Gives an I/O error the sentence of what was being done, and its exit code.
pub(crate) fn io(what: impl fmt::Display) -> impl FnOnce(std::io::Error) -> Failure {
    use std::io::ErrorKind as Io;
    move |error| {
        let code = match error.kind() {
            Io::PermissionDenied => DENIED,
            Io::Unsupported => UNSUPPORTED,
            Io::InvalidData => CORRUPT,
            _ => NO,
        };
        Failure::new(code, format!("{what}: {error}"))
    }
}
