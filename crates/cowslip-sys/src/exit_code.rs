//! Exit codes of the project's commands for each kind of failure, in one table.

use std::io;

use crate::Errno;
use crate::error::{Error, ErrorKind, io_kind};

/// The request makes no sense, or a file that it names cannot be read or written.
pub const USAGE: u8 = 2;
/// The kernel lacks it, or this build does.
pub const UNSUPPORTED: u8 = 3;
/// Not permitted.
pub const DENIED: u8 = 4;
/// The target vanished.
pub const VANISHED: u8 = 5;
/// Malformed input.
pub const CORRUPT: u8 = 6;
/// Memory or space ran out, something is in use, or the kernel refused for another reason (`EX_SOFTWARE`,
/// `sysexits.h(3head)`).
pub const FAILED: u8 = 70;

/// The exit code of an error. A file that cannot be written for lack of space is not a wrong
/// request.
pub fn from_error(error: &Error) -> u8 {
    let is_short = || {
        let errno = error.errno().map(Errno::from_raw_os_error);
        errno.is_some_and(|errno| of_file(&errno.into()) == FAILED)
    };
    match error.kind() {
        ErrorKind::File if is_short() => FAILED,
        ErrorKind::Usage | ErrorKind::File => USAGE,
        ErrorKind::Unsupported => UNSUPPORTED,
        ErrorKind::Denied => DENIED,
        ErrorKind::Vanished => VANISHED,
        ErrorKind::Corrupt => CORRUPT,
        ErrorKind::OutOfMemory | ErrorKind::Busy | ErrorKind::System => FAILED,
    }
}

/// The exit code of a failed operation on a file, a socket or an address that the request named.
pub fn of_file(error: &io::Error) -> u8 {
    refusal(error).unwrap_or(USAGE)
}

/// The exit code of a failed operation on something that no request named.
pub fn of_system(error: &io::Error) -> u8 {
    refusal(error).unwrap_or(FAILED)
}

fn refusal(error: &io::Error) -> Option<u8> {
    use io::ErrorKind as Io;
    match io_kind(error) {
        Io::PermissionDenied => Some(DENIED),
        Io::Unsupported => Some(UNSUPPORTED),
        Io::InvalidData => Some(CORRUPT),
        Io::OutOfMemory | Io::StorageFull | Io::QuotaExceeded => Some(FAILED),
        Io::ResourceBusy | Io::AddrInUse | Io::WouldBlock | Io::ExecutableFileBusy => Some(FAILED),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::error::file_error;

    #[test]
    fn want_of_room_and_use_by_others_are_told_from_a_wrong_request() {
        for (errno, code) in [
            (Errno::NOENT, USAGE),
            (Errno::ISDIR, USAGE),
            (Errno::ROFS, USAGE),
            (Errno::IO, USAGE),
            (Errno::ACCESS, DENIED),
            (Errno::NOMEM, FAILED),
            (Errno::NOSPC, FAILED),
            (Errno::DQUOT, FAILED),
            (Errno::MFILE, FAILED),
            (Errno::NFILE, FAILED),
            (Errno::AGAIN, FAILED),
            (Errno::BUSY, FAILED),
            (Errno::TXTBSY, FAILED),
            (Errno::ADDRINUSE, FAILED),
        ] {
            let error = || io::Error::from(errno);
            assert_eq!(of_file(&error()), code, "{errno}");
            assert_eq!(
                from_error(&file_error("write", Path::new("image"), error())),
                code,
                "{errno}"
            );
            assert_eq!(from_error(&Error::from_io("write", &error())), code, "{errno}");
            let system = if code == USAGE { FAILED } else { code };
            assert_eq!(of_system(&error()), system, "{errno}");
            // Errors of crates that name the file.
            let told = io::Error::new(io_kind(&error()), format!("image: {errno}"));
            assert_eq!(of_file(&told), code, "{errno}");
            assert_eq!(from_error(&Error::from_io("write", &told)), code, "{errno}");
            assert_eq!(from_error(&file_error("write", Path::new("image"), told)), code, "{errno}");
        }
    }
}
