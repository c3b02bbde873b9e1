//! A destination for data too large for memory: a file that is whole or absent, or standard output for `-`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use cowslip_sys::atomic_file::{self, DurableFile};

use super::sink::explain;

/// Replaces a file when it is finished, and leaves nothing behind if it is dropped before.
#[derive(Debug)]
pub struct Stream(Target);

#[derive(Debug)]
enum Target {
    Stdout(io::Stdout),
    /// A device, a FIFO or a socket.
    InPlace(File),
    File {
        file: DurableFile,
        path: PathBuf,
        length_bytes: u64,
    },
}

impl Stream {
    /// Opens a file that will be `path`, which other users may not read. Writes to a device or a FIFO itself, and to
    /// standard output if `path` is `-`.
    ///
    /// # Errors
    /// The error names the file.
    pub fn open(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self(Target::Stdout(io::stdout())));
        }
        let failed = |error: io::Error| explain("write", path, &error);
        if let atomic_file::Target::Stream = atomic_file::Target::find(path).map_err(failed)? {
            let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
            return Ok(Self(Target::InPlace(file)));
        }
        let file = DurableFile::create(path).map_err(failed)?;
        Ok(Self(Target::File { file, path: path.to_owned(), length_bytes: 0 }))
    }

    /// Puts the written file in place.
    ///
    /// # Errors
    /// The error names the file, which stays as it was.
    pub fn finish(self) -> io::Result<()> {
        match self.0 {
            Target::Stdout(mut stdout) => stdout.flush(),
            Target::InPlace(mut file) => file.flush(),
            Target::File { file, path, .. } => {
                file.commit().map_err(|error| explain("replace", &path, &error))
            }
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Target::Stdout(stdout) => stdout.write(bytes),
            Target::InPlace(file) => file.write(bytes),
            Target::File { file, length_bytes, .. } => {
                file.write_at(bytes, *length_bytes)?;
                *length_bytes += bytes.len() as u64;
                Ok(bytes.len())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Target::Stdout(stdout) => stdout.flush(),
            Target::InPlace(file) => file.flush(),
            Target::File { .. } => Ok(()),
        }
    }
}
