//! A running process, kept in a folder: its memory in an image, the rest as CRIU writes it.
//!
//! ```text
//!  holder ──criu dump──▶ dump ──[instant]──▶ dump of the program ──[import]──▶ FOLDER/memory.image · FOLDER/criu/
//! ```
//! The folder appears under its name when it is whole.

use std::fs::{self, File, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cowslip::image::{Compression, OnProgress};
use cowslip::{Error, ErrorKind, Result};
use cowslip_process::{Holder, Plan};
use cowslip_sys::error::file_error;
use cowslip_sys::{process, regular};
use serde::{Deserialize, Serialize};

use crate::command::Criu;
use crate::import::{ImportOptions, Imported, import, private_folder};
use crate::instant;

const OPERATION: &str = "write a checkpoint";
const SCHEMA: &str = "cowslip.process/1";
pub(crate) const MEMORY: &str = "memory.image";
pub(crate) const REST: &str = "criu";
const ABOUT: &str = "process.json";

/// Options for writing a checkpoint.
#[derive(Clone, Debug)]
pub struct CheckpointOptions {
    /// The compression of memory.
    pub compression: Compression,
    /// The `criu` program.
    pub criu: PathBuf,
    /// Keeps memory that the program keeps out of core files (`MADV_DONTDUMP`), such as keys. Without it that memory is
    /// empty after a restore.
    pub has_secrets: bool,
    /// The program does not run while it is written, and ends with it. If it fails, the program goes on.
    pub stops: bool,
}

/// A checkpoint that was written.
#[derive(Clone, PartialEq, Debug)]
pub struct Checkpointed {
    /// The process in it.
    pub process: About,
    /// Its memory.
    pub memory: Imported,
}

/// A process in a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct About {
    schema: String,
    /// The number that it has again when it is restored.
    pub pid: i32,
    /// Those of its threads.
    pub threads: Vec<i32>,
    /// The name of its program.
    pub name: String,
    /// The time for which it was stopped.
    pub pause_ns: u64,
    /// The version of CRIU that wrote the rest.
    pub criu: String,
}

/// Holds a process, and writes it to a new folder. The program, which runs on unless it is to [stop](CheckpointOptions::stops),
/// has forgotten the holder then.
///
/// # Errors
/// [`ErrorKind::Usage`] if the folder exists; [`ErrorKind::Busy`] if another command is writing it; those of [`Plan::hold`];
/// [`ErrorKind::Unsupported`] with CRIU's own words if it cannot dump the holder; the file system's. Nothing of the folder is
/// left then, unless the disk failed at the very end.
pub fn checkpoint(
    plan: Plan,
    folder: &Path,
    options: &CheckpointOptions,
    progress: OnProgress<'_>,
) -> Result<Checkpointed> {
    let criu = Criu::find(&options.criu)?;
    if fs::symlink_metadata(folder).is_ok() {
        return Err(Error::new(ErrorKind::Usage, OPERATION).of_file(folder).because("it exists"));
    }
    if plan.has_library() {
        return Err(Error::new(ErrorKind::Unsupported, OPERATION)
            .because("it is under cowslip run, whose files CRIU cannot look up")
            .advise("run copies of it with cowslip branch --running"));
    }
    let plan = if options.stops { plan.stay_stopped() } else { plan };
    let mut holder = plan.hold()?;
    let mute = holder.threads().iter().filter(|thread| thread.alternate_stack.is_none()).count();
    if mute > 0 {
        let why = format!(
            "{mute} of its {} threads run on stacks that are not libc's, and could not be asked for their state",
            holder.threads().len()
        );
        return Err(Error::new(ErrorKind::Unsupported, OPERATION).because(why));
    }
    if !options.has_secrets {
        holder.forget_secrets()?;
    }
    let partial = Partial::create(folder)?;
    let process = About {
        schema: SCHEMA.into(),
        pid: holder.program(),
        threads: holder.threads().iter().map(|thread| thread.id).collect(),
        name: holder.threads()[0].name.clone(),
        pause_ns: holder.pause().as_nanos() as u64,
        criu: criu.version.clone(),
    };
    let dump = partial.path.join("dump");
    create(&dump)?;
    write_dump(&mut holder, &criu, &dump)?;
    let stopped = options.stops.then_some(holder);
    let rest = Some(partial.path.join(REST));
    let import_options = ImportOptions { compression: options.compression, rest };
    let memory = import(&dump, &partial.path.join(MEMORY), &import_options, progress)?;
    let about = partial.path.join(ABOUT);
    let text = serde_json::to_string_pretty(&process).expect("numbers and texts");
    fs::write(&about, text + "\n").map_err(|error| file_error(OPERATION, &about, error))?;
    fs::remove_dir_all(&dump).map_err(|error| file_error(OPERATION, &dump, error))?;
    partial.finish(folder)?;
    stopped.map_or(Ok(()), Holder::end_program)?;
    Ok(Checkpointed { process, memory })
}

/// Has CRIU dump the holder, and makes that the program's.
fn write_dump(holder: &mut Holder, criu: &Criu, dump: &Path) -> Result<()> {
    let mut command = criu.action("dump", dump, dump);
    // The holder is in the program's session. Its connections are the program's, which keeps them.
    command.args(["--tree", &holder.pid().to_string(), "--shell-job", "--file-locks"]);
    command.args(["--tcp-close", "--skip-in-flight", "--ext-unix-sk"]);
    holder.close_connections()?;
    holder.lend()?;
    criu.run(&mut command, dump)?;
    instant::apply(dump, holder)
}

fn create(folder: &Path) -> Result<()> {
    private_folder(folder).map_err(|error| file_error(OPERATION, folder, error))
}

/// A folder that is being written, and removed if it is not finished. Its lock keeps other commands from it.
struct Partial {
    path: PathBuf,
    _lock: File,
}

impl Partial {
    fn create(folder: &Path) -> Result<Self> {
        let unnamed = || Error::new(ErrorKind::Usage, OPERATION).of_file(folder).because("no name");
        let name = folder.file_name().ok_or_else(unnamed)?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(".partial");
        // CRIU changes its folder.
        let path = std::path::absolute(folder.with_file_name(hidden))
            .map_err(|error| file_error(OPERATION, folder, error))?;
        let lock = Self::lock(&path)?;
        let emptied = fs::read_dir(&path).and_then(|mut files| {
            // Of a command that was killed.
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

    /// Makes the folder, if it is not there, and locks it.
    fn lock(path: &Path) -> Result<File> {
        let failed = |error| file_error(OPERATION, path, error);
        loop {
            match private_folder(path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(failed(error));
                }
                _ => {}
            }
            let Some(before) = there(path)? else { continue };
            if !before.is_dir() || before.uid() != process::effective_uid() {
                let why = "it is no folder of this user";
                return Err(Error::new(ErrorKind::Denied, OPERATION).of_file(path).because(why));
            }
            let lock = match File::open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened.map_err(failed)?,
            };
            match lock.try_lock() {
                Err(TryLockError::WouldBlock) => {
                    let why = "another command is writing it";
                    return Err(Error::new(ErrorKind::Busy, OPERATION).of_file(path).because(why));
                }
                locked => locked.map_err(|error| failed(error.into()))?,
            }
            // Its writer may have given it its name, or removed it, before the lock.
            let own = lock.metadata().map_err(failed)?;
            if there(path)?.is_some_and(|now| (now.dev(), now.ino()) == (own.dev(), own.ino())) {
                return Ok(lock);
            }
        }
    }

    /// Gives it its name, once all of it is on the disk.
    fn finish(mut self, folder: &Path) -> Result<()> {
        let failed = |error| file_error(OPERATION, folder, error);
        for part in [&self.path, &self.path.join(REST)] {
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

/// What is at a path, without following a link.
fn there(path: &Path) -> Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some).map_err(|error| file_error(OPERATION, path, error)),
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

impl About {
    /// Reads what a checkpoint says of its process.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the folder is no checkpoint, or one of a later version.
    pub fn read(folder: &Path) -> Result<Self> {
        const OPERATION: &str = "read a checkpoint";
        let path = folder.join(ABOUT);
        let bytes = regular::read(&path).map_err(|error| file_error(OPERATION, &path, error))?;
        let corrupt =
            |why: String| Error::new(ErrorKind::Corrupt, OPERATION).of_file(&path).because(why);
        let about: Self =
            serde_json::from_slice(&bytes).map_err(|error| corrupt(error.to_string()))?;
        if about.schema != SCHEMA {
            return Err(corrupt(format!("its schema is {:?}, not {SCHEMA:?}", about.schema)));
        }
        // A restore looks at these numbers, and may end the process.
        if about.threads.first() != Some(&about.pid) || about.threads.iter().any(|id| *id < 2) {
            return Err(corrupt("its numbers are not those of a process".into()));
        }
        Ok(about)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

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
