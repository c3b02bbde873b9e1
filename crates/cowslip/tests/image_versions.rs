//! Both versions of the image format: their layouts, and that both can be read (docs/image-format.md).

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cowslip::image::{
    Checksum, Image, MergeOptions, RestoreOptions, SaveOptions, StandaloneMode, Strategy, merge,
    save,
};
use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange};
use cowslip::{Arena, ErrorKind, Place};
use cowslip_sys::memory::{self, Advice, Prot, Sharing};
use cowslip_sys::{AsFd, procfs};
use support::images::{Folder, patterned, proceed, saved, verify, words};

const HEADER: usize = 256;
const PAGE: usize = 4096;
const ENTRY: usize = 64;

fn u64_at(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}

fn set_u64(bytes: &mut [u8], at: usize, value: usize) {
    bytes[at..at + 8].copy_from_slice(&(value as u64).to_le_bytes());
}

fn sign(bytes: &mut [u8], at: usize) {
    let signed = Checksum::of(&bytes[..at]);
    bytes[at..at + 16].copy_from_slice(&signed.0);
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

/// The same image in the layout of version 1: each chunk at the next page.
fn as_version_1(image: &[u8]) -> Vec<u8> {
    let mut old = image[..HEADER].to_vec();
    old.resize(PAGE, 0);
    let mut index = index_of(image).to_vec();
    for entry in index.chunks_exact_mut(ENTRY) {
        let Stored { at, bytes, .. } = stored(entry);
        if bytes == 0 {
            continue;
        }
        let map_distance = u64_at(entry, 24).checked_sub(at);
        let place = old.len();
        set_u64(entry, 16, place);
        if let Some(distance) = map_distance {
            set_u64(entry, 24, place + distance);
        }
        old.extend_from_slice(&image[at..at + bytes]);
        old.resize(old.len().next_multiple_of(PAGE), 0);
    }
    let (text, text_bytes) = (u64_at(image, 72), u64_at(image, 80));
    let place = old.len();
    set_u64(&mut old, 72, place);
    old.extend_from_slice(&image[text..text + text_bytes]);
    let place = old.len();
    set_u64(&mut old, 104, place);
    old.extend_from_slice(&index);
    old[8] = 1;
    old[120..136].copy_from_slice(&Checksum::of(&index).0);
    let length = old.len();
    set_u64(&mut old, 136, length);
    sign(&mut old, 240);
    old
}

fn version(path: &Path) -> u8 {
    std::fs::read(path).unwrap()[8]
}

#[test]
fn version_1_is_read_restored_mapped_built_upon_and_converted() {
    let folder = Folder::new("version-1");
    let [new, old, child, merged] = ["new", "old", "child", "merged"].map(|name| folder.file(name));
    let arena = Arena::new(ByteCount::mib(64)).unwrap();
    let mut slice = patterned(&arena);
    let content = slice.to_vec();
    let frozen = arena.freeze().unwrap();
    saved(&frozen, &new);
    assert_eq!(version(&new), 2);
    let bytes = as_version_1(&std::fs::read(&new).unwrap());
    let whole: Vec<Stored> =
        index_of(&bytes).chunks(ENTRY).map(stored).filter(|it| it.is_whole).collect();
    assert!(whole.len() > 2 && whole.iter().all(|it| !it.at.is_multiple_of(CHUNK_BYTES)));
    std::fs::write(&old, &bytes).unwrap();

    let image = verify(&old).unwrap();
    assert!(image.diff(&Image::open(&new).unwrap(), &mut proceed).unwrap().is_empty());
    for strategy in [Strategy::Hybrid, Strategy::Eager] {
        let options = RestoreOptions { strategy, ..RestoreOptions::default() };
        let restored = image.restore(0, &options, &mut proceed).unwrap().into_arena();
        assert!(words(&restored, slice.range(), &arena)[..content.len()] == content);
    }
    for mode in [StandaloneMode::Map, StandaloneMode::Populate] {
        let memory = image.restore_standalone(0, mode, Place::Anywhere, None).unwrap();
        let start = memory.range().start + (slice.range().start - arena.range().start);
        #[allow(unsafe_code)]
        // SAFETY: allocated when it was saved, readable; no thread writes to it.
        let words = unsafe { std::slice::from_raw_parts(start as *const u64, content.len()) };
        assert!(words == content, "{mode:?}");
    }
    drop(frozen);

    // A chain of both versions, and a merge of it in the new one.
    slice[7] = 99;
    if !arena.raw().start_service() {
        return support::skip("userfaultfd", "nothing thaws it for the next freeze");
    }
    let frozen = arena.freeze_timeout(support::PATIENCE).unwrap();
    let options = SaveOptions { parent: Some(old.clone()), ..SaveOptions::default() };
    save(&[&frozen], &child, &options, &mut proceed).unwrap();
    let chain = verify(&child).unwrap();
    merge(&chain, &merged, &MergeOptions::default(), &mut proceed).unwrap();
    merge(&image, &old, &MergeOptions::default(), &mut proceed).unwrap();
    assert_eq!([version(&merged), version(&old)], [2, 2]);
    assert!(verify(&merged).unwrap().diff(&chain, &mut proceed).unwrap().is_empty());
    assert!(
        verify(&old).unwrap().diff(&Image::open(&new).unwrap(), &mut proceed).unwrap().is_empty()
    );

    let mut neither = bytes;
    neither[8] = 2;
    sign(&mut neither, 240);
    std::fs::write(&old, &neither).unwrap();
    let refused = Image::open(&old).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt);
    assert!(refused.to_string().contains("lies where none can"), "{refused}");
}

/// Returns true if a file that is written in a few places has blocks only there.
fn keeps_holes(folder: &Folder) -> bool {
    use std::os::unix::fs::FileExt;
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
    let whole: Vec<&Stored> = parts.iter().filter(|it| it.is_whole).collect();
    assert!(whole.len() >= 40 && whole.iter().all(|it| it.at.is_multiple_of(CHUNK_BYTES)));
    let used: usize = parts.iter().map(|it| it.bytes.next_multiple_of(PAGE)).sum();
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
    let memory =
        image.restore_standalone(0, StandaloneMode::Populate, Place::Anywhere, None).unwrap();
    let huge = huge_file_bytes(memory.range());
    // Memory may have been fragmented.
    assert!(huge >= 10 * CHUNK_BYTES, "{huge} bytes of 20 chunks");
}
