//! Imports a dump's memory into an image, and writes the rest of the dump beside it.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use cowslip::image::{Compression, OnProgress, Root, SaveOptions, Saved, save};
use cowslip::units::{ByteCount, CHUNK_BYTES};
use cowslip::{Arena, Error, ErrorKind, Result};
use cowslip_sys::error::file_error;
use cowslip_sys::regular;

use crate::dump::{self, PAGE_BYTES, Pagemap, Stretch};
use crate::index::Index;

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
/// [`ErrorKind::Corrupt`] if a file of the dump is damaged or needs an earlier dump, [`ErrorKind::Usage`] if `dump` is
/// no dump, or none of its pages are lazy; the file system's, and those of [`save`].
pub fn import(
    dump: &Path,
    image: &Path,
    options: &ImportOptions,
    progress: OnProgress<'_>,
) -> Result<Imported> {
    let pagemaps = dump::pagemaps(dump)?;
    let mut files = BTreeSet::new();
    for pagemap in pagemaps.values() {
        // A count that is not so must not become memory, nor a file as often as it is named.
        let path = pagemap.pages_path(dump);
        if !files.insert(pagemap.pages_name()) {
            let why = "two pagemaps name it, and it can be of one process";
            return Err(Error::new(ErrorKind::Corrupt, OPERATION).of_file(&path).because(why));
        }
        let has_bytes = regular::open(&path).and_then(|file| file.metadata()).map(|it| it.len());
        let has_bytes = has_bytes.map_err(|error| file_error(OPERATION, &path, error))?;
        if has_bytes < pagemap.pages() * PAGE_BYTES {
            let why = "it is shorter than its pagemap says";
            return Err(Error::new(ErrorKind::Corrupt, OPERATION).of_file(&path).because(why));
        }
    }
    let index = Index::of(pagemaps.iter().map(|(process, it)| (*process, &it.stretches[..])));
    if index.pages() == 0 {
        let why = "it has no pagemap-PID.img with pages that may come later";
        return Err(Error::new(ErrorKind::Usage, OPERATION).of_file(dump).because(why));
    }
    let memory = ByteCount(index.pages() * PAGE_BYTES);
    let arena = Arena::new(ByteCount(memory.0.next_multiple_of(CHUNK_BYTES as u64)))?;
    let mut bytes = arena.slice::<u8>(memory.0 as usize)?;
    let mut room = &mut bytes[..];
    for pagemap in pagemaps.values() {
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
        write_rest(dump, &pagemaps, rest)?;
    }
    Ok(Imported { saved, processes: pagemaps.len(), memory })
}

/// Fills the beginning of `room` with the lazy pages of a process, and returns the rest of it.
fn copy_lazy<'a>(pagemap: &Pagemap, path: &Path, mut room: &'a mut [u8]) -> Result<&'a mut [u8]> {
    let of_file = |error| file_error(OPERATION, path, error);
    let file = regular::open(path).map_err(of_file)?;
    for stretch in pagemap.stretches.iter().filter(|stretch| stretch.is_lazy) {
        let (here, behind) = room.split_at_mut((stretch.pages * PAGE_BYTES) as usize);
        dump::read_pages(&file, stretch, here).map_err(of_file)?;
        room = behind;
    }
    Ok(room)
}

/// The files of the dump, without the pages that the image has.
fn write_rest<'a>(
    dump: &Path,
    pagemaps: impl IntoIterator<Item = (&'a u32, &'a Pagemap)> + Clone,
    rest: &Path,
) -> Result<()> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| file_error("write the rest of a dump", &path, error)
    };
    // The dump holds registers and stacks.
    DirBuilder::new().mode(0o700).create(rest).map_err(failed(rest))?;
    let mut written = Vec::new();
    for (process, pagemap) in pagemaps {
        let name = format!("pagemap-{process}.img");
        let path = rest.join(&name);
        fs::write(&path, pagemap.without_lazy_pages()).map_err(failed(&path))?;
        let path = pagemap.pages_path(rest);
        copy_others(&pagemap.stretches, &pagemap.pages_path(dump), &path).map_err(failed(&path))?;
        written.extend([name, pagemap.pages_name()]);
    }
    for file in fs::read_dir(dump).map_err(failed(dump))? {
        let file = file.map_err(failed(dump))?;
        let is_written = written.iter().any(|name| file.file_name() == **name);
        if file.file_type().is_ok_and(|kind| kind.is_file()) && !is_written {
            let path = file.path();
            fs::copy(&path, rest.join(file.file_name())).map_err(failed(&path))?;
        }
    }
    Ok(())
}

fn copy_others(stretches: &[Stretch], from: &Path, to: &Path) -> io::Result<()> {
    let (from, mut to) = (regular::open(from)?, File::create_new(to)?);
    let mut page = [0; PAGE_BYTES as usize];
    for stretch in stretches.iter().filter(|stretch| !stretch.is_lazy) {
        for at in stretch.at..stretch.at + stretch.pages {
            dump::read_pages(&from, &Stretch { at, pages: 1, ..*stretch }, &mut page)?;
            io::Write::write_all(&mut to, &page)?;
        }
    }
    Ok(())
}
