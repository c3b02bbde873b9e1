//! Imports a dump's memory into an image, and writes the rest of the dump beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};

use cowslip::image::{Compression, OnProgress, Root, SaveOptions, Saved, save};
use cowslip::units::{ByteCount, CHUNK_BYTES};
use cowslip::{Arena, ArenaSlice, Error, ErrorKind, Result};
use cowslip_sys::error::file_error;
use cowslip_sys::regular;

use crate::chain::{Chain, Comparison};
use crate::dump::{self, Pagemap};
use crate::index::Index;
use crate::inventory;
use crate::pages::{PAGE_BYTES, Pages};

/// The image's root that locates the pages.
pub(crate) const ROOT: &str = "criu.pages";
const OPERATION: &str = "import a dump";
/// A base is compared in blocks of so many pages that there are at most this many: the index has a word for each run of
/// them, and must fit into an image's description.
const MOST_BLOCKS: u64 = 1 << 19;

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
    /// Their memory.
    pub memory: ByteCount,
    /// The part of it that is in the image. A base has the rest.
    pub own_memory: ByteCount,
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
    let content = Content::read(dump, None)?;
    let imported = content.save(image, options.compression, BTreeMap::new(), progress)?;
    if let Some(rest) = &options.rest {
        content.write_rest(dump, rest)?;
    }
    Ok(imported)
}

/// The content of a dump: its memory, apart from pages that a base has, and where the rest is.
pub(crate) struct Content {
    pagemaps: Vec<Pagemap>,
    inventory: Option<Vec<u8>>,
    processes: usize,
    pub(crate) index: Index,
    bytes: ArenaSlice<u8>,
    arena: Arena,
}

impl Content {
    /// Reads a dump, and compares it with a base.
    pub(crate) fn read(dump: &Path, base: Option<&Chain>) -> Result<Self> {
        let inventory = inventory::without_compression(dump)?;
        let pagemaps = dump::pagemaps(dump)?;
        let mut files = BTreeSet::new();
        for pagemap in &pagemaps {
            // A count that is not so must not become memory, nor a file as often as it is named.
            let path = pagemap.pages_path(dump);
            let corrupt =
                |why| Error::new(ErrorKind::Corrupt, OPERATION).of_file(&path).because(why);
            if !files.insert(pagemap.pages_name()) {
                return Err(corrupt("two pagemaps name it, and it can be of one"));
            }
            let there = regular::open(&path).and_then(|file| file.metadata());
            if there.map_err(|error| file_error(OPERATION, &path, error))?.len()
                < pagemap.file_bytes()
            {
                return Err(corrupt("it is shorter than its pagemap says"));
            }
        }
        let processes: BTreeMap<_, _> =
            pagemaps.iter().filter_map(|pagemap| Some((pagemap.process?, pagemap))).collect();
        let pages: u64 =
            processes.values().flat_map(|pagemap| pagemap.lazy()).map(|part| part.pages).sum();
        if pages == 0 {
            let why = "it has no pagemap-PID.img with pages that may come later";
            return Err(Error::new(ErrorKind::Usage, OPERATION).of_file(dump).because(why));
        }
        let memory = ByteCount(pages * PAGE_BYTES);
        let arena = Arena::new(ByteCount(memory.0.next_multiple_of(CHUNK_BYTES as u64)))?;
        let mut bytes = arena.slice::<u8>(memory.0 as usize)?;
        let mut gathering = Gathering {
            room: &mut bytes,
            index: Index::default(),
            base: base.map(Comparison::new),
            block_bytes: pages.div_ceil(MOST_BLOCKS) as usize * PAGE_BYTES as usize,
        };
        for (process, pagemap) in &processes {
            gathering.lazy(*process, pagemap, &pagemap.pages_path(dump))?;
        }
        let (index, processes) = (gathering.index, processes.len());
        Ok(Self { pagemaps, inventory, processes, index, bytes, arena })
    }

    /// Saves the memory to an image at `path`. `words` are of the image's own, besides the index.
    pub(crate) fn save(
        &self,
        path: &Path,
        compression: Compression,
        words: BTreeMap<String, String>,
        progress: OnProgress<'_>,
    ) -> Result<Imported> {
        let own_memory = ByteCount(self.index.own_pages() * PAGE_BYTES);
        let place = Root {
            arena: 0,
            offset_bytes: (self.bytes.range().start - self.arena.range().start) as u64,
            length_bytes: own_memory.0.max(PAGE_BYTES),
        };
        let mut user = self.index.to_words();
        user.extend(words);
        let roots = [(ROOT.to_owned(), place)].into();
        let options = SaveOptions { compression, roots, user, ..SaveOptions::default() };
        let saved = save(&[&self.arena.freeze()?], path, &options, progress)?;
        let memory = ByteCount(self.index.pages() * PAGE_BYTES);
        Ok(Imported { saved, processes: self.processes, memory, own_memory })
    }

    /// Writes the dump's other files to a new folder, and those without the pages that the image has, not compressed.
    pub(crate) fn write_rest(&self, dump: &Path, rest: &Path) -> Result<()> {
        write_rest(dump, &self.pagemaps, self.inventory.as_deref(), rest)
    }
}

/// The lazy pages of a dump on their way to an image.
struct Gathering<'a> {
    /// Zeroes.
    room: &'a mut [u8],
    index: Index,
    base: Option<Comparison<'a>>,
    block_bytes: usize,
}

impl Gathering<'_> {
    /// Adds those of a process.
    fn lazy(&mut self, process: u32, pagemap: &Pagemap, path: &Path) -> Result<()> {
        let (mut file, mut content) = (Pages::open(path)?, Vec::new());
        for stretch in pagemap.lazy() {
            let mut done = 0;
            for piece in stretch.pieces() {
                let start = piece.start / PAGE_BYTES;
                let page = stretch.page + start;
                // Between pieces are zeroes.
                self.index.push(process, stretch.page + done, start - done, None);
                done = start + piece.bytes as u64 / PAGE_BYTES;
                if self.base.is_none() {
                    file.read(&piece, self.add(process, page, piece.bytes))?;
                    continue;
                }
                content.resize(piece.bytes, 0);
                file.read(&piece, &mut content)?;
                self.compare(process, page, &content)?;
            }
            self.index.push(process, stretch.page + done, stretch.pages - done, None);
        }
        Ok(())
    }

    /// Adds pages, and returns the room for them.
    fn add(&mut self, process: u32, page: u64, bytes: usize) -> &mut [u8] {
        let at = (self.index.own_pages() * PAGE_BYTES) as usize;
        self.index.push(process, page, bytes as u64 / PAGE_BYTES, None);
        &mut self.room[at..at + bytes]
    }

    /// Adds pages, without those that the base has.
    fn compare(&mut self, process: u32, mut page: u64, content: &[u8]) -> Result<()> {
        for block in content.chunks(self.block_bytes) {
            let pages = block.len() as u64 / PAGE_BYTES;
            let base = match &mut self.base {
                Some(base) => base.find(process, page, block)?,
                None => None,
            };
            match base {
                Some(place) => self.index.push(process, page, pages, Some(place)),
                None => self.add(process, page, block.len()).copy_from_slice(block),
            }
            page += pages;
        }
        Ok(())
    }
}

/// The files of the dump, without the pages that the image has, and not compressed.
fn write_rest(
    dump: &Path,
    pagemaps: &[Pagemap],
    inventory: Option<&[u8]>,
    rest: &Path,
) -> Result<()> {
    private_folder(rest).map_err(|error| not_written(rest, error))?;
    let mut written = BTreeSet::new();
    let mut write = |name: String, bytes: &[u8]| {
        let path = rest.join(&name);
        written.insert(name);
        fs::write(&path, bytes).map_err(|error| not_written(&path, error))
    };
    for pagemap in pagemaps {
        write(pagemap.name.clone(), &pagemap.without_lazy_pages())?;
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
