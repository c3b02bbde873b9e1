//! A running process, kept in a folder: its memory in an image, the rest as CRIU writes it.
//!
//! ```text
//!  holder ──criu dump──▶ dump ──[instant]──▶ dump of the program ──[import]──▶ FOLDER/memory.image · FOLDER/criu/
//!                                                     bases ──compared──▲
//! ```
//! The folder appears under its name when it is whole. For an encrypted one the dump, and all else that is not
//! encrypted, is in memory.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use cowslip::image::{Compression, OnProgress};
use cowslip::{Error, ErrorKind, Result};
use cowslip_process::{Holder, Plan};
use cowslip_sys::error::file_error;

use crate::about::{self, ABOUT, About, ENCRYPTED_MEMORY, ENCRYPTED_STATE, MEMORY, REST};
use crate::archive::Archive;
use crate::chain::{self, Chain};
use crate::command::Criu;
use crate::encrypted;
use crate::import::{Content, Imported, private_folder};
use crate::instant;
use crate::keys::Keys;
use crate::partial::Partial;
use crate::private::PrivateFolder;

pub(crate) const OPERATION: &str = "write a checkpoint";

/// Options for writing a checkpoint.
#[derive(Clone, Debug)]
pub struct CheckpointOptions {
    /// Options for its folder.
    pub folder: FolderOptions,
    /// The `criu` program.
    pub criu: PathBuf,
    /// Keeps memory that the program keeps out of core files (`MADV_DONTDUMP`), such as keys. Without it that memory is
    /// empty after a restore.
    pub has_secrets: bool,
    /// The program does not run while it is written, and ends with it. If it fails, the program goes on.
    pub stops: bool,
}

/// Options for the folder of a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct FolderOptions {
    /// The compression of memory.
    pub compression: Compression,
    /// An earlier checkpoint: equal memory is not written again. Further ones are places where its own bases may be.
    pub bases: Vec<PathBuf>,
    /// Recipients to encrypt it to, if there are any, and identities that open the bases.
    pub keys: Keys,
}

/// A checkpoint that was written.
#[derive(Clone, PartialEq, Debug)]
pub struct Checkpointed {
    /// The process in it.
    pub process: About,
    /// Its memory.
    pub memory: Imported,
}

/// Holds a process, and writes it to a new folder. The program, which runs on unless it is to [stop](CheckpointOptions::stops),
/// has forgotten the holder then.
///
/// # Errors
/// Those of [`NewCheckpoint::create`] and [`Plan::hold`]; [`ErrorKind::Unsupported`] with CRIU's own words if it cannot
/// dump the holder; the file system's. Nothing of the folder is left then, unless the disk failed at the very end.
pub fn checkpoint(
    plan: Plan,
    folder: &Path,
    options: &CheckpointOptions,
    progress: OnProgress<'_>,
) -> Result<Checkpointed> {
    checkpoint_and(plan, folder, options, progress, |_| Ok(()))
}

/// Like [`checkpoint`], and takes the folder elsewhere before a program that is to stop ends.
///
/// # Errors
/// Those of [`checkpoint`], and of `take`: the program goes on then.
pub fn checkpoint_and(
    plan: Plan,
    folder: &Path,
    options: &CheckpointOptions,
    progress: OnProgress<'_>,
    take: impl FnOnce(OnProgress<'_>) -> Result<()>,
) -> Result<Checkpointed> {
    let criu = Criu::find(&options.criu)?;
    if plan.hides_files() {
        return Err(Error::new(ErrorKind::Unsupported, OPERATION)
            .because("it is under cowslip run, and CRIU cannot look up its files")
            .advise("start it with cowslip run --backing base"));
    }
    let new = NewCheckpoint::create(folder, &options.folder)?;
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
    holder.renew_random_numbers()?;
    let process = About {
        pid: holder.program(),
        threads: holder.threads().iter().map(|thread| thread.id).collect(),
        name: holder.threads()[0].name.clone(),
        pause_ns: holder.pause().as_nanos() as u64,
        criu: criu.version.clone(),
    };
    write_dump(&mut holder, &criu, new.dump())?;
    // Otherwise its memory is not needed any more.
    let stopped = options.stops.then_some(holder);
    let memory = new.finish(&process, &mut *progress)?;
    take(progress)?;
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

/// A checkpoint that is being written, from a dump of CRIU's.
pub struct NewCheckpoint<'a> {
    folder: &'a Path,
    options: &'a FolderOptions,
    /// The chain to compare with, and the words that name its images.
    base: Option<(Chain, Vec<String>)>,
    partial: Partial,
    /// The place of all that is not encrypted, for an encrypted one.
    private: Option<PrivateFolder>,
    dump: PathBuf,
}

impl<'a> NewCheckpoint<'a> {
    /// Opens the bases, and makes a folder for the dump.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the folder exists, or may not have these bases; [`ErrorKind::Busy`] if another command is
    /// writing it; [`ErrorKind::Corrupt`] if a base is damaged, or is missing one of its own; [`ErrorKind::Denied`] if no
    /// key opens it; the file system's.
    pub fn create(folder: &'a Path, options: &'a FolderOptions) -> Result<Self> {
        let usage = |why| Error::new(ErrorKind::Usage, OPERATION).of_file(folder).because(why);
        if fs::symlink_metadata(folder).is_ok() {
            return Err(usage("it exists"));
        }
        let is_encrypted = options.keys.encrypt();
        let base = options.bases.split_first().map(|(base, places)| {
            if about::read(base)?.is_none() && !is_encrypted {
                let error = usage("its base is encrypted, and it would not be");
                return Err(error.advise("name a recipient or a key file"));
            }
            let chain = Chain::open(base, &options.keys, places)?;
            chain.check_as_base()?;
            let names = chain.names(folder)?;
            Ok((chain, names))
        });
        let base = base.transpose()?;
        let partial = Partial::create(folder)?;
        let private = is_encrypted.then(PrivateFolder::in_memory).transpose()?;
        let dump =
            private.as_ref().map_or(partial.path.as_path(), PrivateFolder::path).join("dump");
        private_folder(&dump).map_err(|error| file_error(OPERATION, &dump, error))?;
        Ok(Self { folder, options, base, partial, private, dump })
    }

    /// The folder for the dump.
    pub fn dump(&self) -> &Path {
        &self.dump
    }

    /// Writes the rest, and gives the checkpoint its name.
    ///
    /// # Errors
    /// Those of [`import`](crate::import()); the file system's.
    pub fn finish(self, process: &About, progress: OnProgress<'_>) -> Result<Imported> {
        let Self { folder, options, base, partial, private, dump } = self;
        let failed = |path: &Path, error| file_error(OPERATION, path, error);
        let (base, names) = base.unzip();
        let mut content = Content::read(&dump, base.as_ref())?;
        let words = chain::number_bases(&mut content.index, names.unwrap_or_default());
        let place = private.as_ref().map_or(partial.path.as_path(), PrivateFolder::path);
        let (rest, image) = (place.join(REST), place.join(MEMORY));
        content.write_rest(&dump, &rest)?;
        // The image would be beside it in memory.
        fs::remove_dir_all(&dump).map_err(|error| failed(&dump, error))?;
        let mut memory = content.save(&image, options.compression, words, progress)?;
        let mut text = process.to_text();
        if private.is_some() {
            let to = |name| partial.path.join(name);
            let mut from = File::open(&image).map_err(|error| failed(&image, error))?;
            memory.saved.file_bytes =
                encrypted::encrypt(&options.keys, &mut from, &to(ENCRYPTED_MEMORY))?;
            Archive::pack(text, &rest)?.encrypt(&options.keys, &to(ENCRYPTED_STATE))?;
            text = about::text_of_encrypted();
        }
        let about = partial.path.join(ABOUT);
        fs::write(&about, text).map_err(|error| failed(&about, error))?;
        partial.finish(folder)?;
        Ok(memory)
    }
}
