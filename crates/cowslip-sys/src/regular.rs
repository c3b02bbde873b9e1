//! Files that are read whole or at any place: regular ones.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Opens a regular file to be read. Anything else is refused without a wait for a FIFO's writer.
///
/// # Errors
/// The file system's (`open(2)`); [`io::ErrorKind::InvalidInput`] for what is no regular file.
pub fn open(path: &Path) -> io::Result<File> {
    only_regular(OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?)
}

fn only_regular(file: File) -> io::Result<File> {
    let kind = file.metadata()?.file_type();
    if kind.is_file() {
        return Ok(file);
    }
    let message = format!("it is {}, not a regular file", name(kind));
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

/// Opens a file to be written that belongs to this user and that no other may open, empty if it was not there. A link is not
/// followed, a FIFO not waited for.
///
/// # Errors
/// The file system's (`open(2)`); [`io::ErrorKind::PermissionDenied`] for another user's file; as [`open`].
pub fn open_own(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    // A FIFO that is opened for both opens at once.
    let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let there = file.metadata()?;
    if there.uid() != crate::process::effective_uid() || there.mode() & 0o077 != 0 {
        let message = format!("{} can be opened by another user", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    only_regular(file)
}

/// All of a regular file.
///
/// # Errors
/// As [`open`]; the file system's (`read(2)`).
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn name(kind: fs::FileType) -> &'static str {
    match kind {
        kind if kind.is_dir() => "a directory",
        kind if kind.is_fifo() => "a FIFO",
        _ => "a device",
    }
}
