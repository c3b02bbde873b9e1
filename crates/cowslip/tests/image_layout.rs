//! The places of chunks in a file (docs/image-format.md): aligned where holes cost nothing, packed elsewhere.

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use cowslip::image::{
    Checksum, Image, ImageSink, MergeOptions, RestoreOptions, Strategy, merge, merge_to,
};
use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange};
use cowslip::{Arena, ErrorKind, Place, Result};
use cowslip_sys::memory::{self, Advice, Prot, Sharing};
use cowslip_sys::{AsFd, procfs};
use support::images::{Folder, patterned, proceed, saved, verify, words};

const PAGE: usize = 4096;
const ENTRY: usize = 64;

fn u64_at(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}

/// The place of an index entry's bytes, and their number.
struct Stored {
    at: usize,
    bytes: usize,
    is_whole: bool,
}

fn index_of(image: &[u8]) -> &[u8] {
    let start = u64_at(image, 104);
    &image[start..][..u64_at(image, 112) * ENTRY]
}

fn stored(entry: &[u8]) -> Stored {
    let bytes = u32::from_le_bytes(entry[12..16].try_into().unwrap()) as usize;
    let has_page_map = entry[9] == 1;
    let map_bytes = if has_page_map { 64 } else { 0 };
    let is_whole = entry[8] == 1 && !has_page_map;
    Stored { at: u64_at(entry, 16), bytes: bytes + map_bytes, is_whole }
}

fn whole_chunks(path: &Path) -> Vec<Stored> {
    let image = std::fs::read(path).unwrap();
    index_of(&image).chunks(ENTRY).map(stored).filter(|entry| entry.is_whole).collect()
}

/// A file that is to have no holes, as objects in a store have none.
struct Packed(PathBuf, File);

impl ImageSink for Packed {
    fn path(&self) -> &Path {
        &self.0
    }

    fn write_at(&self, bytes: &[u8], offset_bytes: u64) -> Result<()> {
        self.1.write_all_at(bytes, offset_bytes).unwrap();
        Ok(())
    }

    fn commit(self: Box<Self>, file_bytes: u64) -> Result<()> {
        assert_eq!(self.1.metadata().unwrap().len(), file_bytes);
        Ok(())
    }
}

#[test]
fn a_packed_image_is_read_restored_mapped_and_aligned_by_a_merge() {
    let folder = Folder::new("packed");
    let [aligned, packed, merged] = ["aligned", "packed", "merged"].map(|name| folder.file(name));
    let arena = Arena::new(ByteCount::mib(64)).unwrap();
    let slice = patterned(&arena);
    saved(&arena.freeze().unwrap(), &aligned);
    let aligned = Image::open(&aligned).unwrap();
    let sink = |_| {
        let sink = Packed(packed.clone(), File::create(&packed).unwrap());
        Ok(Box::new(sink) as Box<dyn ImageSink>)
    };
    merge_to(&aligned, sink, &MergeOptions::default(), &mut proceed).unwrap();
    let whole = whole_chunks(&packed);
    assert!(whole.len() > 2 && whole.iter().all(|chunk| !chunk.at.is_multiple_of(CHUNK_BYTES)));

    let image = verify(&packed).unwrap();
    assert!(image.diff(&aligned, &mut proceed).unwrap().is_empty());
    for strategy in [Strategy::Hybrid, Strategy::Eager] {
        let options = RestoreOptions { strategy, ..RestoreOptions::default() };
        let restored = image.restore(0, &options, &mut proceed).unwrap().into_arena();
        assert!(words(&restored, slice.range(), &arena)[..slice.len()] == slice[..]);
    }
    let memory = image.map(0, Place::Anywhere).unwrap();
    let start = memory.range().start + (slice.range().start - arena.range().start);
    #[allow(unsafe_code)]
    // SAFETY: allocated when it was saved, readable; no thread writes to it.
    let mapped = unsafe { std::slice::from_raw_parts(start as *const u64, slice.len()) };
    assert!(mapped == &slice[..]);

    merge(&image, &merged, &MergeOptions::default(), &mut proceed).unwrap();
    assert!(verify(&merged).unwrap().diff(&aligned, &mut proceed).unwrap().is_empty());
    let whole = whole_chunks(&merged);
    assert!(whole.len() > 2 && whole.iter().all(|chunk| chunk.at.is_multiple_of(CHUNK_BYTES)));
}

#[test]
fn an_image_of_an_unknown_version_is_refused() {
    let folder = Folder::new("version");
    let path = folder.file("image");
    let arena = Arena::new(ByteCount::mib(64)).unwrap();
    let _slice = patterned(&arena);
    saved(&arena.freeze().unwrap(), &path);
    let mut bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes[8..12], [1, 0, 0, 0]);
    bytes[8] = 2;
    let signed = Checksum::from_bytes(&bytes[..240]);
    bytes[240..256].copy_from_slice(&signed.0);
    std::fs::write(&path, &bytes).unwrap();
    let refused = Image::open(&path).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt);
    assert!(refused.to_string().contains("a version that this program does not know"), "{refused}");
}

/// Returns true if a file that is written in a few places has blocks only there.
fn keeps_holes(folder: &Folder) -> bool {
    let file = File::create(folder.file("holes")).unwrap();
    for chunk in [1, 9, 30] {
        file.write_all_at(&[1; PAGE], chunk * CHUNK_BYTES as u64).unwrap();
    }
    file.sync_all().unwrap();
    file.metadata().unwrap().blocks() * 512 < CHUNK_BYTES as u64
}

fn huge_file_bytes(range: VirtRange) -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    procfs::usage_of(&text, |mapping| range.covers(mapping.range)).file_huge_bytes as usize
}

/// Returns true if most of a file that is written chunk by chunk is mapped by huge pages, on request.
fn caches_huge_pages(folder: &Folder) -> bool {
    let path = folder.file("whole");
    let mut file =
        File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    (0..16).for_each(|_| file.write_all(&vec![1; CHUNK_BYTES]).unwrap());
    file.sync_all().unwrap();
    let place = memory::reserve(16 * CHUNK_BYTES, CHUNK_BYTES).unwrap();
    #[allow(unsafe_code)]
    // SAFETY: the place was reserved for this, and no other code knows it.
    let huge = unsafe {
        memory::map_file(place, file.as_fd(), 0, Sharing::Private, Prot::RW).unwrap();
        memory::advise(place, Advice::HugePage).unwrap();
        memory::advise(place, Advice::PopulateRead).unwrap();
        let huge = huge_file_bytes(place);
        memory::unmap(place).unwrap();
        huge
    };
    huge >= 12 * CHUNK_BYTES
}

#[test]
fn whole_chunks_lie_at_their_multiples_and_what_is_empty_takes_no_room() {
    let folder = Folder::new("aligned");
    let [path, copy] = ["image", "copy"].map(|name| folder.file(name));
    let arena = Arena::new(ByteCount::mib(128)).unwrap();
    let mut slice = arena.slice::<u64>(60 * CHUNK_BYTES / 8).unwrap();
    for (i, word) in slice.iter_mut().enumerate() {
        let (chunk, page) = (i * 8 / CHUNK_BYTES, i * 8 % CHUNK_BYTES / PAGE);
        // Every third chunk has a few pages, or some hundred.
        let is_there = chunk % 3 != 0 || page < chunk * 7;
        *word = if is_there { support::pattern(i) | 1 } else { 0 };
    }
    let frozen = arena.freeze().unwrap();
    let length = saved(&frozen, &path).file_bytes;
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.len() as u64, length);
    let parts: Vec<Stored> = index_of(&bytes).chunks(ENTRY).map(stored).collect();
    let whole: Vec<&Stored> = parts.iter().filter(|entry| entry.is_whole).collect();
    assert!(whole.len() >= 40 && whole.iter().all(|chunk| chunk.at.is_multiple_of(CHUNK_BYTES)));
    let used: usize = parts.iter().map(|entry| entry.bytes.next_multiple_of(PAGE)).sum();
    let most = used + used / 8 + 2 * CHUNK_BYTES;
    assert!(length as usize <= most, "{length} bytes for {used}");
    if keeps_holes(&folder) {
        let blocks = std::fs::metadata(&path).unwrap().blocks() as usize * 512;
        assert!(blocks <= used + used / 16 + (64 << 10), "{blocks} bytes for {used}");
    } else {
        support::skip("sparse_files", "the folder of temporary files has blocks for what is empty");
    }

    // A plain copy fills the holes with zeroes.
    let mut all = Vec::new();
    File::open(&path).unwrap().read_to_end(&mut all).unwrap();
    File::create(&copy).unwrap().write_all(&all).unwrap();
    let copied = verify(&copy).unwrap();
    assert!(copied.diff(&Image::open(&path).unwrap(), &mut proceed).unwrap().is_empty());
    // From four threads on a restore works in another way.
    for threads in [1, 4] {
        let options =
            RestoreOptions { strategy: Strategy::Eager, threads, ..RestoreOptions::default() };
        let restored = copied.restore(0, &options, &mut proceed).unwrap().into_arena();
        assert!(words(&restored, slice.range(), &arena)[..slice.len()] == slice[..]);
    }
}

#[test]
fn a_mapped_image_is_mapped_by_huge_pages() {
    let folder = Folder::new("huge-mapped");
    let path = folder.file("image");
    let arena = Arena::new(ByteCount::mib(64)).unwrap();
    let mut slice = arena.slice::<u64>(20 * CHUNK_BYTES / 8).unwrap();
    slice.iter_mut().enumerate().for_each(|(i, word)| *word = support::pattern(i) | 1);
    saved(&arena.freeze().unwrap(), &path);
    if !caches_huge_pages(&folder) {
        return support::skip(
            "huge_page_cache",
            "the file system has no pages of 2 MiB in its cache",
        );
    }
    let image = Image::open(&path).unwrap();
    let memory = image.map(0, Place::Anywhere).unwrap();
    let start = memory.range().start + (slice.range().start - arena.range().start);
    #[allow(unsafe_code)]
    // SAFETY: allocated when it was saved, readable; it is only read.
    unsafe { memory::advise(VirtRange::new(start, slice.range().len), Advice::PopulateRead) }
        .unwrap();
    let huge = huge_file_bytes(memory.range());
    // Memory may have been fragmented.
    assert!(huge >= 10 * CHUNK_BYTES, "{huge} bytes of 20 chunks");
}
