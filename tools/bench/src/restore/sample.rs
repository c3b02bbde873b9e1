#![allow(unsafe_code)]
//! The content that is saved and restored: random words that can be told from any others.
//!
//! # Safety
//! A [`View`] is of restored memory that is readable as long as its holder lives, and that no thread writes to.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use cowslip::Arena;
use cowslip::image::{Image, Root, SaveOptions, save};
use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};

use super::{Error, Result};
use crate::error::during;
use crate::host::warm;
use crate::interrupt::Interrupt;
use crate::memory::Memory;
use crate::program::Folder;
use crate::restore::proceed;

const WORD: usize = size_of::<u64>();
/// The name of the content in images.
const ROOT: &str = "data";

/// An arena with the content, an image of it, and a plain file with the same.
pub(super) struct Sample {
    pub(super) folder: Folder,
    pub(super) arena: Arena,
    pub(super) memory: Memory,
}

/// Word `i` of the content (SplitMix64).
pub(super) fn word(i: usize) -> u64 {
    let mut x = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

impl Sample {
    pub(super) fn new(size: ByteCount, stop: &Interrupt) -> Result<Self> {
        let bytes = size.0 as usize - size.0 as usize % CHUNK_BYTES;
        let folder = Folder::new("restore")?;
        warm(ByteCount(bytes as u64), stop)?;
        let arena = Arena::new(ByteCount(bytes as u64))?;
        let memory = Memory::in_arena(&arena, bytes)?;
        (0..bytes / WORD).for_each(|i| memory.word(i * WORD).store(word(i), Relaxed));
        let sample = Self { folder, arena, memory };
        let frozen = sample.arena.freeze()?;
        save(&[&frozen], &sample.image(), &sample.options(), &mut proceed)?;
        stop.check()?;
        drop(frozen);
        sample.write_flat().map_err(during("write a file to compare with"))?;
        Ok(sample)
    }

    fn write_flat(&self) -> std::io::Result<()> {
        let mut file = BufWriter::with_capacity(CHUNK_BYTES, File::create(self.flat())?);
        for i in 0..self.memory.bytes() / WORD {
            file.write_all(&word(i).to_ne_bytes())?;
        }
        file.into_inner()?.sync_all()
    }

    pub(super) fn options(&self) -> SaveOptions {
        let range = self.memory.range();
        let offset_bytes = (range.start - self.arena.range().start) as u64;
        let root = Root { arena: 0, offset_bytes, length_bytes: range.len as u64 };
        let mut options = SaveOptions::default();
        options.roots.insert(ROOT.into(), root);
        options
    }

    pub(super) fn bytes(&self) -> u64 {
        self.memory.range().len as u64
    }

    pub(super) fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    /// The content alone.
    pub(super) fn flat(&self) -> PathBuf {
        self.folder.path().join("flat")
    }

    /// Makes another name for the image, which a measurement may save to.
    pub(super) fn link(&self, name: &str) -> Result<PathBuf> {
        let path = self.folder.path().join(name);
        let _ = std::fs::remove_file(&path);
        std::fs::hard_link(self.image(), &path).map_err(during("link a file"))?;
        Ok(path)
    }
}

/// The range of the content in an image, from the arena's start.
pub(super) fn place_of(image: &Image) -> Result<VirtRange> {
    let root = image.description().roots.get(ROOT);
    let root = root.ok_or_else(|| Error::Failed(format!("the image has no root {ROOT:?}")))?;
    Ok(VirtRange::new(root.offset_bytes as usize, root.length_bytes as usize))
}

/// Memory that should have the content.
#[derive(Clone, Copy, Debug)]
pub(super) struct View(pub(super) VirtRange);

impl View {
    pub(super) fn pages(self) -> usize {
        self.0.len / page_size_bytes()
    }

    fn read(self, word: usize) -> u64 {
        debug_assert!(word < self.0.len / WORD);
        // SAFETY: see the module; inside the range.
        unsafe { ((self.0.start + word * WORD) as *const u64).read_volatile() }
    }

    /// The first word of a page.
    pub(super) fn page_word(self, page: usize) -> u64 {
        self.read(page * page_size_bytes() / WORD)
    }

    /// The same, and the expected word.
    pub(super) fn page(self, page: usize) -> (u64, u64) {
        let at = page * page_size_bytes() / WORD;
        (self.read(at), word(at))
    }

    pub(super) fn wrong_bytes(self) -> u64 {
        let wrong = (0..self.0.len / WORD).filter(|&i| self.read(i) != word(i));
        wrong.count() as u64 * WORD as u64
    }
}

/// Puts the whole file into the page cache, or drops all of it.
pub(super) fn prepare(path: &Path, cold: bool) -> Result<()> {
    use cowslip_sys::{AsFd, cache};
    let doing = |what| format!("{what} {}", path.display());
    let mut file = File::open(path).map_err(during(doing("open")))?;
    if !cold {
        return std::io::copy(&mut file, &mut std::io::sink())
            .map(drop)
            .map_err(during(doing("read")));
    }
    cache::drop_cached(file.as_fd()).map_err(during(doing("drop from the page cache")))?;
    match cache::cached_bytes(file.as_fd()) {
        Ok(cached) if cached > file.metadata().map_or(0, |metadata| metadata.len()) / 100 => {
            Err(Error::Failed(format!("{} stays in the page cache", path.display())))
        }
        // It was dropped, or the kernel does not tell.
        _ => Ok(()),
    }
}
