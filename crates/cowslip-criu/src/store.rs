//! The files of a checkpoint in an object store, where each is an object.
//!
//! ```text
//!  in plain    memory.image · state: process.json, and criu/
//!  encrypted   memory.image.age · state.age · process.json, of which it is
//! ```
//! They are those of its folder, but for the many small ones of CRIU's, which are one. A memory in plain is read from the store
//! while the process runs.

use std::fs;
use std::path::{Path, PathBuf};

use cowslip::image::Image;
use cowslip::{Error, ErrorKind, Result};
use cowslip_sys::error::file_error;

use crate::about::{self, ABOUT, About, ENCRYPTED_MEMORY, ENCRYPTED_STATE, MEMORY, REST};
use crate::archive::Archive;
use crate::chain::Chain;
use crate::restore::Kept;

const STATE: &str = "state";

/// The names of a checkpoint's files in a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredFiles {
    /// The memory.
    pub memory: &'static str,
    /// All others.
    pub others: &'static [&'static str],
    /// The memory is an image that can be read where it is.
    pub is_image: bool,
}

impl StoredFiles {
    /// Those of a checkpoint in plain.
    pub const PLAIN: Self = Self { memory: MEMORY, others: &[STATE], is_image: true };
    /// Those of an encrypted one.
    pub const ENCRYPTED: Self =
        Self { memory: ENCRYPTED_MEMORY, others: &[ENCRYPTED_STATE, ABOUT], is_image: false };

    /// Makes the files in the folder of a checkpoint, which must not have bases.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the folder is no checkpoint; the file system's.
    pub fn make(folder: &Path) -> Result<Self> {
        let Some(about) = about::read(folder)? else { return Ok(Self::ENCRYPTED) };
        let rest = folder.join(REST);
        Archive::pack(about.to_text(), &rest)?.write(&folder.join(STATE))?;
        fs::remove_dir_all(&rest)
            .map_err(|error| file_error("write a checkpoint", &rest, error))?;
        Ok(Self::PLAIN)
    }

    /// The paths of all, the memory last.
    pub fn paths(&self, folder: &Path) -> Vec<(&'static str, PathBuf)> {
        let names = self.others.iter().copied().chain([self.memory]);
        names.map(|name| (name, folder.join(name))).collect()
    }
}

impl Kept {
    /// Opens a checkpoint in plain from its memory, and a folder with its other files.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if these are damaged, or of no checkpoint; the file system's.
    pub fn open_stored(folder: &Path, memory: Image) -> Result<Self> {
        let path = folder.join(STATE);
        let archive = Archive::read(&path)?;
        let about = About::from_text(&archive.process).map_err(|why| {
            Error::new(ErrorKind::Corrupt, "read a checkpoint").of_file(&path).because(why)
        })?;
        Ok(Self::of_archive(path, about, archive, Chain::alone(memory)?))
    }
}
