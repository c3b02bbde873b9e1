//! Errors of recordings.

use std::fmt;

use cowslip_sys::Errno;
use cowslip_sys::perf::Refusal;

/// The kind of a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request makes no sense.
    Usage,
    /// This kernel cannot do it.
    Unsupported,
    /// This process may not do it.
    Denied,
    /// The process is gone.
    Vanished,
    /// The command cannot be run; [`Error::errno`] tells why.
    NotRun,
    /// Another reason.
    System,
}

/// A failed operation, with the error number and advice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    kind: ErrorKind,
    what: String,
    errno: Option<Errno>,
    advice: Option<String>,
}

impl Error {
    pub(super) fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into(), errno: None, advice: None }
    }

    pub(super) fn refused(what: impl Into<String>, errno: Errno) -> Self {
        let kind = match Refusal::from_errno(errno) {
            Refusal::Denied => ErrorKind::Denied,
            Refusal::Unsupported => ErrorKind::Unsupported,
            Refusal::Vanished => ErrorKind::Vanished,
            Refusal::TooManyFiles | Refusal::Other => ErrorKind::System,
        };
        Self { errno: Some(errno), ..Self::new(kind, what) }
    }

    pub(super) fn not_run(name: &str, errno: Errno) -> Self {
        let what = format!("run {name}");
        match errno {
            // The fault is not the command's.
            Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE => Self::refused(what, errno),
            _ => Self { errno: Some(errno), ..Self::new(ErrorKind::NotRun, what) },
        }
    }

    pub(super) fn advise(self, advice: impl Into<String>) -> Self {
        Self { advice: Some(advice.into()), ..self }
    }

    /// The kind of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The kernel's error number, if the kernel refused.
    pub fn errno(&self) -> Option<i32> {
        self.errno.map(Errno::raw_os_error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some(errno) = self.errno {
            write!(f, ": {}", std::io::Error::from(errno))?;
        }
        if let Some(advice) = &self.advice {
            write!(f, "; {advice}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}
