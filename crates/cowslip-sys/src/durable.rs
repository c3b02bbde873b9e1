//! Files that are there whole or not at all: written without a name, synced, renamed.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, linkat};

use crate::seam::{self, Op};

/// A file that takes its name when it is [committed](Self::commit), and vanishes if it never is: at once
/// with its process, where the file system has files without a name (`O_TMPFILE`, `open(2)`).
#[derive(Debug)]
pub struct DurableFile {
    file: File,
    target: PathBuf,
    /// Its name until it has the target's.
    temporary: PathBuf,
    has_temporary: bool,
}

impl DurableFile {
    /// Creates an empty file with mode 0600 beside `target`, which is not touched yet.
    ///
    /// # Errors
    /// The file system's (`open(2)`).
    pub fn create(target: &Path) -> io::Result<Self> {
        seam::check(Op::DurableCreate)?;
        let name = target.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}", crate::process::pid()));
        let temporary = target.with_file_name(hidden);
        let mut options = OpenOptions::new();
        options.write(true).mode(0o600);
        let nameless = options.clone().custom_flags(libc::O_TMPFILE).open(folder_of(target));
        let (file, has_temporary) = match nameless {
            Ok(file) => (file, false),
            Err(error) if lacks_nameless_files(&error) => {
                (options.create(true).truncate(true).open(&temporary)?, true)
            }
            Err(error) => return Err(error),
        };
        Ok(Self { file, target: target.to_owned(), temporary, has_temporary })
    }

    /// Writes all of `bytes` at an offset.
    ///
    /// # Errors
    /// The file system's (`pwrite(2)`): `ENOSPC`, `EIO`, `EDQUOT`.
    pub fn write_at(&self, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
        seam::check(Op::DurableWrite)?;
        self.file.write_all_at(bytes, offset_bytes)
    }

    /// Makes the content durable, gives the file its name in place of what had it, and makes that durable.
    ///
    /// # Errors
    /// The file system's (`fsync(2)`, `rename(2)`). If the last step alone fails, the file has its name,
    /// but may lose it again in a crash of the machine.
    pub fn commit(mut self) -> io::Result<()> {
        seam::check(Op::DurableSync)?;
        self.file.sync_all()?;
        seam::check(Op::DurableRename)?;
        if !self.has_temporary {
            let itself = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            // What a process of this number left behind when it was killed.
            let _ = fs::remove_file(&self.temporary);
            linkat(CWD, itself.as_str(), CWD, &self.temporary, AtFlags::SYMLINK_FOLLOW)?;
            self.has_temporary = true;
        }
        fs::rename(&self.temporary, &self.target)?;
        self.has_temporary = false;
        seam::check(Op::DurableSync)?;
        File::open(folder_of(&self.target))?.sync_all()
    }
}

impl Drop for DurableFile {
    fn drop(&mut self) {
        if self.has_temporary {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// As `open(2)` says for file systems and kernels without them.
fn lacks_nameless_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL))
}
