//! A chunk's 2 MiB, and the bytes stored for them.

use cowslip_sys::units::CHUNK_BYTES;

use super::buffer::Buffer;
use super::compression::{Compressor, Decompressor};
use super::format::{Checksum, Damage, Encoding, Entry, PAGE_BYTES, PAGE_MAP_BYTES, PAGES};

/// Pages are left out, and a chunk is compressed, if that saves this part of the bytes that would be stored otherwise.
const WORTHWHILE: usize = 8;

/// The checksum of a chunk of zeroes. Computing it would take longer than the rest of opening an image.
pub(super) const OF_ZEROES: Checksum =
    Checksum(0x7b3e_6abe_1456_fd00_94e2_6d8e_0436_4852_u128.to_le_bytes());

impl Entry {
    /// True for a chunk of zeroes with the right checksums.
    pub(super) fn is_zeroes(&self) -> bool {
        self.encoding == Encoding::Zero
            && self.content == OF_ZEROES
            && self.stored == Checksum::from_bytes(&[])
    }
}

pub(super) fn is_zero(page: &[u8]) -> bool {
    page.iter().fold(0, |or, &byte| or | byte) == 0
}

fn is_set(map: &[u8], page: usize) -> bool {
    map[page / 8] & 1 << (page % 8) != 0
}

/// The state with which one thread encodes.
pub(super) struct Encoder {
    compressor: Compressor,
    gathered: Buffer,
    packed: Buffer,
}

impl Encoder {
    pub(super) fn new(compressor: Compressor) -> Self {
        let packed_bytes = compressor.most_bytes(CHUNK_BYTES).next_multiple_of(PAGE_BYTES);
        // Behind the longest worthwhile result there is room for a page map and for padding.
        Self { compressor, gathered: Buffer::new(CHUNK_BYTES), packed: Buffer::new(packed_bytes) }
    }

    /// Encodes a chunk: returns its entry, except for arena, chunk and offset, and its bytes in the file, padded to
    /// whole pages. `content` is 2 MiB, or empty for zeroes, and `checksum` is its checksum.
    pub(super) fn encode<'a>(
        &'a mut self,
        content: &'a [u8],
        checksum: Checksum,
    ) -> (Entry, &'a [u8]) {
        let mut map = [0u8; PAGE_MAP_BYTES];
        let mut pages = 0;
        for (i, page) in content.chunks_exact(PAGE_BYTES).enumerate() {
            if !is_zero(page) {
                map[i / 8] |= 1 << (i % 8);
                pages += 1;
            }
        }
        let mut entry = Entry { content: checksum, stored: checksum, ..Entry::ZERO };
        if pages == 0 {
            return (Entry { stored: Checksum::from_bytes(&[]), ..entry }, &[]);
        }
        entry.has_page_map = PAGES - pages >= PAGES / WORTHWHILE;
        let plain = if entry.has_page_map {
            let set =
                content.chunks_exact(PAGE_BYTES).enumerate().filter(|(i, _)| is_set(&map, *i));
            for ((_, page), place) in set.zip(self.gathered.chunks_exact_mut(PAGE_BYTES)) {
                place.copy_from_slice(page);
            }
            &self.gathered[..pages * PAGE_BYTES]
        } else {
            pages = PAGES;
            content
        };
        entry.pages = pages as u16;
        let most_bytes = plain.len() - plain.len() / WORTHWHILE;
        let packed = self.compressor.pack(plain, &mut self.packed);
        let packed = packed.filter(|(_, length)| *length <= most_bytes);
        let (encoding, length) = packed.unwrap_or((Encoding::Plain, plain.len()));
        (entry.encoding, entry.stored_bytes) = (encoding, length as u32);
        if entry.is_verbatim() {
            return (entry, content);
        }
        let place = if packed.is_some() { &mut self.packed } else { &mut self.gathered };
        let total = entry.total_bytes() as usize;
        if entry.has_page_map {
            place[length..total].copy_from_slice(&map);
        }
        entry.stored = Checksum::from_bytes(&place[..total]);
        let padded = total.next_multiple_of(PAGE_BYTES);
        place[total..padded].fill(0);
        (entry, &place[..padded])
    }
}

/// The state with which one thread decodes. It holds no more than a chunk's largest stored form and its content.
#[derive(Default)]
pub(super) struct Scratch {
    stored: Vec<u8>,
    pages: Vec<u8>,
    decompressor: Decompressor,
}

impl Scratch {
    /// The buffer for the stored bytes of `entry`, to be filled before [`decode`].
    pub(super) fn place<'a>(&'a mut self, entry: &Entry, content: &'a mut [u8]) -> &'a mut [u8] {
        if entry.is_verbatim() {
            return content;
        }
        self.stored.resize(entry.total_bytes() as usize, 0);
        &mut self.stored
    }
}

/// Decodes the bytes read to [`Scratch::place`] into `content`, 2 MiB, after checking both.
pub(super) fn decode(
    entry: &Entry,
    scratch: &mut Scratch,
    content: &mut [u8],
) -> Result<(), Damage> {
    let damage = |what| Damage { offset_bytes: entry.offset_bytes, what };
    let check = |holds, what| if holds { Ok(()) } else { Err(damage(what)) };
    let same_content = |content: &[u8]| {
        let holds = Checksum::from_bytes(content) == entry.content;
        check(holds, "a chunk's content is not what was saved")
    };
    if entry.is_verbatim() {
        check(entry.stored == entry.content, "a chunk's checksums contradict each other")?;
        return same_content(content);
    }
    let Scratch { stored, pages, decompressor } = scratch;
    check(Checksum::from_bytes(stored) == entry.stored, "a chunk's checksum is wrong")?;
    if entry.encoding == Encoding::Zero {
        check(entry.content == OF_ZEROES, "a chunk's content is not what was saved")?;
        content.fill(0);
        return Ok(());
    }
    let (stored, map) = stored.split_at(entry.stored_bytes as usize);
    let mut unpack = |bytes: &mut [u8]| {
        let is_whole = decompressor.unpack(entry.encoding, stored, bytes);
        check(is_whole, "a compressed chunk cannot be decompressed")
    };
    if !entry.has_page_map {
        unpack(content)?;
        return same_content(content);
    }
    let pages = if entry.encoding == Encoding::Plain {
        stored
    } else {
        pages.resize(usize::from(entry.pages) * PAGE_BYTES, 0);
        unpack(pages)?;
        pages
    };
    let mut pages = pages.chunks_exact(PAGE_BYTES);
    for (i, place) in content.chunks_exact_mut(PAGE_BYTES).enumerate() {
        if is_set(map, i) {
            let page = pages.next().ok_or(damage("a page map has too many pages"))?;
            place.copy_from_slice(page);
        } else {
            place.fill(0);
        }
    }
    check(pages.next().is_none(), "a page map has too few pages")?;
    same_content(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::compression::Compression;

    const ALL: [Compression; 3] = [Compression::None, Compression::Lz4, Compression::Zstd(3)];

    /// A chunk with one byte set on each of these pages.
    fn around(pages: &[usize]) -> Vec<u8> {
        let mut content = vec![0; CHUNK_BYTES];
        pages.iter().for_each(|&page| content[page * PAGE_BYTES + page % PAGE_BYTES] = 1);
        content
    }

    /// Bytes that nothing compresses.
    fn noise() -> Vec<u8> {
        let mut state = 1u64;
        let next = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..CHUNK_BYTES).map(next).collect()
    }

    fn encoded(content: &[u8], compression: Compression) -> (Entry, Vec<u8>) {
        let mut encoder = Encoder::new(Compressor::new(compression).unwrap());
        let (entry, bytes) = encoder.encode(content, Checksum::from_bytes(content));
        (Entry { offset_bytes: 4096, ..entry }, bytes.to_vec())
    }

    fn decoded(entry: &Entry, bytes: &[u8]) -> Result<Vec<u8>, Damage> {
        let mut scratch = Scratch::default();
        let mut content = vec![9; CHUNK_BYTES];
        let length = entry.total_bytes() as usize;
        scratch.place(entry, &mut content).copy_from_slice(&bytes[..length]);
        decode(entry, &mut scratch, &mut content).map(|()| content)
    }

    #[test]
    fn the_checksum_of_zeroes_is_right() {
        assert_eq!(OF_ZEROES, Checksum::from_bytes(&vec![0; CHUNK_BYTES]));
    }

    #[test]
    fn what_was_encoded_is_decoded_and_zeroes_take_no_room() {
        let most: Vec<usize> = (0..500).collect();
        for compression in ALL {
            for (pages, plain_bytes) in [
                (vec![], 0),
                (vec![511], PAGE_BYTES + PAGE_MAP_BYTES),
                (vec![0, 7, 8, 300], 4 * PAGE_BYTES + PAGE_MAP_BYTES),
                (most.clone(), CHUNK_BYTES),
            ] {
                let content = around(&pages);
                let (entry, bytes) = encoded(&content, compression);
                let length = entry.total_bytes() as usize;
                assert_eq!(bytes.len(), length.next_multiple_of(PAGE_BYTES));
                assert!(bytes[length..].iter().all(|&byte| byte == 0), "the padding");
                match compression {
                    Compression::None => assert_eq!(length, plain_bytes),
                    _ => assert!(length <= plain_bytes / 5, "{compression}: {length}"),
                }
                assert!(decoded(&entry, &bytes).unwrap() == content);
            }
        }
    }

    #[test]
    fn what_does_not_compress_is_stored_plain() {
        let mut content = noise();
        for compression in ALL {
            let (entry, bytes) = encoded(&content, compression);
            assert_eq!((entry.encoding, bytes.len()), (Encoding::Plain, CHUNK_BYTES));
            assert!(decoded(&entry, &bytes).unwrap() == content);
        }
        content[CHUNK_BYTES / 2..].fill(0);
        for compression in ALL {
            let (entry, bytes) = encoded(&content, compression);
            assert_eq!((entry.encoding, entry.has_page_map), (Encoding::Plain, true));
            assert!(decoded(&entry, &bytes).unwrap() == content);
        }
    }

    #[test]
    fn any_flipped_bit_is_found() {
        let sparse = ALL.map(|compression| (compression, around(&[3, 400])));
        for (compression, content) in sparse.into_iter().chain([(ALL[0], noise())]) {
            let (entry, bytes) = encoded(&content, compression);
            let bits = entry.total_bytes() as usize * 8;
            for bit in (0..bits).step_by(bits / 300 + 1) {
                let mut bytes = bytes.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(decoded(&entry, &bytes).is_err(), "{compression}: bit {bit}");
            }
        }
    }

    /// A forger of checksums causes an error, and no more memory use than a chunk has.
    #[test]
    fn entries_that_lie_about_their_bytes_are_refused() {
        let whole: Vec<usize> = (0..PAGES).collect();
        for compression in [Compression::Lz4, Compression::Zstd(3)] {
            for pages in [&[3, 400][..], &whole] {
                let (entry, bytes) = encoded(&around(pages), compression);
                let refused = |entry: Entry, bytes: &[u8]| {
                    let length = entry.total_bytes() as usize;
                    let stored = Checksum::from_bytes(&bytes[..length]);
                    decoded(&Entry { stored, ..entry }, bytes).unwrap_err();
                };
                let other =
                    if entry.encoding == Encoding::Lz4 { Encoding::Zstd } else { Encoding::Lz4 };
                refused(Entry { encoding: other, ..entry }, &bytes);
                refused(Entry { pages: entry.pages - 1, has_page_map: true, ..entry }, &bytes);
                refused(Entry { stored_bytes: entry.stored_bytes - 1, ..entry }, &bytes);
                refused(Entry { content: Checksum::from_bytes(&[1]), ..entry }, &bytes);
                let mut scatter = 7usize;
                for _ in 0..300 {
                    let mut bytes = bytes.clone();
                    scatter = scatter.wrapping_mul(0x5851_f42d).wrapping_add(0x1405_7b7f);
                    bytes[scatter % entry.stored_bytes as usize] ^= 1 << (scatter % 8);
                    // It may decompress to the same content in another way.
                    let stored = Checksum::from_bytes(&bytes[..entry.total_bytes() as usize]);
                    if let Ok(content) = decoded(&Entry { stored, ..entry }, &bytes) {
                        assert!(content == around(pages));
                    }
                }
            }
        }
    }
}
