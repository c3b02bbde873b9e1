#![allow(unsafe_code)]
//! Image files by an attacker that knows the format and recomputes every checksum: each is refused, or read as it
//! claims; nothing panics, and nothing takes more memory than a chunk needs.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use cowslip::image::{Checksum, Compression, Image, MergeOptions, SaveOptions, merge, save};
use cowslip::units::{ByteCount, CHUNK_BYTES};
use cowslip::{Arena, ErrorKind};
use support::images::{Folder, proceed};
use support::{Scatter, scaled};

/// The system's allocator, which records its largest request.
struct Watched;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

const ENTRY: usize = 64;

fn u64_at(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}

fn checksum(bytes: &mut [u8], of: Range<usize>, at: usize) {
    let checksum = Checksum::from_bytes(bytes.get(of).unwrap_or_default());
    bytes[at..at + 16].copy_from_slice(&checksum.0);
}

/// The places of the description and the index (docs/image-format.md).
fn sections(bytes: &[u8]) -> [Range<usize>; 2] {
    let (text, index) = (u64_at(bytes, 72), u64_at(bytes, 104));
    [text..text + u64_at(bytes, 80), index..index + u64_at(bytes, 112) * ENTRY]
}

/// Corrects all checksums except those of contents.
fn sign(bytes: &mut [u8], sections: &[Range<usize>; 2]) {
    let [text, index] = sections.clone();
    for entry in index.clone().step_by(ENTRY) {
        let start = u64_at(bytes, entry + 16);
        let length = u32::from_le_bytes(bytes[entry + 12..entry + 16].try_into().unwrap());
        let map = if bytes[entry + 9] == 1 { 64 } else { 0 };
        let end = start.saturating_add(length as usize + map);
        checksum(bytes, start..end, entry + 48);
    }
    checksum(bytes, text, 88);
    checksum(bytes, index, 120);
    checksum(bytes, 0..240, 240);
}

/// Opens and verifies an image, and with `merges` merges and compares it; returns true if it was
/// refused.
fn is_refused(path: &Path, out: &Path, merges: bool) -> bool {
    LARGEST.store(0, Relaxed);
    let read = || -> cowslip::Result<()> {
        let image = Image::open(path)?;
        image.verify(&mut proceed)?;
        if !merges {
            return Ok(());
        }
        merge(&image, out, &MergeOptions { threads: 1, ..MergeOptions::default() }, &mut proceed)?;
        assert!(image.diff(&Image::open(out)?, &mut proceed)?.is_empty());
        Ok(())
    };
    let answer = read();
    let largest = LARGEST.load(Relaxed);
    assert!(largest <= CHUNK_BYTES + 8192, "{largest} bytes at once");
    if let Err(error) = &answer {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
    answer.is_err()
}

#[test]
fn files_that_lie_are_refused_or_read_as_they_say() {
    let folder = Folder::new("hostile");
    let [path, out] = ["image", "out"].map(|name| folder.file(name));
    let arena = Arena::new(ByteCount::mib(16)).unwrap();
    let mut slice = arena.slice::<u64>(4 * CHUNK_BYTES / 8).unwrap();
    for page in [0, 3, 400, 512, 700, 1500, 2047] {
        slice[page * 512..][..500].iter_mut().enumerate().for_each(|(i, word)| *word = i as u64);
    }
    let frozen = arena.freeze().unwrap();
    let mut scatter = Scatter(77);
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd(3)] {
        let options = SaveOptions { compression, threads: 1, ..SaveOptions::default() };
        save(&[&frozen], &path, &options, &mut proceed).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let places = sections(&whole);
        let mut signed = whole.clone();
        sign(&mut signed, &places);
        assert!(signed == whole, "the test signs as a save does");
        let mut refused = 0;
        let rounds = scaled(600);
        for round in 0..rounds {
            let mut bytes = whole.clone();
            let part = match round % 4 {
                0 => 0..256,
                1 => places[0].clone(),
                2 => places[1].clone(),
                _ => 4096..places[0].start,
            };
            for _ in 0..1 + scatter.next() % 3 {
                let at = part.start + scatter.next() as usize % part.len();
                bytes[at] = match scatter.next() % 4 {
                    0 => 0,
                    1 => 0xff,
                    2 => bytes[at].wrapping_add(1),
                    _ => bytes[at] ^ 1 << (scatter.next() % 8),
                };
            }
            sign(&mut bytes, &places);
            std::fs::write(&path, &bytes).unwrap();
            refused += usize::from(is_refused(&path, &out, round % 16 < 4));
        }
        // Some changes hit unread bytes, or give something as valid: another time, name or pointer.
        assert!(refused > rounds / 3 && refused < rounds, "{compression}: {refused} of {rounds}");
    }
}
