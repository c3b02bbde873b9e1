//! A chunk's 2 MiB and the bytes that are stored for them.

use super::format::{Checksum, Damage, Encoding, Entry, PAGE_BYTES, PAGE_MAP_BYTES, PAGES};
use crate::units::CHUNK_BYTES;

/// A chunk is stored with a page map if that saves this part of it.
const WORTHWHILE: usize = PAGES / 8;

/// A chunk as it is to be stored.
#[derive(Debug)]
pub(super) struct Encoded {
    pub(super) content: Checksum,
    pub(super) encoding: Encoding,
    pub(super) pages: u16,
    pub(super) has_page_map: bool,
    /// The stored bytes, then the page map.
    pub(super) bytes: Vec<u8>,
}

/// The checksum of a chunk that is all zeroes.
pub(super) fn zero_content() -> Checksum {
    static ZEROES: [u8; CHUNK_BYTES] = [0; CHUNK_BYTES];
    static OF_ZEROES: std::sync::OnceLock<Checksum> = std::sync::OnceLock::new();
    *OF_ZEROES.get_or_init(|| Checksum::of(&ZEROES))
}

pub(super) fn is_zero(page: &[u8]) -> bool {
    page.iter().fold(0, |or, &byte| or | byte) == 0
}

impl Encoded {
    pub(super) fn zero() -> Self {
        Self {
            content: zero_content(),
            encoding: Encoding::Zero,
            pages: 0,
            has_page_map: false,
            bytes: Vec::new(),
        }
    }

    /// `content`: 2 MiB.
    pub(super) fn of(content: &[u8]) -> Self {
        let mut map = [0u8; PAGE_MAP_BYTES];
        let mut pages = 0;
        for (i, _) in
            content.chunks_exact(PAGE_BYTES).enumerate().filter(|(_, page)| !is_zero(page))
        {
            map[i / 8] |= 1 << (i % 8);
            pages += 1;
        }
        if pages == 0 {
            return Self::zero();
        }
        let has_page_map = PAGES - pages >= WORTHWHILE;
        let mut bytes = Vec::with_capacity(CHUNK_BYTES.min(pages * PAGE_BYTES + PAGE_MAP_BYTES));
        if has_page_map {
            let all = content.chunks_exact(PAGE_BYTES).enumerate();
            all.filter(|(i, _)| is_set(&map, *i))
                .for_each(|(_, page)| bytes.extend_from_slice(page));
            bytes.extend_from_slice(&map);
        } else {
            bytes.extend_from_slice(content);
            pages = PAGES;
        }
        let content = Checksum::of(content);
        Self { content, encoding: Encoding::Plain, pages: pages as u16, has_page_map, bytes }
    }

    /// Its place in the index, stored at an offset.
    pub(super) fn entry(&self, arena: u32, chunk: u32, offset_bytes: u64) -> Entry {
        let map_bytes = if self.has_page_map { PAGE_MAP_BYTES } else { 0 };
        Entry {
            arena,
            chunk,
            encoding: self.encoding,
            has_page_map: self.has_page_map,
            pages: self.pages,
            stored_bytes: (self.bytes.len() - map_bytes) as u32,
            offset_bytes,
            content: self.content,
            stored: Checksum::of(&self.bytes),
        }
    }
}

fn is_set(map: &[u8], page: usize) -> bool {
    map[page / 8] & 1 << (page % 8) != 0
}

/// Decodes what is stored for `entry` into `content`, 2 MiB, after checking both.
pub(super) fn decode(entry: &Entry, stored: &[u8], content: &mut [u8]) -> Result<(), Damage> {
    let damage = |what| Damage { offset_bytes: entry.offset_bytes, what };
    if Checksum::of(stored) != entry.stored {
        return Err(damage("a chunk's checksum is wrong"));
    }
    let (pages, map) = stored.split_at(entry.stored_bytes as usize);
    match entry.encoding {
        Encoding::Zero => content.fill(0),
        Encoding::Plain if entry.has_page_map => {
            let mut pages = pages.chunks_exact(PAGE_BYTES);
            for (i, page) in content.chunks_exact_mut(PAGE_BYTES).enumerate() {
                if is_set(map, i) {
                    let stored = pages.next().ok_or(damage("a page map has too many pages"))?;
                    page.copy_from_slice(stored);
                } else {
                    page.fill(0);
                }
            }
        }
        Encoding::Plain => content.copy_from_slice(pages),
        Encoding::Zstd | Encoding::Lz4 => {
            return Err(damage("compressed chunks are not supported by this version"));
        }
    }
    if Checksum::of(content) != entry.content {
        return Err(damage("a chunk's content is not what was saved"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(pages: &[usize]) -> Vec<u8> {
        let mut content = vec![0; CHUNK_BYTES];
        pages.iter().for_each(|&page| content[page * PAGE_BYTES + page % PAGE_BYTES] = 1);
        content
    }

    #[test]
    fn what_was_encoded_is_decoded_and_zeroes_take_no_room() {
        let most: Vec<usize> = (0..500).collect();
        for (pages, bytes) in [
            (vec![], 0),
            (vec![511], PAGE_BYTES + PAGE_MAP_BYTES),
            (vec![0, 7, 8, 300], 4 * PAGE_BYTES + PAGE_MAP_BYTES),
            (most, CHUNK_BYTES),
        ] {
            let content = around(&pages);
            let encoded = Encoded::of(&content);
            assert_eq!(encoded.bytes.len(), bytes);
            let entry = encoded.entry(0, 0, 4096);
            let mut decoded = vec![9; CHUNK_BYTES];
            decode(&entry, &encoded.bytes, &mut decoded).unwrap();
            assert!(decoded == content);
        }
    }

    #[test]
    fn any_flipped_bit_is_found() {
        let encoded = Encoded::of(&around(&[3, 400]));
        let entry = encoded.entry(0, 0, 4096);
        let mut decoded = vec![0; CHUNK_BYTES];
        for bit in (0..encoded.bytes.len() * 8).step_by(101) {
            let mut bytes = encoded.bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&entry, &bytes, &mut decoded).is_err(), "bit {bit}");
        }
    }
}
