#![allow(unsafe_code)]
//! Images mapped as memory without an arena.

mod support;

use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use cowslip::image::{Image, MappedImage, SaveOptions, save};
use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip::{Arena, ErrorKind, Place, Prot};
use cowslip_sys::memfile::{self, MemfdKind};
use cowslip_sys::{AsFd, Errno};
use support::pattern;

const CHUNKS: usize = 6;
const WORDS: usize = CHUNKS * CHUNK_BYTES / 8;

/// An image of some chunks and their content; the file is removed with this value.
struct Saved {
    path: PathBuf,
    content: Vec<u64>,
    /// The offset of the content from the arena's start.
    offset_bytes: usize,
    guard_bytes: usize,
}

impl Saved {
    fn new(name: &str) -> Self {
        Self::from_arena(Arena::new(ByteCount::mib(32)).unwrap(), name)
    }

    fn from_arena(arena: Arena, name: &str) -> Self {
        let name = format!("cowslip-mapped-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut slice = arena.slice::<u64>(WORDS).unwrap();
        for (i, value) in slice.iter_mut().enumerate() {
            let (chunk, page) = (i * 8 / CHUNK_BYTES, i * 8 / page_size_bytes());
            // Whole, whole, zeroes, a third, whole, whole.
            let is_zero = chunk == 2 || (chunk == 3 && !page.is_multiple_of(3));
            *value = if is_zero { 0 } else { pattern(i) | 1 };
        }
        let guard = arena.allocate(ByteCount::mib(1), Prot::NONE).unwrap();
        let frozen = arena.freeze().unwrap();
        let mut proceed = |_| ControlFlow::Continue(());
        // By one thread: chunk after chunk.
        let options = SaveOptions { threads: 1, ..SaveOptions::default() };
        save(&[&frozen], &path, &options, &mut proceed).unwrap();
        let from = |address| address - arena.range().start;
        let (offset_bytes, guard_bytes) = (from(slice.range().start), from(guard.start));
        Self { path, content: slice.to_vec(), offset_bytes, guard_bytes }
    }

    /// Flips a bit of a word in the file, in a chunk that is stored whole.
    fn lie_about(&self, word: usize) {
        let file = File::options().read(true).write(true).open(&self.path).unwrap();
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let told = self.content[word..word + 8].iter().flat_map(|word| word.to_le_bytes());
        let told: Vec<u8> = told.collect();
        let at = bytes.chunks_exact(8).position(|word| word == &told[..8]).unwrap() * 8;
        assert_eq!(bytes[at..at + 64], told, "stored byte for byte");
        file.write_all_at(&[told[0] ^ 4], at as u64).unwrap();
    }

    fn words<'a>(&self, memory: &'a MappedImage) -> &'a [u64] {
        let start = memory.range().start + self.offset_bytes;
        // SAFETY: allocated when it was saved, readable; no thread writes to it.
        unsafe { std::slice::from_raw_parts(start as *const u64, WORDS) }
    }

    fn chunk(&self, memory: &MappedImage, chunk: usize) -> VirtRange {
        let start = memory.range().start + self.offset_bytes + chunk * CHUNK_BYTES;
        VirtRange::new(start, CHUNK_BYTES)
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn map(path: &Path) -> MappedImage {
    Image::open(path).unwrap().map(0, Place::Anywhere).unwrap()
}

/// The result of a system call that reads `range`.
fn read_by_kernel(range: VirtRange) -> Result<Vec<u8>, Errno> {
    let file = memfile::memfd("test", MemfdKind::Shmem, 0).unwrap();
    // SAFETY: only the kernel reads there, and returns EFAULT where it cannot.
    unsafe { memfile::write_range_at(file.as_fd(), range, 0) }?;
    let mut read = vec![0; range.len];
    assert_eq!(memfile::read_at(file.as_fd(), &mut read, 0), Ok(range.len));
    Ok(read)
}

#[test]
fn it_has_the_content_that_was_saved_and_writes_stay_private() {
    let saved = Saved::new("content");
    let memory = map(&saved.path);
    assert!(saved.words(&memory) == saved.content);
    let page = VirtRange::new(memory.range().start + saved.guard_bytes, page_size_bytes());
    assert_eq!(read_by_kernel(page), Err(Errno::FAULT), "guards hold");
    let place = saved.offset_bytes + memory.range().start + 5 * CHUNK_BYTES;
    // SAFETY: allocated writable, and borrowed by no other code now.
    unsafe { *(place as *mut u64) = 99 };
    assert_eq!(saved.words(&memory)[5 * CHUNK_BYTES / 8], 99);
    drop(memory);
    assert!(saved.words(&map(&saved.path)) == saved.content, "the image is as it was");
}

#[test]
fn the_original_addresses_are_taken_or_refused() {
    // An address that no other memory gets: threads of the other tests map and unmap meanwhile.
    const APART: usize = 0x5000_0000_0000;
    let arena = Arena::builder(ByteCount::mib(32)).at(APART).build().unwrap();
    let saved = Saved::from_arena(arena, "original");
    let image = Image::open(&saved.path).unwrap();
    let start = image.description().arenas[0].start_address as usize;
    let memory = image.map(0, Place::Original).unwrap();
    assert_eq!(memory.range().start, start);
    assert!(saved.words(&memory) == saved.content);
    let taken = image.map(0, Place::Original).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::Busy, "{taken}");
    let missing = image.map(1, Place::Anywhere).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Usage, "{missing}");
}

#[test]
fn whole_chunks_are_not_checked() {
    let saved = Saved::new("lie");
    let word = CHUNK_BYTES / 8 + 77_777;
    saved.lie_about(word);
    assert_eq!(saved.words(&map(&saved.path))[word], saved.content[word] ^ 4);
}

#[test]
fn a_truncated_file_takes_the_memory_away() {
    let saved = Saved::new("truncated");
    let memory = map(&saved.path);
    File::options().write(true).open(&saved.path).unwrap().set_len(5000).unwrap();
    let page = VirtRange::new(saved.chunk(&memory, 4).start, page_size_bytes());
    assert_eq!(read_by_kernel(page), Err(Errno::FAULT));
}
