//! One error type for all crates: the operation, its object, the errno, the reason and some advice.
//!
//! Calls of this crate return a bare [`Errno`]; [`During`] gives it the operation that it came from.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::Errno;
use crate::units::VirtRange;

/// The kind of a failure; each has an exit code of the `cowslip` command.
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
    /// The object of the change is still in use (70).
    Busy,
    /// Received or read data is malformed (6).
    Corrupt,
    /// A file cannot be read or written (2, or 70 if space ran out or it is in use).
    File,
    /// The kernel refused for another reason (70).
    System,
}

/// A failed operation.
///
/// ```
/// use cowslip_sys::Errno;
/// use cowslip_sys::error::{Error, ErrorKind};
/// let error = Error::from_errno("freeze the arena", Errno::NOMEM)
///     .because("it has too many mappings")
///     .advise("raise vm.max_map_count");
/// assert_eq!(error.kind(), ErrorKind::OutOfMemory);
/// assert_eq!(error.reason(), Some("it has too many mappings"));
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
    reason: Option<Cow<'static, str>>,
    advice: Option<Cow<'static, str>>,
}

/// `Result` with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A failure of this kind, without an error number.
    pub fn new(kind: ErrorKind, operation: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            operation: operation.into(),
            kind,
            file: None,
            range: None,
            errno: None,
            reason: None,
            advice: None,
        }))
    }

    /// An error of the file system or of a socket.
    pub fn from_io(operation: impl fmt::Display, error: &io::Error) -> Self {
        let Some(errno) = Errno::from_io_error(error) else {
            return Self::new(told_kind(error), format!("{operation}: {error}"));
        };
        let kind = match error.kind() {
            io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            io::ErrorKind::Unsupported => ErrorKind::Unsupported,
            io::ErrorKind::OutOfMemory => ErrorKind::OutOfMemory,
            _ => ErrorKind::File,
        };
        let mut failed = Self::new(kind, operation.to_string());
        failed.0.errno = Some(errno);
        failed
    }

    /// An error of the kernel; the error number determines the kind of failure.
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

    /// Why it failed: a statement, such as "its capacity is zero".
    #[must_use]
    pub fn because(mut self, reason: impl Into<Cow<'static, str>>) -> Self {
        self.0.reason = Some(reason.into());
        self
    }

    /// The advice: an imperative, such as "raise vm.max_map_count".
    #[must_use]
    pub fn advise(mut self, advice: impl Into<Cow<'static, str>>) -> Self {
        self.0.advice = Some(advice.into());
        self
    }

    /// The kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The kernel's error number, if the kernel refused.
    pub fn errno(&self) -> Option<i32> {
        self.0.errno.map(Errno::raw_os_error)
    }

    /// The failure and its reason, as a clause, and the advice: for languages that report the two apart.
    pub fn told(&self) -> (String, Option<&str>) {
        let mut clause = String::new();
        self.write_clause(&mut clause, "cannot ").expect("a string takes all");
        (clause, self.advice())
    }

    /// The reason of the failure, if more is known than the error number.
    pub fn reason(&self) -> Option<&str> {
        self.0.reason.as_deref()
    }

    /// The advice, if there is any.
    pub fn advice(&self) -> Option<&str> {
        self.0.advice.as_deref()
    }

    /// Writes everything but the advice; `cannot` comes before the operation.
    fn write_clause(&self, to: &mut dyn fmt::Write, cannot: &str) -> fmt::Result {
        let Inner { operation, file, range, errno, reason, .. } = &*self.0;
        if let Some(file) = file {
            write!(to, "{}: ", file.display())?;
        }
        // The fault of a file says more than the failed operation.
        if let (Some(_), None, Some(reason)) = (file, errno, reason) {
            to.write_str(reason)?;
            return range.map_or(Ok(()), |range| write!(to, ", needed for {range}"));
        }
        write!(to, "{cannot}{operation}")?;
        if let Some(range) = range {
            write!(to, " on {range}")?;
        }
        if let Some(errno) = errno {
            // Not formatted by libc: the caller may be an allocator.
            write!(to, ": {} (os error {})", crate::reason(*errno), errno.raw_os_error())?;
        }
        reason.as_ref().map_or(Ok(()), |reason| write!(to, ": {reason}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_clause(f, "")?;
        self.advice().map_or(Ok(()), |advice| write!(f, "; {advice}"))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl std::error::Error for Error {}

/// Adds the operation to an errno.
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

/// An error of the file system in an operation on a file.
pub fn file_error(operation: &'static str, path: &Path, error: io::Error) -> Error {
    let failed = match (Errno::from_io_error(&error), error.kind()) {
        (Some(errno), io::ErrorKind::PermissionDenied) => Error::from_errno(operation, errno),
        (Some(errno), _) => Error::from_errno(operation, errno).of_kind(ErrorKind::File),
        (None, io::ErrorKind::UnexpectedEof) => Error::new(ErrorKind::Corrupt, operation)
            .because("it ends before its content does: it was cut short since it was opened"),
        (None, io::ErrorKind::InvalidData) => {
            Error::new(ErrorKind::File, operation).because(error.to_string())
        }
        (None, _) => Error::new(told_kind(&error), operation).because(error.to_string()),
    };
    failed.of_file(path)
}

/// The kind of an error of the standard library. Too many open files, for which the library has no kind, count as out
/// of memory.
pub fn io_kind(error: &io::Error) -> io::ErrorKind {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE) => io::ErrorKind::OutOfMemory,
        _ => error.kind(),
    }
}

/// The kind of an error that has text in place of an error number.
fn told_kind(error: &io::Error) -> ErrorKind {
    use io::ErrorKind as Io;
    match error.kind() {
        Io::PermissionDenied => ErrorKind::Denied,
        Io::Unsupported => ErrorKind::Unsupported,
        Io::InvalidData => ErrorKind::Corrupt,
        Io::OutOfMemory | Io::StorageFull | Io::QuotaExceeded => ErrorKind::OutOfMemory,
        Io::ResourceBusy | Io::AddrInUse | Io::WouldBlock | Io::ExecutableFileBusy => {
            ErrorKind::Busy
        }
        _ => ErrorKind::File,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: VirtRange = VirtRange { start: 0x20_0000, len: 0x20_0000 };

    /// An error with these parts: a file, a range, an errno, a reason, advice.
    fn with([file, range, errno, reason, advice]: [bool; 5]) -> Error {
        let mut error = match errno {
            true => Error::from_errno("write", Errno::NOMEM),
            false => Error::new(ErrorKind::OutOfMemory, "write"),
        };
        if file {
            error = error.of_file(Path::new("store"));
        }
        if range {
            error = error.on(RANGE);
        }
        if reason {
            error = error.because("it is full");
        }
        if advice {
            error = error.advise("make it larger");
        }
        error
    }

    #[test]
    fn every_part_is_said_once_and_in_its_order() {
        for bits in 0..1 << 5 {
            let parts = [0, 1, 2, 3, 4].map(|bit| bits & (1 << bit) != 0);
            let [file, range, errno, reason, advice] = parts;
            let error = with(parts);
            let part =
                |is_there: bool, text: &str| if is_there { text.to_owned() } else { String::new() };
            let place = part(file, "store: ");
            let clause = |cannot: &str| match file && reason && !errno {
                true => {
                    let needed = ", needed for 0x200000..0x400000 (2 MiB)";
                    format!("{place}it is full{}", part(range, needed))
                }
                false => format!(
                    "{place}{cannot}write{}{}{}",
                    part(range, " on 0x200000..0x400000 (2 MiB)"),
                    part(errno, ": Out of memory (os error 12)"),
                    part(reason, ": it is full")
                ),
            };
            assert_eq!(error.to_string(), clause("") + &part(advice, "; make it larger"));
            let advice = advice.then_some("make it larger");
            assert_eq!(error.told(), (clause("cannot "), advice));
            assert_eq!((error.reason(), error.advice()), (reason.then_some("it is full"), advice));
            assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        }
    }

    #[test]
    fn all_parts_make_a_sentence() {
        let without = |parts: [bool; 5]| with(parts).to_string();
        assert_eq!(
            without([false, true, true, true, true]),
            "write on 0x200000..0x400000 (2 MiB): Out of memory (os error 12): it is full; make it larger"
        );
        assert_eq!(without([true, false, false, true, true]), "store: it is full; make it larger");
        assert_eq!(without([false, false, false, false, true]), "write; make it larger");
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
