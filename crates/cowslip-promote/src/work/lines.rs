//! Lines added to a file.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cowslip_sys::regular;

/// A file that grows. Another file in its place, or a shorter one, makes the count begin anew.
#[derive(Debug)]
pub(crate) struct Lines {
    path: PathBuf,
    file: File,
    at: u64,
    count: u64,
}

impl Lines {
    pub(crate) fn follow(path: &Path) -> io::Result<Self> {
        let mut file = regular::open(path)?;
        let at = file.seek(SeekFrom::End(0))?;
        Ok(Self { path: path.to_owned(), file, at, count: 0 })
    }

    /// Lines since the beginning. NaN once if it began anew.
    pub(crate) fn count(&mut self) -> io::Result<f64> {
        let (named, open) = (fs::metadata(&self.path)?, self.file.metadata()?);
        if (named.dev(), named.ino()) != (open.dev(), open.ino()) || open.len() < self.at {
            *self = Self::follow(&self.path)?;
            return Ok(f64::NAN);
        }
        let mut buffer = vec![0; 1 << 16];
        // Not beyond the end as it is now: a writer may be faster.
        let mut rest = (&mut self.file).take(open.len() - self.at);
        loop {
            match rest.read(&mut buffer)? {
                0 => return Ok(self.count as f64),
                read => {
                    self.at += read as u64;
                    self.count +=
                        buffer[..read].iter().filter(|byte| **byte == b'\n').count() as u64;
                }
            }
        }
    }
}
