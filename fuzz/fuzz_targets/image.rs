//! An image file of any bytes is refused, or read as what it says. Checksums are made right first, so that what they
//! guard is reached.
#![no_main]

use std::io::Write;
use std::ops::Range;

use cowslip::image::{Checksum, Image};
use cowslip::units::CHUNK_BYTES;
use libfuzzer_sys::fuzz_target;

/// Bytes of the header, without its own checksum; where that lies (docs/image-format.md).
const HEADER: Range<usize> = 0..240;

fn number_at(bytes: &[u8], at: usize) -> usize {
    let field = bytes.get(at..at + 8).and_then(|field| field.try_into().ok());
    field.map_or(0, |field| u64::from_le_bytes(field) as usize)
}

/// Puts the checksum of `of` at `at`, if both lie in the file.
fn sign(bytes: &mut [u8], of: Range<usize>, at: usize) {
    let Some(signed) = bytes.get(of).map(Checksum::of) else { return };
    if let Some(place) = bytes.get_mut(at..at + 16) {
        place.copy_from_slice(&signed.0);
    }
}

fuzz_target!(|input: &[u8]| {
    let mut bytes = input.to_vec();
    let (text, text_len) = (number_at(&bytes, 72), number_at(&bytes, 80));
    let (index, entries) = (number_at(&bytes, 104), number_at(&bytes, 112));
    sign(&mut bytes, text..text.saturating_add(text_len), 88);
    sign(&mut bytes, index..index.saturating_add(entries.saturating_mul(64)), 120);
    sign(&mut bytes, HEADER, HEADER.end);
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(&bytes).expect("a file of some bytes");
    let Ok(image) = Image::open(file.path()) else { return };
    let mut chunk = vec![0; CHUNK_BYTES];
    let _ = image.summary();
    for index in 0..8 {
        let _ = image.read_chunk(0, index, &mut chunk);
    }
});
