//! Imports a dump's memory into an image, and writes the rest of the dump beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};

use cowslip::image::{Compression, OnProgress, Root, SaveOptions, Saved, save};
use cowslip::units::{ByteCount, CHUNK_BYTES};
use cowslip::{Arena, Error, ErrorKind, Result};
use cowslip_sys::error::file_error;
use cowslip_sys::regular;

use crate::dump::{self, Pagemap};
use crate::index::Index;
use crate::inventory;
use crate::pages::{PAGE_BYTES, Pages};

/// The image's root that locates the pages.
pub(crate) const ROOT: &str = "criu.pages";
const OPERATION: &str = "import a dump";

/// Options for turning a dump into an image.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// The compression of chunks of 2 MiB.
    pub compression: Compression,
    /// A new folder for all of the dump that the image does not have: a restore on another machine needs it beside a
    /// page server.
    pub rest: Option<PathBuf>,
}

/// The result of an import.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Imported {
    /// The image.
    pub saved: Saved,
    /// Processes in the dump.
    pub processes: usize,
    /// Their memory in the image.
    pub memory: ByteCount,
}

/// Writes the memory that `criu lazy-pages` may bring to an image at `image`. One copy of it is in memory meanwhile.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if a file of the dump is damaged, needs an earlier dump, or says what CRIU 4.3 cannot say;
/// [`ErrorKind::Usage`] if `dump` is no dump, or none of its pages are lazy; the file system's, and those of [`save`].
pub fn import(
    dump: &Path,
    image: &Path,
    options: &ImportOptions,
    progress: OnProgress<'_>,
) -> Result<Imported> {
    let inventory = inventory::without_compression(dump)?;
    let pagemaps = dump::pagemaps(dump)?;
    let mut files = BTreeSet::new();
    for pagemap in &pagemaps {
        // A count that is not so must not become memory, nor a file as often as it is named.
        let path = pagemap.pages_path(dump);
        if !files.insert(pagemap.pages_name()) {
            let why = "two pagemaps name it, and it can be of one";
            return Err(Error::new(ErrorKind::Corrupt, OPERATION).of_file(&path).because(why));
        }
        let has_bytes =
            regular::open(&path).and_then(|file| file.metadata()).map(|metadata| metadata.len());
        let has_bytes = has_bytes.map_err(|error| file_error(OPERATION, &path, error))?;
        if has_bytes < pagemap.file_bytes() {
            let why = "it is shorter than its pagemap says";
            return Err(Error::new(ErrorKind::Corrupt, OPERATION).of_file(&path).because(why));
        }
    }
    let processes: BTreeMap<_, _> =
        pagemaps.iter().filter_map(|pagemap| Some((pagemap.process?, pagemap))).collect();
    let index = Index::from_processes(
        processes.iter().map(|(process, pagemap)| (*process, &pagemap.stretches[..])),
    );
    if index.pages() == 0 {
        let why = "it has no pagemap-PID.img with pages that may come later";
        return Err(Error::new(ErrorKind::Usage, OPERATION).of_file(dump).because(why));
    }
    let memory = ByteCount(index.pages() * PAGE_BYTES);
    let arena = Arena::new(ByteCount(memory.0.next_multiple_of(CHUNK_BYTES as u64)))?;
    let mut bytes = arena.slice::<u8>(memory.0 as usize)?;
    let mut room = &mut bytes[..];
    for pagemap in processes.values() {
        room = copy_lazy(pagemap, &pagemap.pages_path(dump), room)?;
    }
    let place = Root {
        arena: 0,
        offset_bytes: (bytes.range().start - arena.range().start) as u64,
        length_bytes: memory.0,
    };
    let save_options = SaveOptions {
        compression: options.compression,
        roots: [(ROOT.to_owned(), place)].into(),
        user: index.to_words(),
        ..SaveOptions::default()
    };
    let saved = save(&[&arena.freeze()?], image, &save_options, progress)?;
    if let Some(rest) = &options.rest {
        write_rest(dump, &pagemaps, inventory, rest)?;
    }
    Ok(Imported { saved, processes: processes.len(), memory })
}

/// Fills the beginning of `room`, which is zeroes, with the lazy pages of a process, and returns the rest of it.
fn copy_lazy<'a>(pagemap: &Pagemap, path: &Path, mut room: &'a mut [u8]) -> Result<&'a mut [u8]> {
    let mut file = Pages::open(path)?;
    for stretch in pagemap.stretches.iter().filter(|stretch| stretch.is_lazy) {
        let (here, behind) = room.split_at_mut((stretch.pages * PAGE_BYTES) as usize);
        for piece in stretch.pieces() {
            file.read(&piece, &mut here[piece.start as usize..][..piece.bytes])?;
        }
        room = behind;
    }
    Ok(room)
}

/// The files of the dump, without the pages that the image has, and not compressed.
fn write_rest(
    dump: &Path,
    pagemaps: &[Pagemap],
    inventory: Option<Vec<u8>>,
    rest: &Path,
) -> Result<()> {
    private_folder(rest).map_err(|error| not_written(rest, error))?;
    let mut written = BTreeSet::new();
    let mut write = |name: String, bytes: Vec<u8>| {
        let path = rest.join(&name);
        written.insert(name);
        fs::write(&path, bytes).map_err(|error| not_written(&path, error))
    };
    for pagemap in pagemaps {
        write(pagemap.name.clone(), pagemap.without_lazy_pages())?;
    }
    if let Some(inventory) = inventory {
        write(inventory::NAME.to_owned(), inventory)?;
    }
    for pagemap in pagemaps {
        copy_others(pagemap, dump, rest)?;
        written.insert(pagemap.pages_name());
    }
    for file in fs::read_dir(dump).map_err(|error| not_written(dump, error))? {
        let file = file.map_err(|error| not_written(dump, error))?;
        let is_written = written.iter().any(|name| file.file_name() == **name);
        if file.file_type().is_ok_and(|kind| kind.is_file()) && !is_written {
            let path = file.path();
            let copied = fs::copy(&path, rest.join(file.file_name()));
            copied.map_err(|error| not_written(&path, error))?;
        }
    }
    Ok(())
}

/// Writes the pages that `criu restore` reads itself.
fn copy_others(pagemap: &Pagemap, dump: &Path, rest: &Path) -> Result<()> {
    let path = pagemap.pages_path(rest);
    let failed = |error| not_written(&path, error);
    let mut from = Pages::open(&pagemap.pages_path(dump))?;
    let to = File::create_new(&path).map_err(failed)?;
    let (mut at, mut content) = (0, Vec::new());
    for stretch in pagemap.stretches.iter().filter(|stretch| !stretch.is_lazy) {
        for piece in stretch.pieces() {
            content.resize(piece.bytes, 0);
            from.read(&piece, &mut content)?;
            to.write_all_at(&content, at + piece.start).map_err(failed)?;
        }
        at += stretch.pages * PAGE_BYTES;
    }
    to.set_len(at).map_err(failed)
}

/// Makes a folder for registers, stacks and sockets, which are the owner's alone.
pub(crate) fn private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

fn not_written(path: &Path, error: io::Error) -> Error {
    file_error("write the rest of a dump", path, error)
}
