//! What is too long to be held: a file that is whole or absent, or standard output for `-`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::sink;

/// Takes the place of a file when it is finished; until then it is beside it, and goes if it is dropped.
#[derive(Debug)]
pub struct Stream(Target);

#[derive(Debug)]
enum Target {
    Stdout(io::Stdout),
    File { file: File, temporary: PathBuf, path: PathBuf },
}

impl Stream {
    /// Opens a file beside `path`, which nobody else may read, or standard output if `path` is `-`.
    ///
    /// # Errors
    /// The error names the file.
    pub fn open(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self(Target::Stdout(io::stdout())));
        }
        let temporary = sink::beside(path)?;
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary);
        let file = file.map_err(|error| sink::explain("write", path, &error))?;
        Ok(Self(Target::File { file, temporary, path: path.to_owned() }))
    }

    /// What was written takes the place of the file.
    ///
    /// # Errors
    /// The error names the file, which stays as it was.
    pub fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        match &self.0 {
            Target::Stdout(_) => Ok(()),
            Target::File { temporary, path, .. } => {
                let renamed = fs::rename(temporary, path);
                renamed.map_err(|error| sink::explain("replace", path, &error))
            }
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Target::Stdout(stdout) => stdout.write(bytes),
            Target::File { file, .. } => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Target::Stdout(stdout) => stdout.flush(),
            Target::File { file, .. } => file.flush(),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Target::File { temporary, .. } = &self.0 {
            // It is not there any more if it was finished.
            let _ = fs::remove_file(temporary);
        }
    }
}
