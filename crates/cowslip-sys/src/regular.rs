//! Opens and reads regular files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The longest text that [`read_text`] reads.
const TEXT_MOST_BYTES: u64 = 16 << 20;

/// Opens a regular file for reading. Any other kind is refused, without waiting for a FIFO's
/// writer.
///
/// # Errors
/// An error of the file system (`open(2)`); [`io::ErrorKind::InvalidInput`] for a file that is not
/// regular.
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

/// Reads all of a regular file.
///
/// # Errors
/// Those of [`open`]; an error of the file system (`read(2)`).
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a text that people write, such as a configuration: a regular file, or a FIFO or a device,
/// of at most 16 MiB.
///
/// # Errors
/// [`io::ErrorKind::FileTooLarge`] if it is longer; an error of the file system (`open(2)`,
/// `read(2)`).
pub fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let length = File::open(path)?.take(TEXT_MOST_BYTES + 1).read_to_string(&mut text)?;
    if length as u64 > TEXT_MOST_BYTES {
        let message = format!("it is longer than {} MiB", TEXT_MOST_BYTES >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(text)
}

fn name(kind: fs::FileType) -> &'static str {
    match kind {
        kind if kind.is_dir() => "a directory",
        kind if kind.is_fifo() => "a FIFO",
        _ => "a device",
    }
}
