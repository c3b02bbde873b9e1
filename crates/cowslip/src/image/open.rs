//! Images that are read.

use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use cowslip_sys::error::{Error, ErrorKind, Result, file_error};
use cowslip_sys::units::CHUNK_BYTES;
use cowslip_sys::{AsFd, memfile, regular};

use super::chunk::{self, OF_ZEROES, Scratch};
use super::description::Description;
use super::format::{
    Checksum, Damage, ENTRY_BYTES, Entry, HEADER_BYTES, Header, Identity, decode_index,
};
use super::{OnProgress, Progress};

const OPEN: &str = "open an image";
const READ: &str = "read an image";
const VERIFY: &str = "verify an image";
/// Longer chains are not opened: each link is a file.
const LONGEST_CHAIN: usize = 1000;

/// An image whose header, description and index are right, with the chain of its parents. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Image {
    path: Arc<Path>,
    file: Arc<File>,
    header: Header,
    description: Arc<Description>,
    entries: Arc<[Entry]>,
    /// The parent, its parent, …
    ancestors: Arc<[Image]>,
}

/// What an image is, at a glance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ImageSummary {
    /// Which image.
    pub identity: Identity,
    /// Which image it needs, if it is not complete.
    pub parent: Option<Identity>,
    /// When it was saved, nanoseconds since 1970.
    pub created_unix_ns: u64,
    /// Length of the file.
    pub file_bytes: u64,
    /// Chunks that it holds.
    pub chunks: u64,
    /// Memory that the arenas had in use.
    pub used_bytes: u64,
}

impl Image {
    /// Opens an image and the chain of its parents, and checks all but their chunks.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if a file of the chain is damaged, missing or another; the file system's.
    pub fn open(path: &Path) -> Result<Self> {
        let mut image = Self::open_alone(path)?;
        let mut ancestors = Vec::new();
        let mut folder = path.parent().unwrap_or(Path::new("")).to_owned();
        let mut wanted = image.header.parent();
        let mut hint = image.description.parent_file.clone();
        while let Some(identity) = wanted {
            let at = |why: String| Error::new(ErrorKind::Corrupt, OPEN).of_file(path).hint(why);
            let Some(name) = hint else {
                return Err(at(format!(
                    "it needs its parent {identity} and does not name its file"
                )));
            };
            let parent_path = folder.join(name);
            let parent = Self::open_alone(&parent_path).map_err(|error| match error.kind() {
                ErrorKind::Corrupt => error,
                _ => at(format!("its parent {identity} cannot be opened: {error}")),
            })?;
            if parent.header.identity != identity {
                let found = parent.header.identity;
                return Err(at(format!(
                    "its parent is {identity}, and {} is {found}",
                    parent_path.display()
                )));
            }
            let lengths = |image: &Self| {
                image.description.arenas.iter().map(|arena| arena.length_bytes).collect::<Vec<_>>()
            };
            if lengths(&parent) != lengths(&image) {
                return Err(at("its parent has other arenas".into()));
            }
            if ancestors.len() == LONGEST_CHAIN {
                return Err(at(format!("more than {LONGEST_CHAIN} parents, or a circle of them")));
            }
            wanted = parent.header.parent();
            hint = parent.description.parent_file.clone();
            folder = parent_path.parent().unwrap_or(Path::new("")).to_owned();
            ancestors.push(parent);
        }
        image.ancestors = ancestors.into();
        Ok(image)
    }

    fn open_alone(path: &Path) -> Result<Self> {
        let of_file = |error| file_error(OPEN, path, error);
        let corrupt = |damage| damaged(OPEN, path, &damage);
        let file = regular::open(path).map_err(of_file)?;
        let length = file.metadata().map_err(of_file)?.len();
        let mut head = vec![0; length.min(HEADER_BYTES as u64) as usize];
        file.read_exact_at(&mut head, 0).map_err(of_file)?;
        let header = Header::decode(&head, length).map_err(corrupt)?;
        let section = |offset_bytes, bytes: u64| {
            let mut section = vec![0; bytes as usize];
            file.read_exact_at(&mut section, offset_bytes).map_err(of_file).map(|()| section)
        };
        let text = section(header.description.offset_bytes, header.description.length)?;
        let at_text = |what| Damage { offset_bytes: header.description.offset_bytes, what };
        if Checksum::of(&text) != header.description.checksum {
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
        let index = section(header.index.offset_bytes, header.index.length * ENTRY_BYTES as u64)?;
        let entries = decode_index(&index, &header, &chunks).map_err(corrupt)?;
        Ok(Self {
            path: path.into(),
            file: file.into(),
            header,
            description: description.into(),
            entries: entries.into(),
            ancestors: Arc::new([]),
        })
    }

    /// Which image it is.
    pub fn identity(&self) -> Identity {
        self.header.identity
    }

    /// What it says of itself.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// What it is, at a glance.
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

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its file is what `path` names.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        let real = path.canonicalize().ok();
        real.is_some() && self.path.canonicalize().ok() == real
    }

    fn chain(&self) -> impl DoubleEndedIterator<Item = &Self> {
        std::iter::once(self).chain(self.ancestors.iter())
    }

    /// Checks every chunk of this image, not of its ancestors.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for the first that is damaged, [`ErrorKind::Busy`] if it was broken off.
    pub fn verify(&self, progress: OnProgress<'_>) -> Result<()> {
        let mut content = vec![0; CHUNK_BYTES];
        let mut scratch = Scratch::default();
        let bytes = |chunks: usize| (chunks * CHUNK_BYTES) as u64;
        for (i, entry) in self.entries.iter().enumerate() {
            self.read_entry(entry, &mut scratch, &mut content)?;
            let now = Progress { done_bytes: bytes(i + 1), total_bytes: bytes(self.entries.len()) };
            if let ControlFlow::Break(()) = progress(now) {
                return Err(Error::new(ErrorKind::Busy, VERIFY).hint("it was broken off"));
            }
        }
        Ok(())
    }

    /// Whether its file, and those of the images it needs, are as long as they were. What is mapped from one that
    /// is not is gone: an access is a `SIGBUS`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if one was cut short; the file system's.
    pub fn check_lengths(&self) -> Result<()> {
        for image in self.chain() {
            let of_file = |error| file_error(READ, &image.path, error);
            let length = image.file.metadata().map_err(of_file)?.len();
            if length < image.header.file_bytes {
                return Err(of_file(std::io::ErrorKind::UnexpectedEof.into()));
            }
        }
        Ok(())
    }

    /// The content of a chunk, 2 MiB, checked. After an error `content` holds anything.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is damaged; the file system's.
    ///
    /// # Panics
    /// If `content` is not 2 MiB long.
    pub fn read_chunk(&self, arena: u32, chunk: u32, content: &mut [u8]) -> Result<()> {
        self.read_chunk_with(&mut Scratch::default(), arena, chunk, content)
    }

    /// As [`Self::read_chunk`], for who reads many.
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

    /// Has the kernel begin to read what is stored of a chunk.
    pub(super) fn will_need(&self, arena: u32, chunk: u32) {
        if let Some((image, entry)) = self.find(arena, chunk) {
            memfile::will_need(image.file.as_fd(), entry.offset_bytes, entry.total_bytes());
        }
    }

    /// The file where a chunk stands byte for byte, if it is stored like that.
    pub(super) fn verbatim(&self, arena: u32, chunk: u32) -> Option<(&File, &Entry)> {
        let (image, entry) = self.find(arena, chunk)?;
        entry.is_verbatim().then_some((&*image.file, entry))
    }

    /// Whether this is what the image has of a chunk.
    pub(super) fn is_content(&self, arena: u32, chunk: u32, content: &[u8]) -> bool {
        self.find(arena, chunk).is_some_and(|(_, entry)| Checksum::of(content) == entry.content)
    }

    /// Which image of the chain has a chunk.
    fn find(&self, arena: u32, chunk: u32) -> Option<(&Self, &Entry)> {
        self.chain().find_map(|image| {
            let place = |entry: &Entry| (entry.arena, entry.chunk).cmp(&(arena, chunk));
            let at = image.entries.binary_search_by(place).ok()?;
            Some((image, &image.entries[at]))
        })
    }

    fn read_entry(&self, entry: &Entry, scratch: &mut Scratch, content: &mut [u8]) -> Result<()> {
        let read = self.file.read_exact_at(scratch.place(entry, content), entry.offset_bytes);
        read.map_err(|error| file_error(READ, &self.path, error))?;
        let decoded = chunk::decode(entry, scratch, content);
        decoded.map_err(|damage| damaged(READ, &self.path, &damage))
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

fn damaged(operation: &'static str, path: &Path, damage: &Damage) -> Error {
    let why = format!("{} (at byte {})", damage.what, damage.offset_bytes);
    Error::new(ErrorKind::Corrupt, operation).of_file(path).hint(why)
}
