//! A lock by which a user's servers begin to listen at a socket one after the other.

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use cowslip_sys::{process, regular};

/// The folder of root's locks. Others have one in `XDG_RUNTIME_DIR`.
const FOLDER_OF_ROOT: &str = "/run/cowslip-serve";
const POLL: Duration = Duration::from_millis(10);

/// A locked file (`flock(2)`) that no other user can open. It is removed when the lock is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Waits for other servers that begin to listen at `socket`, up to `patience`.
    pub(crate) fn take(socket: &Path, patience: Duration) -> io::Result<Self> {
        let deadline = Instant::now() + patience;
        loop {
            let (path, file) = open(socket)?;
            match file.try_lock() {
                Ok(()) if is_at(&file, &path) => return Ok(Self { path, _file: file }),
                // The former holder removed it, and another file may be locked by now.
                Ok(()) => {}
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => thread::sleep(POLL),
                Err(refused) => return Err(refused.into()),
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let id = |file: fs::Metadata| (file.dev(), file.ino());
    let there = fs::symlink_metadata(path).map(id);
    there.is_ok_and(|there| file.metadata().map(id).is_ok_and(|locked| locked == there))
}

/// Opens the file to lock. It is in a folder of the user's, and named by the socket's folder and name, so that every
/// path of a socket has the same lock. Where there is no such folder, or it is read-only, the file is beside the
/// socket.
fn open(socket: &Path) -> io::Result<(PathBuf, File)> {
    let name = socket.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let beside = socket.parent().filter(|folder| !folder.as_os_str().is_empty());
    let beside = beside.unwrap_or(Path::new("."));
    let with = |start: String| {
        let mut file = OsString::from(start);
        file.push(name);
        file.push(".lock");
        file
    };
    if let Some(folder) = own_folder() {
        let there = fs::metadata(beside)?;
        let path = folder.join(with(format!("{:x}-{:x}-", there.dev(), there.ino())));
        match regular::open_own(&path) {
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {}
            opened => return opened.map(|file| (path, file)),
        }
    }
    let path = beside.join(with(String::new()));
    regular::open_own(&path).map(|file| (path, file))
}

/// A folder in which no other user can make or rename anything.
fn own_folder() -> Option<PathBuf> {
    let user = process::effective_uid();
    let folder = if user == 0 {
        PathBuf::from(FOLDER_OF_ROOT)
    } else {
        let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        runtime.filter(|path| path.is_absolute())?.join("cowslip")
    };
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return None,
        _ => {}
    }
    let there = fs::symlink_metadata(&folder).ok()?;
    (there.is_dir() && there.uid() == user && there.mode() & 0o022 == 0).then_some(folder)
}
