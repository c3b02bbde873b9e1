//! Reads images.

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use cowslip_sys::error::{Error, ErrorKind, Result, file_error};
use cowslip_sys::regular;
use cowslip_sys::units::CHUNK_BYTES;

use super::OnProgress;
use super::chunk::{self, OF_ZEROES, Scratch};
use super::description::Description;
use super::format::{
    Checksum, Damage, ENTRY_BYTES, Entry, HEADER_BYTES, Header, Identity, decode_index,
};
use super::storage::{ImageSource, OnArrival, Storage, Urgency};
use crate::progress::advance;

const OPEN: &str = "open an image";
const READ: &str = "read an image";
const VERIFY: &str = "verify an image";
/// Longer chains are not opened: each link is a file.
const LONGEST_CHAIN: usize = 1000;

/// An image with verified header, description and index, with the chain of its parents. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Image {
    path: Arc<Path>,
    pub(super) storage: Storage,
    pub(super) header: Header,
    description: Arc<Description>,
    pub(super) entries: Arc<[Entry]>,
    /// The parent, its parent, …
    ancestors: Arc<[Image]>,
}

/// A summary of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ImageSummary {
    /// The identity of the image.
    pub identity: Identity,
    /// The image that it needs, if it is not complete.
    pub parent: Option<Identity>,
    /// The time of the save, nanoseconds since 1970.
    pub created_unix_ns: u64,
    /// Length of the file.
    pub file_bytes: u64,
    /// Chunks that it holds.
    pub chunks: u64,
    /// Memory that the arenas had in use.
    pub used_bytes: u64,
}

impl Image {
    /// Opens an image and the chain of its parents, and checks everything except their chunks.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if a file of the chain is damaged, missing or a wrong one; an error of the file system.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_alone(path, Self::open_file(path)?)?.with_ancestors()
    }

    /// Like [`Self::open`], for an image that is not a file. The source names its parents.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if an image of the chain is damaged, missing or a wrong one; an error of the source.
    pub fn open_source(source: Arc<dyn ImageSource>) -> Result<Self> {
        let storage = Storage::Source(Arc::clone(&source));
        Self::open_alone(source.path(), storage)?.with_ancestors()
    }

    fn open_file(path: &Path) -> Result<Storage> {
        let file = regular::open(path).map_err(|error| file_error(OPEN, path, error))?;
        Ok(Storage::File(file.into()))
    }

    fn with_ancestors(mut self) -> Result<Self> {
        let mut ancestors: Vec<Self> = Vec::new();
        let at =
            |why: String| Error::new(ErrorKind::Corrupt, OPEN).of_file(&self.path).because(why);
        let lengths = |image: &Self| {
            image.description.arenas.iter().map(|arena| arena.length_bytes).collect::<Vec<_>>()
        };
        loop {
            let last = ancestors.last().unwrap_or(&self);
            let Some(identity) = last.header.parent() else { break };
            if ancestors.len() == LONGEST_CHAIN {
                return Err(at(format!("more than {LONGEST_CHAIN} parents")));
            }
            // Each time around would be as much memory again.
            if ancestors.iter().chain([&self]).any(|image| image.header.identity == identity) {
                return Err(at(format!("its parents are a circle: {identity} is its own")));
            }
            let parent = last.open_parent(identity).map_err(|error| match error.kind() {
                ErrorKind::Corrupt => error,
                _ => at(format!("its parent {identity} cannot be opened: {error}")),
            })?;
            if parent.header.identity != identity {
                let found = parent.header.identity;
                return Err(at(format!(
                    "its parent is {identity}, and {} is {found}",
                    parent.path.display()
                )));
            }
            if lengths(&parent) != lengths(&self) {
                return Err(at("its parent has other arenas".into()));
            }
            ancestors.push(parent);
        }
        self.ancestors = ancestors.into();
        Ok(self)
    }

    fn open_parent(&self, identity: Identity) -> Result<Self> {
        let name = self.description.parent_file.as_deref();
        if let Some(source) = self.storage.source() {
            let parent = source.open_parent(name, identity)?;
            let storage = Storage::Source(Arc::clone(&parent));
            return Self::open_alone(parent.path(), storage);
        }
        let Some(name) = name else {
            return Err(Error::new(ErrorKind::Corrupt, OPEN)
                .of_file(&self.path)
                .because(format!("it needs its parent {identity} and does not name its file")));
        };
        let path = self.path.with_file_name(name);
        Self::open_alone(&path, Self::open_file(&path)?)
    }

    /// Opens the image without its parents.
    fn open_alone(path: &Path, storage: Storage) -> Result<Self> {
        let mut rereads = storage.rereads();
        loop {
            match Self::read_head(path, storage.clone()) {
                Err(error) if error.kind() == ErrorKind::Corrupt && rereads > 0 => rereads -= 1,
                opened => return opened,
            }
        }
    }

    fn read_head(path: &Path, storage: Storage) -> Result<Self> {
        let corrupt = |damage| damaged(OPEN, path, &damage);
        let length = storage.len_bytes().map_err(|error| file_error(OPEN, path, error))?;
        let section = |range: Range<u64>| {
            let mut section = vec![0; (range.end - range.start) as usize];
            storage.read_exact_at(OPEN, path, &mut section, range.start).map(|()| section)
        };
        let head = section(0..length.min(HEADER_BYTES as u64))?;
        let header = Header::decode(&head, length).map_err(corrupt)?;
        let text_at = header.description.offset_bytes;
        let text_end = text_at + header.description.length;
        let index_at = header.index.offset_bytes;
        let index_end = index_at + header.index.length * ENTRY_BYTES as u64;
        // Sections written one after the other are read at once.
        let (text, index) = if text_end == index_at {
            let mut text = section(text_at..index_end)?;
            let index = text.split_off((text_end - text_at) as usize);
            (text, index)
        } else {
            (section(text_at..text_end)?, section(index_at..index_end)?)
        };
        let at_text = |what| Damage { offset_bytes: text_at, what };
        if Checksum::from_bytes(&text) != header.description.checksum {
            return Err(corrupt(at_text("the description's checksum is wrong")));
        }
        let description: Description = serde_json::from_slice(&text)
            .map_err(|_| corrupt(at_text("the description is not what it should be")))?;
        if let Some(why) = description.fault() {
            return Err(corrupt(at_text(why)));
        }
        let chunks = description.arenas.iter();
        let chunks: Vec<_> =
            chunks.map(|arena| arena.length_bytes.div_ceil(CHUNK_BYTES as u64)).collect();
        let entries = decode_index(&index, &header, &chunks).map_err(corrupt)?;
        Ok(Self {
            path: path.into(),
            storage,
            header,
            description: description.into(),
            entries: entries.into(),
            ancestors: Arc::new([]),
        })
    }

    /// The identity of the image.
    pub fn identity(&self) -> Identity {
        self.header.identity
    }

    /// The description that it contains.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// A summary of it.
    pub fn summary(&self) -> ImageSummary {
        let pieces = self.description.arenas.iter().flat_map(|arena| &arena.pieces);
        ImageSummary {
            identity: self.header.identity,
            parent: self.header.parent(),
            created_unix_ns: self.header.created_unix_ns,
            file_bytes: self.header.file_bytes,
            chunks: self.entries.len() as u64,
            used_bytes: pieces.map(|piece| piece.length_bytes).sum(),
        }
    }

    /// The images that it needs: its parent, that one's parent, and so on.
    pub fn ancestors(&self) -> &[Self] {
        &self.ancestors
    }

    /// Its file, or the name of its source.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if `path` names its file.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        let real = path.canonicalize().ok();
        real.is_some() && self.path.canonicalize().ok() == real
    }

    fn chain(&self) -> impl DoubleEndedIterator<Item = &Self> {
        std::iter::once(self).chain(self.ancestors.iter())
    }

    /// Checks every chunk of this image, but not of its ancestors.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for the first damaged chunk, [`ErrorKind::Busy`] if `progress` broke it off.
    pub fn verify(&self, progress: OnProgress<'_>) -> Result<()> {
        let mut content = vec![0; CHUNK_BYTES];
        let mut scratch = Scratch::default();
        let mut ahead = ReadAhead::new(&self.storage, self.entries.iter().map(Entry::range));
        for (i, entry) in self.entries.iter().enumerate() {
            ahead.before(i);
            // A forged index may name any number of chunks of zeroes.
            if !entry.is_zeroes() {
                self.read_entry(entry, &mut scratch, &mut content)?;
            }
            advance(progress, VERIFY, i + 1, self.entries.len())?;
        }
        Ok(())
    }

    /// Checks that its file, and those of the images that it needs, have not become shorter. Memory mapped from a
    /// truncated file is gone: an access raises `SIGBUS`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if one was truncated; an error of the file system.
    pub fn check_lengths(&self) -> Result<()> {
        for image in self.chain() {
            let of_file = |error| file_error(READ, &image.path, error);
            let length = image.storage.len_bytes().map_err(of_file)?;
            if length < image.header.file_bytes {
                return Err(of_file(std::io::ErrorKind::UnexpectedEof.into()));
            }
        }
        Ok(())
    }

    /// Reads the content of a chunk, 2 MiB, checked. After an error `content` holds arbitrary
    /// bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is damaged; an error of the file system.
    ///
    /// # Panics
    /// If `content` is not 2 MiB long.
    pub fn read_chunk(&self, arena: u32, chunk: u32, content: &mut [u8]) -> Result<()> {
        self.read_chunk_with(&mut Scratch::default(), arena, chunk, content)
    }

    /// Like [`Self::read_chunk`], for a reader of many.
    pub(super) fn read_chunk_with(
        &self,
        scratch: &mut Scratch,
        arena: u32,
        chunk: u32,
        content: &mut [u8],
    ) -> Result<()> {
        if let Some((image, entry)) = self.find(arena, chunk) {
            return image.read_entry(entry, scratch, content);
        }
        content.fill(0);
        Ok(())
    }

    /// Begins to fetch the stored bytes of chunks: those of one image together.
    pub(super) fn prefetch(&self, arena: u32, chunks: &[u32], urgency: Urgency) {
        let mut found: Vec<(&Storage, Vec<Range<u64>>)> = Vec::new();
        for (image, entry) in chunks.iter().filter_map(|&chunk| self.find(arena, chunk)) {
            match found.iter_mut().find(|(storage, _)| std::ptr::eq(*storage, &image.storage)) {
                Some((_, ranges)) => ranges.push(entry.range()),
                None => found.push((&image.storage, vec![entry.range()])),
            }
        }
        found.iter().for_each(|(storage, ranges)| storage.prefetch(ranges, urgency));
    }

    /// Returns true if any image of the chain is not a file: then prefetched bytes arrive later, and subscribers are
    /// notified.
    pub(super) fn has_arrivals(&self) -> bool {
        self.chain().any(|image| image.storage.source().is_some())
    }

    /// Returns true if a chunk's prefetched bytes have arrived.
    pub(super) fn is_ready(&self, arena: u32, chunk: u32) -> bool {
        self.find(arena, chunk).is_none_or(|(image, entry)| {
            image.storage.source().is_none_or(|source| source.is_ready(&entry.range()))
        })
    }

    /// Calls `listener` whenever bytes have arrived.
    pub(super) fn subscribe(&self, listener: &Arc<OnArrival>) {
        for source in self.chain().filter_map(|image| image.storage.source()) {
            source.subscribe(Arc::downgrade(listener));
        }
    }

    /// The number of chunks to prefetch.
    pub(super) fn prefetch_chunks(&self) -> usize {
        let sources = self.chain().filter_map(|image| image.storage.source());
        let bytes = sources.map(|source| source.prefetch_bytes()).min().unwrap_or(0);
        (bytes as usize / CHUNK_BYTES).max(1)
    }

    /// The file that holds a chunk byte for byte, if it is stored like that.
    pub(super) fn verbatim(&self, arena: u32, chunk: u32) -> Option<(&File, &Entry)> {
        let (image, entry) = self.find(arena, chunk)?;
        image.storage.file().filter(|_| entry.is_verbatim()).map(|file| (file, entry))
    }

    /// Returns true if `content` is the image's content of a chunk.
    pub(super) fn is_content(&self, arena: u32, chunk: u32, content: &[u8]) -> bool {
        self.find(arena, chunk)
            .is_some_and(|(_, entry)| Checksum::from_bytes(content) == entry.content)
    }

    /// Finds the image of the chain that has a chunk.
    fn find(&self, arena: u32, chunk: u32) -> Option<(&Self, &Entry)> {
        self.chain().find_map(|image| {
            let place = |entry: &Entry| (entry.arena, entry.chunk).cmp(&(arena, chunk));
            let at = image.entries.binary_search_by(place).ok()?;
            Some((image, &image.entries[at]))
        })
    }

    fn read_entry(&self, entry: &Entry, scratch: &mut Scratch, content: &mut [u8]) -> Result<()> {
        let mut rereads = self.storage.rereads();
        loop {
            let place = scratch.place(entry, content);
            self.storage.read_exact_at(READ, &self.path, place, entry.offset_bytes)?;
            match chunk::decode(entry, scratch, content) {
                Err(_) if rereads > 0 => rereads -= 1,
                decoded => return decoded.map_err(|damage| damaged(READ, &self.path, &damage)),
            }
        }
    }

    /// Fills `bytes` from an offset on, and checks them.
    pub(super) fn read_checked(
        &self,
        offset_bytes: u64,
        checksum: Checksum,
        what: &'static str,
        bytes: &mut [u8],
    ) -> Result<()> {
        for _ in 0..=self.storage.rereads() {
            self.storage.read_exact_at(READ, &self.path, bytes, offset_bytes)?;
            if Checksum::from_bytes(bytes) == checksum {
                return Ok(());
            }
        }
        Err(damaged(READ, &self.path, &Damage { offset_bytes, what }))
    }

    /// The places of its own chunks' stored bytes in the file, in the order of the chunks. Each is read as a whole.
    pub fn stored_ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let stored = self.entries.iter().filter(|entry| entry.total_bytes() > 0);
        stored.map(Entry::range)
    }

    /// The checksum of the content of every chunk that is not zeroes.
    pub(super) fn contents(&self) -> std::collections::HashMap<(u32, u32), Checksum> {
        let entries = self.chain().rev().flat_map(|image| image.entries.iter());
        let mut contents: std::collections::HashMap<_, _> =
            entries.map(|entry| ((entry.arena, entry.chunk), entry.content)).collect();
        contents.retain(|_, content| *content != OF_ZEROES);
        contents
    }

    /// The chunks of an arena that are not zeroes, in order.
    pub(super) fn chunks_of(&self, arena: u32) -> Vec<u32> {
        let entries = self.chain().flat_map(|image| image.entries.iter());
        let mut chunks: Vec<u32> =
            entries.filter(|entry| entry.arena == arena).map(|entry| entry.chunk).collect();
        chunks.sort_unstable();
        chunks.dedup();
        let is_content = |chunk: &u32| {
            self.find(arena, *chunk).is_some_and(|(_, entry)| entry.content != OF_ZEROES)
        };
        chunks.retain(is_content);
        chunks
    }
}

/// Prefetches sequentially read ranges from a source; for a file the kernel does it.
pub(super) struct ReadAhead<'a, R> {
    source: Option<&'a Arc<dyn ImageSource>>,
    ranges: R,
    named: usize,
}

impl<'a, R: Iterator<Item = Range<u64>>> ReadAhead<'a, R> {
    /// `ranges` are the ranges that will be read, in order.
    pub(super) fn new(storage: &'a Storage, ranges: R) -> Self {
        Self { source: storage.source(), ranges, named: 0 }
    }

    /// Announces that the caller is about to read the range with this index.
    pub(super) fn before(&mut self, place: usize) {
        let Some(source) = self.source else { return };
        let most = (source.prefetch_bytes() as usize / CHUNK_BYTES).max(1);
        // Neighbours come in one request if they are named together.
        if self.named > place + most / 2 {
            return;
        }
        let until = place + most;
        let ranges: Vec<_> = self.ranges.by_ref().take(until.saturating_sub(self.named)).collect();
        self.named += ranges.len();
        source.prefetch(&ranges, Urgency::Soon);
    }
}

fn damaged(operation: &'static str, path: &Path, damage: &Damage) -> Error {
    let why = format!("{} (at byte {})", damage.what, damage.offset_bytes);
    Error::new(ErrorKind::Corrupt, operation).of_file(path).because(why)
}
