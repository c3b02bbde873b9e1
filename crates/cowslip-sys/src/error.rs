//! One error for all crates: what failed, on what, the errno, and what to do about it.
//!
//! Calls of this crate return a bare [`Errno`]; [`During`] gives it the operation that it came from.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::Errno;
use crate::units::VirtRange;

/// What kind of failure it is; each has an exit code of the `cowslip` command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request makes no sense (exit code 2).
    Usage,
    /// This kernel cannot do it (3).
    Unsupported,
    /// This process may not do it (4).
    Denied,
    /// The process asked about is gone (5).
    Vanished,
    /// There is not enough memory, pool or address space for it (70).
    OutOfMemory,
    /// What would have to change is still in use (70).
    Busy,
    /// What was received or read is not what it should be (6).
    Corrupt,
    /// A file cannot be read or written (2).
    File,
    /// The kernel refused for another reason (70).
    System,
}

/// A failed operation.
///
/// ```
/// use cowslip_sys::Errno;
/// use cowslip_sys::error::{Error, ErrorKind};
/// let error = Error::from_errno("freeze the arena", Errno::NOMEM).hint("raise vm.max_map_count");
/// assert_eq!(error.kind(), ErrorKind::OutOfMemory);
/// assert_eq!(error.advice(), Some("raise vm.max_map_count"));
/// ```
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    operation: Cow<'static, str>,
    kind: ErrorKind,
    file: Option<PathBuf>,
    range: Option<VirtRange>,
    errno: Option<Errno>,
    hint: Option<Cow<'static, str>>,
}

/// `Result` with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A failure of this kind, without an error number.
    pub fn new(kind: ErrorKind, operation: impl Into<Cow<'static, str>>) -> Self {
        let operation = operation.into();
        Self(Box::new(Inner { operation, kind, file: None, range: None, errno: None, hint: None }))
    }

    /// A refusal of the file system or of a socket, in the words of the standard library.
    pub fn from_io(operation: impl fmt::Display, error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            io::ErrorKind::Unsupported => ErrorKind::Unsupported,
            io::ErrorKind::InvalidData => ErrorKind::Corrupt,
            io::ErrorKind::OutOfMemory => ErrorKind::OutOfMemory,
            _ => ErrorKind::File,
        };
        Self::new(kind, format!("{operation}: {error}"))
    }

    /// A refusal of the kernel; the error number says which kind of failure it is.
    pub fn from_errno(operation: &'static str, errno: Errno) -> Self {
        let kind = match errno {
            Errno::NOMEM | Errno::NOSPC | Errno::MFILE | Errno::NFILE => ErrorKind::OutOfMemory,
            Errno::PERM | Errno::ACCESS => ErrorKind::Denied,
            Errno::NOSYS | Errno::NOTTY | Errno::OPNOTSUPP => ErrorKind::Unsupported,
            Errno::SRCH => ErrorKind::Vanished,
            Errno::BUSY => ErrorKind::Busy,
            _ => ErrorKind::System,
        };
        let mut error = Self::new(kind, operation);
        error.0.errno = Some(errno);
        error
    }

    fn of_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// The file that it was about.
    #[must_use]
    pub fn of_file(mut self, path: &Path) -> Self {
        self.0.file = Some(path.to_owned());
        self
    }

    /// The memory that it was about.
    #[must_use]
    pub fn on(mut self, range: VirtRange) -> Self {
        self.0.range = Some(range);
        self
    }

    /// What to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The kernel's error number, if the kernel refused.
    pub fn errno(&self) -> Option<i32> {
        self.0.errno.map(Errno::raw_os_error)
    }

    /// What failed and why, as a clause, and what to do about it where that is not the reason itself: for languages that
    /// hand out the two apart.
    pub fn told(&self) -> (String, Option<&str>) {
        let Inner { operation, kind, file, range, errno, hint } = &*self.0;
        let place = file.as_ref().map_or(String::new(), |file| format!("{}: ", file.display()));
        let on = range.map_or(String::new(), |range| format!(" on {range}"));
        let failed = format!("{place}cannot {operation}{on}");
        let hint = hint.as_deref();
        if let Some(errno) = errno {
            let number = errno.raw_os_error();
            return (format!("{failed}: {} (os error {number})", crate::reason(*errno)), hint);
        }
        match (hint, kind) {
            (_, ErrorKind::OutOfMemory) => (format!("{failed}: there is not enough of it"), hint),
            (Some(reason), _) if file.is_some() => (format!("{place}{reason}"), None),
            (Some(reason), _) => (format!("{failed}: {reason}"), None),
            (None, _) => (failed, None),
        }
    }

    /// What to do about it, if that is known.
    pub fn advice(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.0.file {
            write!(f, "{}: ", file.display())?;
        }
        // What is wrong with a file says more than what was to be done with it.
        if let (Some(_), None, Some(hint)) = (&self.0.file, self.0.errno, &self.0.hint) {
            f.write_str(hint)?;
            return self.0.range.map_or(Ok(()), |range| write!(f, ", needed for {range}"));
        }
        f.write_str(&self.0.operation)?;
        if let Some(range) = self.0.range {
            write!(f, " on {range}")?;
        }
        if let Some(errno) = self.0.errno {
            // Not by libc: an allocator may be who called.
            write!(f, ": {} (os error {})", crate::reason(errno), errno.raw_os_error())?;
        }
        if let Some(hint) = &self.0.hint {
            write!(f, "; {hint}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl std::error::Error for Error {}

/// Gives an errno the operation it came from.
pub trait During<T> {
    /// The same result, with the operation in its error.
    fn during(self, operation: &'static str) -> Result<T>;
}

impl<T> During<T> for crate::Result<T> {
    fn during(self, operation: &'static str) -> Result<T> {
        self.map_err(|errno| Error::from_errno(operation, errno))
    }
}

/// The errno behind an error of the standard library.
pub fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

/// The file system's refusal of something done to a file.
pub fn file_error(operation: &'static str, path: &Path, error: io::Error) -> Error {
    let failed = match (Errno::from_io_error(&error), error.kind()) {
        (Some(errno), io::ErrorKind::PermissionDenied) => Error::from_errno(operation, errno),
        (Some(errno), _) => Error::from_errno(operation, errno).of_kind(ErrorKind::File),
        (None, io::ErrorKind::UnexpectedEof) => Error::new(ErrorKind::Corrupt, operation)
            .hint("it ends before its content does: it was cut short since it was opened"),
        (None, _) => Error::new(ErrorKind::File, operation).hint(error.to_string()),
    };
    failed.of_file(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_on_what_why_and_what_to_do() {
        let error = Error::from_errno("write-protect a chunk", Errno::NOMEM)
            .on(VirtRange::new(0x20_0000, 0x20_0000))
            .hint("raise vm.max_map_count");
        assert_eq!(
            error.to_string(),
            "write-protect a chunk on 0x200000..0x400000 (2 MiB): Out of memory (os error \
             12); raise vm.max_map_count"
        );
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    }

    #[test]
    fn told_apart_nothing_is_said_twice() {
        let range = VirtRange::new(0x20_0000, 0x20_0000);
        let told = |error: &Error| {
            let (clause, advice) = error.told();
            (clause, advice.map(str::to_owned))
        };
        let refused = Error::from_errno("write-protect a chunk", Errno::NOMEM).on(range);
        let clause = "cannot write-protect a chunk on 0x200000..0x400000 (2 MiB): Out of memory (os error 12)";
        let advice = "raise vm.max_map_count";
        assert_eq!(told(&refused.hint(advice)), (clause.to_owned(), Some(advice.to_owned())));
        let full =
            Error::new(ErrorKind::OutOfMemory, "allocate from an arena").hint("make it larger");
        let clause = "cannot allocate from an arena: there is not enough of it".to_owned();
        assert_eq!(told(&full), (clause, Some("make it larger".to_owned())));
        let wrong = Error::new(ErrorKind::Usage, "make an arena").hint("its capacity is zero");
        assert_eq!(told(&wrong), ("cannot make an arena: its capacity is zero".to_owned(), None));
        let store = Path::new("store");
        let missing = file_error("open an image", store, io::Error::from(Errno::NOENT));
        let clause = "store: cannot open an image: No such file or directory (os error 2)";
        assert_eq!(told(&missing), (clause.to_owned(), None));
        let pipe = Error::new(ErrorKind::File, "open an image").of_file(store).hint("it is a FIFO");
        assert_eq!(told(&pipe), ("store: it is a FIFO".to_owned(), None));
    }

    #[test]
    fn the_file_comes_first() {
        let of = |error: io::Error| file_error("open an image", Path::new("store"), error);
        let missing = of(io::Error::from(Errno::NOENT));
        let said = "store: open an image: No such file or directory (os error 2)";
        assert_eq!((missing.to_string().as_str(), missing.kind()), (said, ErrorKind::File));
        assert_eq!(of(io::Error::from(Errno::ACCESS)).kind(), ErrorKind::Denied);
        let pipe = of(io::Error::new(io::ErrorKind::InvalidInput, "it is a FIFO"));
        assert_eq!(
            (pipe.to_string().as_str(), pipe.kind()),
            ("store: it is a FIFO", ErrorKind::File)
        );
        let cut = of(io::ErrorKind::UnexpectedEof.into()).on(VirtRange::new(0x20_0000, 0x20_0000));
        assert_eq!(cut.kind(), ErrorKind::Corrupt);
        assert!(cut.to_string().ends_with("needed for 0x200000..0x400000 (2 MiB)"), "{cut}");
    }
}
