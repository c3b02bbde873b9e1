//! What is too long to be held: a file that is whole or absent, or standard output for `-`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::sink;

/// Takes the place of a file when it is finished; until then it is beside it, and goes if it is dropped.
#[derive(Debug)]
pub(crate) enum Stream {
    Stdout(io::Stdout),
    File { file: File, temporary: PathBuf, path: PathBuf },
}

impl Stream {
    /// Nobody else may read the file.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stdout(io::stdout()));
        }
        let temporary = sink::beside(path)?;
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary);
        let file = file.map_err(|error| sink::explain("write", path, &error))?;
        Ok(Self::File { file, temporary, path: path.to_owned() })
    }

    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        match &self {
            Self::Stdout(_) => Ok(()),
            Self::File { temporary, path, .. } => {
                let renamed = fs::rename(temporary, path);
                renamed.map_err(|error| sink::explain("replace", path, &error))
            }
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout(stdout) => stdout.write(bytes),
            Self::File { file, .. } => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout(stdout) => stdout.flush(),
            Self::File { file, .. } => file.flush(),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Self::File { temporary, .. } = self {
            // It is not there any more if it was finished.
            let _ = fs::remove_file(temporary);
        }
    }
}
