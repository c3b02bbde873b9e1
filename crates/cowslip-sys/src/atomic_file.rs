//! Files that appear whole or not at all: written without a name, synced, then renamed.
//!
//! A device, a FIFO or a socket stays as it is: it is written in place, or refused where that makes no sense.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::fs::{AtFlags, CWD, linkat};
use rustix::process::Pid;

use crate::Errno;
use crate::failpoints::{self, Op};

/// The alignment that direct I/O needs for memory, offsets and lengths: a page is enough everywhere.
const DIRECT_BYTES: usize = 4096;

/// The mode of an output that is no secret: all users may use a new one as far as the umask
/// permits.
pub const BY_UMASK: u32 = 0o666;

/// A file that takes its name when it is [committed](Self::commit), and vanishes otherwise: together with its process,
/// where the file system supports unnamed files (`O_TMPFILE`, `open(2)`).
#[derive(Debug)]
pub struct DurableFile {
    file: File,
    /// The same file, opened around the page cache (`O_DIRECT`) where the file system supports
    /// that.
    direct: Option<File>,
    refuses_direct: AtomicBool,
    target: PathBuf,
    /// Its name until it takes the target's.
    temporary: PathBuf,
    has_temporary: bool,
}

/// The target of a write, found by its name.
#[derive(Debug)]
pub enum Target {
    /// A regular file, or none yet: its path, with a final link resolved.
    File(PathBuf),
    /// A device, a FIFO or a socket. It is written to in place.
    Stream,
}

impl Target {
    /// Follows links (`path_resolution(7)`).
    ///
    /// # Errors
    /// The file system's (`stat(2)`); [`io::ErrorKind::InvalidInput`] for a folder, or a link to nothing; as [`refuse_planted`].
    pub fn find(path: &Path) -> io::Result<Self> {
        // A file with several names is replaced, not written to: the others keep its content.
        refuse(path, |_| false)?;
        let is_link = || fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
        let refuse = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        match fs::metadata(path) {
            Ok(there) if there.is_dir() => refuse("it is a folder"),
            Ok(there) if !there.is_file() => Ok(Self::Stream),
            Ok(_) if is_link() => Ok(Self::File(fs::canonicalize(path)?)),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Err(_) if is_link() => refuse("it is a link to nothing"),
            _ => Ok(Self::File(path.to_owned())),
        }
    }
}

/// Refuses files that another user may have put at a path in a folder where every user may make files, such as `/tmp`: a
/// link that leads elsewhere, a FIFO, a file of that user's, another name of a file of this user's. The folder's owner
/// may put them there. It is the rule of `fs.protected_symlinks` and its like (`proc_sys_fs(5)`), also where those are off.
///
/// # Errors
/// [`io::ErrorKind::PermissionDenied`].
pub fn refuse_planted(path: &Path) -> io::Result<()> {
    refuse(path, has_names)
}

fn has_names(there: &fs::Metadata) -> bool {
    there.is_file() && there.nlink() > 1
}

/// Opens a file that grows while it is written, made with this mode (less the umask) or emptied: an
/// output that is useful before it is whole. A device, a FIFO or a socket is written to.
///
/// # Errors
/// An error of the file system (`open(2)`); as [`refuse_planted`].
pub fn create_in_place(path: &Path, mode: u32) -> io::Result<File> {
    let file = open_in_place(path, OpenOptions::new().write(true).mode(mode))?;
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Like [`create_in_place`], to write behind what is there.
///
/// # Errors
/// Those too.
pub fn append_in_place(path: &Path) -> io::Result<File> {
    open_in_place(path, OpenOptions::new().append(true))
}

fn open_in_place(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let before = fs::symlink_metadata(path).ok();
    before.iter().try_for_each(|there| refuse_there(path, there, has_names))?;
    let is_link = before.is_some_and(|there| there.is_symlink());
    let flags = if is_link { 0 } else { libc::O_NOFOLLOW };
    let file = options.create(true).custom_flags(flags).open(path)?;
    if !is_link {
        // Another user may have put it there since.
        refuse_there(path, &file.metadata()?, has_names)?;
    }
    Ok(file)
}

/// Refuses files of other users like [`refuse_planted`], and those of this user that are `suspect`.
fn refuse(path: &Path, suspect: impl FnOnce(&fs::Metadata) -> bool) -> io::Result<()> {
    fs::symlink_metadata(path).map_or(Ok(()), |there| refuse_there(path, &there, suspect))
}

fn refuse_there(
    path: &Path,
    there: &fs::Metadata,
    suspect: impl FnOnce(&fs::Metadata) -> bool,
) -> io::Result<()> {
    const STICKY_FOR_ALL: u32 = 0o1002;
    let Ok(folder) = fs::metadata(folder_of(path)) else { return Ok(()) };
    let is_for_all = folder.mode() & STICKY_FOR_ALL == STICKY_FOR_ALL;
    let may = [crate::process::effective_uid(), folder.uid()];
    if !is_for_all || (may.contains(&there.uid()) && !suspect(there)) {
        return Ok(());
    }
    let message = "another user may have put it there, in a folder for all users";
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

/// Puts `bytes` into a file of this mode (less the umask), in place of what has its name: whole or not at all. A device, a
/// FIFO or a socket is written to.
///
/// # Errors
/// An error of the file system; then the file is unchanged.
pub fn replace(target: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    if let Target::Stream = Target::find(target)? {
        return fs::write(target, bytes);
    }
    let file = DurableFile::with_mode(target, mode)?;
    file.write_at(bytes, 0)?;
    file.commit()
}

impl DurableFile {
    /// Creates an empty file with mode 0600 beside `target`, which is not touched yet. Removes such files that killed
    /// processes left behind.
    ///
    /// # Errors
    /// An error of the file system (`open(2)`); [`io::ErrorKind::InvalidInput`] if `target` exists and is no regular
    /// file.
    pub fn create(target: &Path) -> io::Result<Self> {
        Self::with_mode(target, 0o600)
    }

    fn with_mode(target: &Path, mode: u32) -> io::Result<Self> {
        failpoints::check(Op::DurableCreate)?;
        let target = &file_at(target)?;
        let name = target.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(".");
        tidy(folder_of(target), &hidden);
        hidden.push(crate::process::pid().to_string());
        let temporary = target.with_file_name(hidden);
        let mut options = OpenOptions::new();
        options.write(true).mode(mode);
        let nameless = failpoints::check(Op::DurableNameless)
            .map_err(io::Error::from)
            .and_then(|()| options.clone().custom_flags(libc::O_TMPFILE).open(folder_of(target)));
        let (file, has_temporary) = match nameless {
            Ok(file) => (file, false),
            Err(error) if lacks_nameless_files(&error) => {
                // Left behind by a killed process of this number, or put there.
                let _ = fs::remove_file(&temporary);
                (options.create_new(true).open(&temporary)?, true)
            }
            Err(error) => return Err(error),
        };
        // Tells a process that finds the temporary name, and may not see this process, that the
        // file is in use: see `tidy`.
        let _ = file.try_lock();
        let mut options = OpenOptions::new();
        options.write(true).custom_flags(libc::O_DIRECT);
        let direct = options.open(itself(&file)).ok();
        let (target, refuses_direct) = (target.to_owned(), AtomicBool::new(false));
        Ok(Self { file, direct, refuses_direct, target, temporary, has_temporary })
    }

    /// Writes all of `bytes` at an offset; several threads may write at once. Whole pages that begin at a page, in
    /// memory and in the file, go around the page cache.
    ///
    /// # Errors
    /// An error of the file system (`pwrite(2)`): `ENOSPC`, `EIO`, `EDQUOT`.
    pub fn write_at(&self, mut bytes: &[u8], mut offset_bytes: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write_once(bytes, offset_bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    bytes = &bytes[written..];
                    offset_bytes += written as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn write_once(&self, bytes: &[u8], offset_bytes: u64) -> io::Result<usize> {
        failpoints::check(Op::DurableWrite)?;
        // Cut short, as by a signal or a full disk.
        let is_cut = failpoints::check(Op::DurableShort).is_err();
        let bytes = if is_cut { &bytes[..bytes.len().div_ceil(2)] } else { bytes };
        let parts = [bytes.as_ptr() as usize, bytes.len(), offset_bytes as usize];
        let is_whole = parts.iter().all(|part| part.is_multiple_of(DIRECT_BYTES));
        if let Some(direct) = self.direct.as_ref().filter(|_| is_whole)
            && !self.refuses_direct.load(Relaxed)
        {
            let written = failpoints::check(Op::DurableDirect).map_err(io::Error::from);
            match written.and_then(|()| direct.write_at(bytes, offset_bytes)) {
                // Some file systems refuse direct I/O only here.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    self.refuses_direct.store(true, Relaxed);
                }
                answer => return answer,
            }
        }
        self.file.write_at(bytes, offset_bytes)
    }

    /// Makes the content durable, gives the file its name in place of the old file, and makes that durable.
    ///
    /// # Errors
    /// An error of the file system (`fsync(2)`, `rename(2)`). If only the last step fails, the file has its name, but
    /// may lose it again if the machine crashes.
    pub fn commit(mut self) -> io::Result<()> {
        failpoints::check(Op::DurableSync)?;
        self.file.sync_all()?;
        failpoints::check(Op::DurableRename)?;
        if !self.has_temporary {
            // A killed process with the same number may have left one behind.
            let _ = fs::remove_file(&self.temporary);
            linkat(CWD, itself(&self.file), CWD, &self.temporary, AtFlags::SYMLINK_FOLLOW)?;
            self.has_temporary = true;
        }
        file_at(&self.target)?;
        fs::rename(&self.temporary, &self.target)?;
        self.has_temporary = false;
        failpoints::check(Op::DurableSync)?;
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

/// The path of a file that may be replaced.
fn file_at(path: &Path) -> io::Result<PathBuf> {
    match Target::find(path)? {
        Target::File(path) => Ok(path),
        Target::Stream => {
            let message = "it is a device, a FIFO or a socket, not a regular file";
            Err(io::Error::new(io::ErrorKind::InvalidInput, message))
        }
    }
}

/// Removes files with this name and a process number, if there is no such process and none of them is locked: a process
/// that cannot be seen from here may be writing to one.
fn tidy(folder: &Path, name: &OsStr) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let file = entry.file_name();
        let number = file.as_bytes().strip_prefix(name.as_bytes()).map(str::from_utf8);
        let is_gone = |pid| rustix::process::test_kill_process(pid) == Err(Errno::SRCH);
        if let Some(Ok(number)) = number
            && number.parse().ok().and_then(Pid::from_raw).is_some_and(is_gone)
            && entry.file_type().is_ok_and(|kind| kind.is_file())
            && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok())
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// A path to an open file, with or without a name.
fn itself(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// The errors that `open(2)` documents for file systems and kernels without unnamed files.
fn lacks_nameless_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL))
}
