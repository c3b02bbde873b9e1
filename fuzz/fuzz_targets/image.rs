//! An image file of any bytes is refused, or read with the same content in every way.
//!
//! An input is a file without the gap between its header and byte 4096. Its length and its checksums are made right
//! first, so that the code behind them is reached. The unused bytes of the header are the entries of a working set beside it.
#![no_main]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cowslip::image::{
    Checksum, Compression, Image, MergeOptions, RestoreOptions, Root, SaveOptions, Strategy, Via,
    merge, save,
};
use cowslip::units::{ByteCount, CHUNK_BYTES};
use cowslip::{Arena, ArenaSlice};
use cowslip_fuzz::{folder, proceed, put, seed, sign, u32_at, u64_at};
use libfuzzer_sys::fuzz_target;

const HEADER: usize = 256;
const DATA_AT: usize = 4096;
const ENTRY: usize = 64;
const UNUSED: std::ops::Range<usize> = 144..240;
/// Images that say more than this are opened, not restored.
const MOST_BYTES: u64 = 16 << 20;

static FOLDER: OnceLock<PathBuf> = OnceLock::new();

fn place(name: &str) -> PathBuf {
    FOLDER.get_or_init(folder).join(name)
}

/// An arena with something on a few pages.
fn arena() -> (Arena, ArenaSlice<u64>) {
    let arena = Arena::new(ByteCount::mib(8)).expect("an arena");
    let mut words = arena.slice::<u64>(CHUNK_BYTES / 4).expect("room");
    for page in [0, 3, 511, 600] {
        words[page * 512..page * 512 + 40].fill(page as u64 + 1);
    }
    (arena, words)
}

/// Images by the real writer, which stay in the folder as parents.
fn seeds() {
    let (arena, mut words) = arena();
    let offset_bytes = (words.range().start - arena.range().start) as u64;
    let root = Root { arena: 0, offset_bytes, length_bytes: words.range().len as u64 };
    for (name, parent, compression) in [
        ("plain", None, Compression::None),
        ("lz4", None, Compression::Lz4),
        ("zstd", None, Compression::Zstd(3)),
        ("child", Some("plain"), Compression::Zstd(3)),
        ("grandchild", Some("child"), Compression::Lz4),
    ] {
        let options = SaveOptions {
            compression,
            parent: parent.map(place),
            roots: [("table".to_owned(), root.clone())].into(),
            user: [("generation".to_owned(), name.to_owned())].into(),
            ..SaveOptions::default()
        };
        let frozen = arena.freeze().expect("a freeze");
        save(&[&frozen], &place(name), &options, &mut proceed).expect("an image");
        drop(frozen);
        let bytes = fs::read(place(name)).expect("an image");
        seed(name, &[&bytes[..HEADER], &bytes[DATA_AT..]].concat());
        words[700 * 512] += 1;
    }
}

/// The file that an input stands for, with its own length and right checksums.
fn file(input: &[u8]) -> Vec<u8> {
    let (header, data) = input.split_at(input.len().min(HEADER));
    let mut bytes = header.to_vec();
    if !data.is_empty() {
        bytes.resize(DATA_AT, 0);
        bytes.extend(data);
    }
    let length = (bytes.len() as u64).to_le_bytes();
    put(&mut bytes, 136, &length);
    for at in entries(&bytes) {
        let stored = u64_at(&bytes, at + 16);
        let map = if bytes[at + 9] == 1 { 64 } else { 0 };
        let end = stored.saturating_add(u32_at(&bytes, at + 12) + map);
        sign(&mut bytes, stored..end, at + 48);
    }
    sign_header(&mut bytes);
    bytes
}

/// Where the entries of the index are.
fn entries(bytes: &[u8]) -> Vec<usize> {
    let (index, count) = (u64_at(bytes, 104), u64_at(bytes, 112));
    let places = (0..count.min(64)).map(|entry| index.saturating_add(entry * ENTRY));
    places.take_while(|at| at.saturating_add(ENTRY) <= bytes.len()).collect()
}

fn sign_header(bytes: &mut [u8]) {
    let (text, text_len) = (u64_at(bytes, 72), u64_at(bytes, 80));
    let (index, count) = (u64_at(bytes, 104), u64_at(bytes, 112));
    sign(bytes, text..text.saturating_add(text_len), 88);
    sign(bytes, index..index.saturating_add(count.saturating_mul(ENTRY)), 120);
    sign(bytes, 0..240, 240);
}

/// Makes the checksum of each chunk's content right, by what the reader makes of it.
fn sign_content(image: &Image, bytes: &mut [u8]) {
    let mut content = vec![0; CHUNK_BYTES];
    for at in entries(bytes) {
        content.fill(0);
        let (arena, chunk) = (u32_at(bytes, at) as u32, u32_at(bytes, at + 4) as u32);
        if image.read_chunk(arena, chunk, &mut content).is_err() {
            put(bytes, at + 32, &Checksum::from_bytes(&content).0);
        }
    }
    sign_header(bytes);
}

/// Writes a working set beside the image.
fn write_working_set(image: &Image, path: &Path, entries: &[u8]) {
    let mut bytes = b"COWSLIPW\x01\0\0\0\x40\0\0\0".to_vec();
    bytes.extend(image.identity().0);
    bytes.extend((entries.len() as u64 / 8).to_le_bytes());
    bytes.extend([0; 8]);
    let sum = Checksum::from_bytes(&[&bytes, entries].concat());
    bytes.extend(sum.0);
    bytes.extend(entries);
    fs::write(path, bytes).expect("a working set");
}

/// Restores an arena of the image, and compares it with what its chunks are said to hold.
fn restore(image: &Image, strategy: Strategy) {
    let described = &image.description().arenas[0];
    let options = RestoreOptions { strategy, via: Via::File, threads: 1, ..Default::default() };
    let Ok(restored) = image.restore(0, &options, &mut proceed) else { return };
    if restored.wait(std::time::Duration::from_secs(60)).is_err() {
        return;
    }
    let start = restored.arena().range().start;
    let mut content = vec![0; CHUNK_BYTES];
    for piece in described.pieces.iter().filter(|piece| piece.protection.contains('r')) {
        let (mut at, end) = (piece.offset_bytes, piece.offset_bytes + piece.length_bytes);
        while at < end {
            let (chunk, into) = (at / CHUNK_BYTES as u64, at as usize % CHUNK_BYTES);
            let length = (CHUNK_BYTES - into).min((end - at) as usize);
            image.read_chunk(0, chunk as u32, &mut content).expect("a chunk that was restored");
            // SAFETY: the piece was handed out to be read, and nothing else knows the arena.
            let memory =
                unsafe { std::slice::from_raw_parts((start + at as usize) as *const u8, length) };
            assert!(memory == &content[into..into + length], "chunk {chunk}");
            at += length as u64;
        }
    }
}

fuzz_target!(init: seeds(), |input: &[u8]| {
    let (path, working_set) = (place("image"), place("image.working-set"));
    let mut bytes = file(input);
    fs::write(&path, &bytes).expect("a file of some bytes");
    let Ok(image) = Image::open(&path) else { return };
    let _ = image.summary();
    sign_content(&image, &mut bytes);
    fs::write(&path, &bytes).expect("a file of some bytes");
    let image = Image::open(&path).expect("only checksums were changed");
    if image.verify(&mut proceed).is_err() {
        return;
    }
    if let Ok(other) = Image::open(&place("lz4")) {
        let _ = image.diff(&other, &mut proceed);
    }
    let lengths = image.description().arenas.iter().map(|arena| arena.length_bytes);
    let length = lengths.fold(0_u64, u64::saturating_add);
    if length > MOST_BYTES || length == 0 {
        return;
    }
    write_working_set(&image, &working_set, &bytes[UNUSED]);
    restore(&image, Strategy::Eager);
    restore(&image, Strategy::Hybrid);
    let merged = place("merged");
    let options = MergeOptions { compression: Compression::Lz4, threads: 1 };
    if merge(&image, &merged, &options, &mut proceed).is_ok() {
        let merged = Image::open(&merged).expect("a merged image");
        let diff = image.diff(&merged, &mut proceed).expect("images that are whole");
        assert!(diff.is_empty(), "{diff:?}");
    }
});
