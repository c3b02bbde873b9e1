//! Stores which chunks a program touched first, in order: in a file beside the image, in the layout
//! of `docs/image-format.md`.
//!
//! It is advice. A file that is missing, damaged, or of another image counts as none.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use cowslip_sys::atomic_file::DurableFile;
use cowslip_sys::error::{Result, file_error};
use cowslip_sys::regular;

use crate::image::Image;
use crate::image::bytes::{Record, field, u32_at, u64_at};
use crate::image::format::{Checksum, Identity};

const MAGIC: [u8; 8] = *b"COWSLIPW";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 64;
const ENTRY_BYTES: usize = 8;

/// First touches by arena.
type Touches = BTreeMap<u32, Vec<u32>>;

/// The path of the working set of an image.
pub(super) fn file_of(image: &Path) -> PathBuf {
    let mut name: OsString = image.into();
    name.push(".working-set");
    name.into()
}

/// The first touches of one arena of an image, if they are known.
pub(super) fn load(image: &Image, arena: u32) -> Vec<u32> {
    known(image).remove(&arena).unwrap_or_default()
}

fn known(image: &Image) -> Touches {
    let bytes = match image.storage.source() {
        Some(source) => source.read_working_set(),
        None => regular::read(&file_of(image.path())).ok(),
    };
    bytes.and_then(|bytes| decode(&bytes, image.identity())).unwrap_or_default()
}

/// Replaces the known touches of one arena of an image.
pub(super) fn save(image: &Image, arena: u32, touched: &[u32]) -> Result<()> {
    let mut touches = known(image);
    touches.insert(arena, touched.to_vec());
    let bytes = encode(&touches, image.identity());
    if let Some(source) = image.storage.source() {
        return source.write_working_set(&bytes);
    }
    let file = file_of(image.path());
    let written = DurableFile::create(&file).and_then(|durable| {
        durable.write_at(&bytes, 0)?;
        durable.commit()
    });
    written.map_err(|error| file_error("write a working set", &file, error))
}

fn encode(touches: &Touches, image: Identity) -> Vec<u8> {
    let entries: Vec<u8> = touches
        .iter()
        .flat_map(|(arena, chunks)| chunks.iter().flat_map(|chunk| [*arena, *chunk]))
        .flat_map(u32::to_le_bytes)
        .collect();
    let mut header = Record::<HEADER_BYTES>::new();
    header.set(0, MAGIC);
    header.set(8, VERSION.to_le_bytes());
    header.set(12, (HEADER_BYTES as u32).to_le_bytes());
    header.set(16, image.0);
    header.set(32, ((entries.len() / ENTRY_BYTES) as u64).to_le_bytes());
    let checksum = checksum(&header.0, &entries);
    header.set(48, checksum.0);
    [&header.0[..], &entries].concat()
}

fn checksum(header: &[u8], entries: &[u8]) -> Checksum {
    Checksum::from_bytes(&[&header[..48], entries].concat())
}

fn decode(bytes: &[u8], image: Identity) -> Option<Touches> {
    let (header, entries) = bytes.split_at_checked(HEADER_BYTES)?;
    let is_right = header[..8] == MAGIC
        && u32_at(header, 8) == VERSION
        && u32_at(header, 12) == HEADER_BYTES as u32
        && field(header, 16) == image.0
        && u64_at(header, 32).checked_mul(ENTRY_BYTES as u64) == Some(entries.len() as u64)
        && checksum(header, entries).0 == field(header, 48);
    let mut touches = Touches::new();
    for entry in is_right.then_some(entries)?.chunks_exact(ENTRY_BYTES) {
        touches.entry(u32_at(entry, 0)).or_default().push(u32_at(entry, 4));
    }
    Some(touches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_of_one_image_and_whole_or_as_none() {
        let touches = Touches::from([(0, vec![7, 3, 9]), (2, vec![1])]);
        let (image, other) = (Identity([7; 16]), Identity([8; 16]));
        let bytes = encode(&touches, image);
        assert_eq!(decode(&bytes, image), Some(touches));
        assert_eq!(decode(&bytes, other), None);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&damaged, image), None, "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert_eq!(decode(&bytes[..length], image), None, "{length} bytes of it");
        }
    }
}
