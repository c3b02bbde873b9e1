//! Folders of one command, held by a lock: for temporary files, and in memory for those that must not reach a disk.

use std::fs::{self, File, Metadata, TryLockError};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cowslip::{Error, ErrorKind, Result};
use cowslip_sys::error::file_error;
use cowslip_sys::{memfile, process};

use crate::import::private_folder;

const MEMORY: &str = "/dev/shm";
const PREFIX: &str = "cowslip-private-";
const OPERATION: &str = "make a private folder";

/// A folder that its owner alone can read, removed with this value. The next command removes that of a killed one.
#[derive(Debug)]
pub struct PrivateFolder {
    path: PathBuf,
    _lock: File,
}

impl PrivateFolder {
    /// Makes one in the folder for temporary files, `TMPDIR` or `/tmp`.
    ///
    /// # Errors
    /// The file system's.
    pub fn create() -> Result<Self> {
        Self::create_in(&std::env::temp_dir())
    }

    /// Makes one for files that must not reach a disk.
    pub(crate) fn in_memory() -> Result<Self> {
        let memory = Path::new(MEMORY);
        let place = File::open(memory).map_err(|error| file_error(OPERATION, memory, error))?;
        if !memfile::is_on_tmpfs(place.as_fd()) {
            return Err(Error::new(ErrorKind::Unsupported, OPERATION)
                .of_file(memory)
                .because("it is on no tmpfs, and decrypted files must not reach a disk")
                .advise("mount one there: mount -t tmpfs -o mode=1777 tmpfs /dev/shm"));
        }
        Self::create_in(memory)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn create_in(place: &Path) -> Result<Self> {
        let failed = |error| file_error(OPERATION, place, error);
        for entry in fs::read_dir(place).map_err(failed)?.flatten() {
            let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX))
                && entry
                    .metadata()
                    .is_ok_and(|there| there.is_dir() && there.uid() == process::effective_uid());
            // The lock is held by the command that uses it.
            if is_ours && let Ok(_lock) = lock_folder(OPERATION, &entry.path()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        loop {
            // In another PID namespace another process may have the same number.
            let path = place.join(format!("{PREFIX}{}-{}", process::pid(), process::now_ns()));
            match lock_folder(OPERATION, &path) {
                // The next command took it for that of a killed one.
                Err(error) if error.kind() == ErrorKind::Busy => {}
                locked => return locked.map(|lock| Self { path, _lock: lock }),
            }
        }
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Makes a folder, if it is not there, and locks it.
pub(crate) fn lock_folder(operation: &'static str, path: &Path) -> Result<File> {
    let failed = |error| file_error(operation, path, error);
    loop {
        match private_folder(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed(error));
            }
            _ => {}
        }
        let Some(before) = there(path).map_err(failed)? else { continue };
        if !before.is_dir() || before.uid() != process::effective_uid() {
            let why = "it is no folder of this user";
            return Err(Error::new(ErrorKind::Denied, operation).of_file(path).because(why));
        }
        let lock = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened.map_err(failed)?,
        };
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => {
                let why = "another command is writing it";
                return Err(Error::new(ErrorKind::Busy, operation).of_file(path).because(why));
            }
            locked => locked.map_err(|error| failed(error.into()))?,
        }
        // Its writer may have given it its name, or removed it, before the lock.
        let own = lock.metadata().map_err(failed)?;
        let now = there(path).map_err(failed)?;
        if now.is_some_and(|now| (now.dev(), now.ino()) == (own.dev(), own.ino())) {
            return Ok(lock);
        }
    }
}

/// Looks at a path, without following a link.
fn there(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}
