//! Opens and reads regular files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Opens a regular file for reading. Any other kind is refused, without waiting for a FIFO's
/// writer.
///
/// # Errors
/// An error of the file system (`open(2)`); [`io::ErrorKind::InvalidInput`] for a file that is not
/// regular.
pub fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() {
        return Ok(file);
    }
    let message = format!("it is {}, not a regular file", name(kind));
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

/// Opens a file for writing that belongs to this user and that no other user may open; creates it empty if it does not
/// exist. A link is not followed.
///
/// # Errors
/// An error of the file system (`open(2)`); [`io::ErrorKind::PermissionDenied`] for another user's
/// file.
pub fn open_own(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(path)?;
    let there = file.metadata()?;
    if there.uid() != crate::process::effective_uid() || there.mode() & 0o077 != 0 {
        let message = format!("{} can be opened by another user", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    Ok(file)
}

/// Reads all of a regular file.
///
/// # Errors
/// Those of [`open`]; an error of the file system (`read(2)`).
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
