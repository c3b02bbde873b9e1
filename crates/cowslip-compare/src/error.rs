//! Reasons why runs cannot be read or compared.

use std::fmt;
use std::io;
use std::path::Path;

use cowslip_sys::error::io_kind;

/// The kind of a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request makes no sense.
    Usage,
    /// The file system refused.
    Io(io::ErrorKind),
    /// The content is invalid.
    Corrupt,
}

/// A failure, the file, and a remedy.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// `Result` with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self { kind: ErrorKind::Usage, message: message.to_string() }
    }

    pub(crate) fn corrupt(message: impl fmt::Display) -> Self {
        Self { kind: ErrorKind::Corrupt, message: message.to_string() }
    }

    pub(crate) fn io(what: &str, path: &Path, error: &io::Error) -> Self {
        let message = format!("{what} {}: {error}", path.display());
        Self { kind: ErrorKind::Io(io_kind(error)), message }
    }

    pub(crate) fn on(self, path: &Path) -> Self {
        Self { message: format!("{}: {}", path.display(), self.message), ..self }
    }

    pub(crate) fn and(self, more: &str) -> Self {
        Self { message: format!("{}; {more}", self.message), ..self }
    }

    /// The kind of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
