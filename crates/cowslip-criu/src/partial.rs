//! A folder that appears under its name when it is whole.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use cowslip::{Error, ErrorKind, Result};
use cowslip_sys::error::file_error;

use crate::about::REST;
use crate::checkpoint::OPERATION;
use crate::private::lock_folder;

/// A folder that is being written, and removed if it is not finished. Its lock keeps other commands from it.
pub(crate) struct Partial {
    pub(crate) path: PathBuf,
    _lock: File,
}

impl Partial {
    pub(crate) fn create(folder: &Path) -> Result<Self> {
        let unnamed = || Error::new(ErrorKind::Usage, OPERATION).of_file(folder).because("no name");
        let name = folder.file_name().ok_or_else(unnamed)?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(".partial");
        // CRIU changes its folder.
        let path = std::path::absolute(folder.with_file_name(hidden))
            .map_err(|error| file_error(OPERATION, folder, error))?;
        let lock = lock_folder(OPERATION, &path)?;
        // Files of a command that was killed. By the descriptor: another user may own the parent, and put a link there.
        let locked = format!("/proc/self/fd/{}", lock.as_raw_fd());
        let emptied = fs::read_dir(locked).and_then(|mut files| {
            files.try_for_each(|file| {
                let file = file?;
                match file.file_type()?.is_dir() {
                    true => fs::remove_dir_all(file.path()),
                    false => fs::remove_file(file.path()),
                }
            })
        });
        emptied.map_err(|error| file_error(OPERATION, &path, error))?;
        Ok(Self { path, _lock: lock })
    }

    /// Gives it its name, once all of it is on the disk.
    pub(crate) fn finish(mut self, folder: &Path) -> Result<()> {
        let failed = |error| file_error(OPERATION, folder, error);
        let rest = self.path.join(REST);
        for part in [&rest, &self.path].into_iter().filter(|part| part.is_dir()) {
            for file in fs::read_dir(part).map_err(failed)? {
                let synced = file.and_then(|file| File::open(file.path())?.sync_all());
                synced.map_err(failed)?;
            }
            File::open(part).and_then(|part| part.sync_all()).map_err(failed)?;
        }
        let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = File::open(parent.unwrap_or(Path::new("."))).map_err(failed)?;
        fs::rename(&self.path, folder).map_err(failed)?;
        // The next command may have made one of the old name.
        self.path.clear();
        parent.sync_all().map_err(failed)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use cowslip::ErrorKind;
    use cowslip_sys::process;

    use super::*;
    use crate::import::private_folder;

    #[test]
    fn a_checkpoint_is_written_by_one_command() {
        let place = std::env::temp_dir().join(format!("cowslip-one-{}", process::pid()));
        private_folder(&place).unwrap();
        let folder = place.join("shop");
        let first = Partial::create(&folder).unwrap();
        fs::write(first.path.join("file"), "content").unwrap();
        let kind = || Partial::create(&folder).map(drop).unwrap_err().kind();
        assert_eq!(kind(), ErrorKind::Busy);
        assert!(first.path.join("file").exists());
        let hidden = first.path.clone();
        drop(first);
        assert!(!hidden.exists());

        // Of a command that was killed.
        fs::create_dir_all(hidden.join("dump")).unwrap();
        fs::write(hidden.join("dump/file"), "content").unwrap();
        let next = Partial::create(&folder).unwrap();
        assert_eq!(fs::read_dir(&next.path).unwrap().count(), 0);
        fs::create_dir(next.path.join(REST)).unwrap();
        next.finish(&folder).unwrap();
        assert!(folder.join(REST).is_dir() && !hidden.exists());

        symlink(&place, &hidden).unwrap();
        assert_eq!(kind(), ErrorKind::Denied);
        fs::remove_file(&hidden).unwrap();
        fs::create_dir(&hidden).unwrap();
        if chown(&hidden, Some(65534), None).is_ok() {
            assert_eq!(kind(), ErrorKind::Denied);
        }
        fs::remove_dir_all(&place).unwrap();
    }
}
