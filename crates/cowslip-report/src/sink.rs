//! The destination of output: a file that is whole or absent, or standard output for `-`.

use std::io::{self, Write};
use std::path::Path;

use cowslip_sys::atomic_file::{self, BY_UMASK};
use cowslip_sys::error::io_kind;

/// Writes `text` to `path`, or to standard output if that is `-`.
///
/// A file is replaced once all of it is written, or stays as it was; a device or a pipe is written to.
///
/// # Errors
/// The error names the action and the file.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    write_bytes(path, text.as_bytes())
}

/// Like [`write()`], for binary data.
///
/// # Errors
/// Like [`write()`].
pub fn write_bytes(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if path == Path::new("-") {
        return print_bytes(bytes);
    }
    atomic_file::replace(path, bytes, BY_UMASK).map_err(|error| explain("write", path, &error))
}

/// Prints `text`; a reader that went away (`| head`) is no error.
///
/// # Errors
/// Any other error of standard output, such as a full disk.
pub fn print(text: &str) -> io::Result<()> {
    print_bytes(text.as_bytes())
}

fn print_bytes(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(explain("write to", Path::new("standard output"), &error))
        }
        _ => Ok(()),
    }
}

pub(super) fn explain(action: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(io_kind(error), format!("cannot {action} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::{fs, process};

    use super::*;

    #[test]
    fn a_pipe_is_written_to_and_stays_one() {
        let name = format!("cowslip-sink-{}", process::id());
        let pipe = std::env::temp_dir().join(name);
        let made = process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let reader = {
            let pipe = pipe.clone();
            std::thread::spawn(move || fs::read(pipe).unwrap())
        };
        write(&pipe, "a report").unwrap();
        let is_file = fs::metadata(&pipe).unwrap().is_file();
        fs::remove_file(&pipe).unwrap();
        assert!(!is_file);
        assert_eq!(reader.join().unwrap(), b"a report");
    }
}
