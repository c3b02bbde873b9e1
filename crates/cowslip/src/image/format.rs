//! The header and the index of an image, in the layout of `docs/image-format.md`.
//!
//! Pure: bytes in, values or an error out. Nothing here allocates more than the bytes that it is given, and no length
//! is trusted before it is checked.

use std::fmt;
use std::ops::Range;

use cowslip_sys::units::CHUNK_BYTES;
use twox_hash::XxHash3_128;

use super::bytes::{Record, field, u16_at, u32_at, u64_at};

pub(crate) const MAGIC: [u8; 8] = *b"COWSLIPI";
/// The first bytes of a trace (docs/trace-format.md).
const TRACE_MAGIC: [u8; 8] = *b"COWSLIPT";
const VERSION: u32 = 1;
pub(crate) const HEADER_BYTES: usize = 256;
pub(crate) const ENTRY_BYTES: usize = 64;
/// Stored chunks begin at multiples of this, and pages have this length.
pub(crate) const PAGE_BYTES: usize = 4096;
pub(crate) const PAGES: usize = CHUNK_BYTES / PAGE_BYTES;
pub(crate) const PAGE_MAP_BYTES: usize = PAGES / 8;
pub(crate) const DESCRIPTION_MOST_BYTES: u64 = 16 << 20;

/// XXH3 of 128 bits: it finds damage, not forgery.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Checksum(pub [u8; 16]);

impl Checksum {
    /// The checksum of some bytes.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(XxHash3_128::oneshot(bytes).to_le_bytes())
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().rev().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A random number that identifies an image.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Identity(pub [u8; 16]);

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A fault of a file, and its offset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Damage {
    pub(crate) offset_bytes: u64,
    pub(crate) what: &'static str,
}

pub(crate) type Checked<T> = Result<T, Damage>;

fn check(holds: bool, offset_bytes: u64, what: &'static str) -> Checked<()> {
    if holds { Ok(()) } else { Err(Damage { offset_bytes, what }) }
}

/// The first bytes of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Header {
    pub(crate) identity: Identity,
    /// Zeroes mean that the image is complete.
    pub(crate) parent: Identity,
    pub(crate) created_unix_ns: u64,
    pub(crate) description: Section,
    pub(crate) index: Section,
    pub(crate) file_bytes: u64,
}

/// A part of the file with its checksum; `length` counts bytes, or index entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Section {
    pub(crate) offset_bytes: u64,
    pub(crate) length: u64,
    pub(crate) checksum: Checksum,
}

impl Header {
    pub(crate) fn parent(&self) -> Option<Identity> {
        (self.parent != Identity::default()).then_some(self.parent)
    }

    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut record = Record::<HEADER_BYTES>::new();
        record.set(0, MAGIC);
        record.set(8, VERSION.to_le_bytes());
        record.set(12, (HEADER_BYTES as u32).to_le_bytes());
        record.set(16, self.identity.0);
        record.set(32, self.parent.0);
        record.set(56, (CHUNK_BYTES as u32).to_le_bytes());
        record.set(60, (PAGE_BYTES as u32).to_le_bytes());
        record.set(64, self.created_unix_ns.to_le_bytes());
        for (at, section) in [(72, &self.description), (104, &self.index)] {
            record.set(at, section.offset_bytes.to_le_bytes());
            record.set(at + 8, section.length.to_le_bytes());
            record.set(at + 16, section.checksum.0);
        }
        record.set(136, self.file_bytes.to_le_bytes());
        let checksum = Checksum::from_bytes(&record.0[..240]);
        record.set(240, checksum.0);
        record.0
    }

    /// Like [`Self::encode`], padded up to the data.
    pub(crate) fn encode_page(&self) -> [u8; PAGE_BYTES] {
        let mut page = [0; PAGE_BYTES];
        page[..HEADER_BYTES].copy_from_slice(&self.encode());
        page
    }

    /// Decodes a header; `file_bytes` is the length of the file.
    pub(crate) fn decode(bytes: &[u8], file_bytes: u64) -> Checked<Self> {
        check(
            !bytes.starts_with(&TRACE_MAGIC),
            0,
            "this is a trace, no image: `cowslip trace report` reads it",
        )?;
        check(bytes.starts_with(&MAGIC), 0, "this is no Cowslip image")?;
        check(bytes.len() >= HEADER_BYTES, 0, "the file ends inside its header")?;
        let bytes = &bytes[..HEADER_BYTES];
        check(u32_at(bytes, 8) == VERSION, 8, "a version that this program does not know")?;
        let checksum = Checksum::from_bytes(&bytes[..240]);
        check(checksum.0 == field(bytes, 240), 240, "the header's checksum is wrong")?;
        check(u32_at(bytes, 12) == HEADER_BYTES as u32, 12, "a header of another length")?;
        check(u64_at(bytes, 48) == 0, 48, "flags that this program does not know")?;
        check(u32_at(bytes, 56) == CHUNK_BYTES as u32, 56, "chunks of another length")?;
        check(u32_at(bytes, 60) == PAGE_BYTES as u32, 60, "pages of another length")?;
        let section = |at| Section {
            offset_bytes: u64_at(bytes, at),
            length: u64_at(bytes, at + 8),
            checksum: Checksum(field(bytes, at + 16)),
        };
        let header = Self {
            identity: Identity(field(bytes, 16)),
            parent: Identity(field(bytes, 32)),
            created_unix_ns: u64_at(bytes, 64),
            description: section(72),
            index: section(104),
            file_bytes: u64_at(bytes, 136),
        };
        check(header.file_bytes == file_bytes, 136, "the file has another length than it should")?;
        let is_inside = |section: &Section, unit: u64| {
            let length = section.length.checked_mul(unit);
            let end = length.and_then(|length| section.offset_bytes.checked_add(length));
            end.is_some_and(|end| end <= file_bytes)
        };
        let description = &header.description;
        check(is_inside(description, 1), 72, "the description does not lie in the file")?;
        check(description.length <= DESCRIPTION_MOST_BYTES, 80, "the description is too long")?;
        let has_index = is_inside(&header.index, ENTRY_BYTES as u64);
        check(has_index, 104, "the index does not lie in the file")?;
        Ok(header)
    }
}

/// The way in which a chunk is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Encoding {
    /// The chunk is zeroes, though the parent's is not; nothing is stored.
    Zero,
    Plain,
    Zstd,
    Lz4,
}

impl Encoding {
    const ALL: [Self; 4] = [Self::Zero, Self::Plain, Self::Zstd, Self::Lz4];
}

/// A chunk that the image holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) arena: u32,
    pub(crate) chunk: u32,
    pub(crate) encoding: Encoding,
    /// Only the pages in the page map are stored.
    pub(crate) has_page_map: bool,
    pub(crate) pages: u16,
    pub(crate) stored_bytes: u32,
    pub(crate) offset_bytes: u64,
    /// The checksum of the 2 MiB.
    pub(crate) content: Checksum,
    /// The checksum of the stored bytes and the page map.
    pub(crate) stored: Checksum,
}

impl Entry {
    /// A chunk of zeroes, without its arena and its checksums.
    pub(crate) const ZERO: Self = Self {
        arena: 0,
        chunk: 0,
        encoding: Encoding::Zero,
        has_page_map: false,
        pages: 0,
        stored_bytes: 0,
        offset_bytes: PAGE_BYTES as u64,
        content: Checksum([0; 16]),
        stored: Checksum([0; 16]),
    };

    /// The page map lies directly behind the stored bytes. The sum wraps around for a forged entry.
    pub(crate) fn page_map_offset(&self) -> u64 {
        if !self.has_page_map {
            return 0;
        }
        self.offset_bytes.wrapping_add(u64::from(self.stored_bytes))
    }

    /// Returns true if the stored bytes are the content, byte for byte.
    pub(crate) fn is_verbatim(&self) -> bool {
        self.encoding == Encoding::Plain && !self.has_page_map
    }

    /// The length of the stored bytes and the page map.
    pub(crate) fn total_bytes(&self) -> u64 {
        u64::from(self.stored_bytes) + if self.has_page_map { PAGE_MAP_BYTES as u64 } else { 0 }
    }

    /// The place of both.
    pub(crate) fn range(&self) -> Range<u64> {
        self.offset_bytes..self.offset_bytes + self.total_bytes()
    }

    pub(crate) fn encode(&self) -> [u8; ENTRY_BYTES] {
        let mut record = Record::<ENTRY_BYTES>::new();
        record.set(0, self.arena.to_le_bytes());
        record.set(4, self.chunk.to_le_bytes());
        record.set(8, [self.encoding as u8, u8::from(self.has_page_map)]);
        record.set(10, self.pages.to_le_bytes());
        record.set(12, self.stored_bytes.to_le_bytes());
        record.set(16, self.offset_bytes.to_le_bytes());
        record.set(24, self.page_map_offset().to_le_bytes());
        record.set(32, self.content.0);
        record.set(48, self.stored.0);
        record.0
    }

    /// Decodes an entry at the offset `at` of the file. The index's checksum has been verified.
    fn decode(bytes: &[u8], at: u64) -> Checked<Self> {
        let encoding = Encoding::ALL.get(usize::from(bytes[8])).copied();
        let encoding =
            encoding.ok_or(Damage { offset_bytes: at + 8, what: "an unknown encoding" })?;
        check(bytes[9] <= 1, at + 9, "an unknown layout")?;
        let entry = Self {
            arena: u32_at(bytes, 0),
            chunk: u32_at(bytes, 4),
            encoding,
            has_page_map: bytes[9] == 1,
            pages: u16_at(bytes, 10),
            stored_bytes: u32_at(bytes, 12),
            offset_bytes: u64_at(bytes, 16),
            content: Checksum(field(bytes, 32)),
            stored: Checksum(field(bytes, 48)),
        };
        let page_map_offset = u64_at(bytes, 24);
        let pages = usize::from(entry.pages);
        let is_plausible = match entry.encoding {
            Encoding::Zero => pages == 0 && entry.stored_bytes == 0 && !entry.has_page_map,
            Encoding::Plain => entry.stored_bytes as usize == pages * PAGE_BYTES,
            // A chunk that does not shrink is stored plain.
            Encoding::Zstd | Encoding::Lz4 => (entry.stored_bytes as usize) < pages * PAGE_BYTES,
        };
        check(is_plausible, at + 10, "a chunk's lengths contradict each other")?;
        let is_counted = match entry.encoding {
            Encoding::Zero => true,
            _ if entry.has_page_map => pages < PAGES,
            _ => pages == PAGES,
        };
        check(is_counted, at + 10, "a chunk's number of pages is wrong")?;
        let is_placed = entry.offset_bytes.checked_add(entry.total_bytes()).is_some()
            && entry.offset_bytes.is_multiple_of(PAGE_BYTES as u64)
            && page_map_offset == entry.page_map_offset();
        check(is_placed, at + 16, "a chunk lies where none can")?;
        Ok(entry)
    }
}

/// Decodes the index. `chunks` has the number of chunks of each arena.
pub(crate) fn decode_index(bytes: &[u8], header: &Header, chunks: &[u64]) -> Checked<Vec<Entry>> {
    let begin = header.index.offset_bytes;
    check(
        Checksum::from_bytes(bytes) == header.index.checksum,
        begin,
        "the index's checksum is wrong",
    )?;
    let mut entries: Vec<Entry> = Vec::with_capacity(bytes.len() / ENTRY_BYTES);
    for (i, record) in bytes.chunks_exact(ENTRY_BYTES).enumerate() {
        let at = begin + (i * ENTRY_BYTES) as u64;
        let entry = Entry::decode(record, at)?;
        let place = (entry.arena, entry.chunk);
        let follows = entries.last().is_none_or(|last| (last.arena, last.chunk) < place);
        check(follows, at, "the index is not sorted")?;
        let has = chunks.get(entry.arena as usize).copied().unwrap_or(0);
        check(u64::from(entry.chunk) < has, at, "a chunk outside its arena")?;
        let end = entry.offset_bytes + entry.total_bytes();
        let is_data = entry.encoding == Encoding::Zero
            || entry.offset_bytes >= HEADER_BYTES as u64 && end <= header.description.offset_bytes;
        check(is_data, at + 16, "a chunk's bytes lie outside the data")?;
        entries.push(entry);
    }
    check(are_apart(&entries), begin, "two chunks lie in one place")?;
    Ok(entries)
}

/// True if no stored bytes are those of two chunks: then all of them are read in the time that the
/// file takes.
fn are_apart(entries: &[Entry]) -> bool {
    let mut ranges: Vec<_> =
        entries.iter().map(Entry::range).filter(|range| !range.is_empty()).collect();
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.windows(2).all(|pair| pair[0].end <= pair[1].start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let section = |offset_bytes, length| Section {
            offset_bytes,
            length,
            checksum: Checksum::from_bytes(&[length as u8]),
        };
        Header {
            identity: Identity([7; 16]),
            parent: Identity([9; 16]),
            created_unix_ns: 1,
            description: section(12288, 100),
            index: section(12388, 2),
            file_bytes: 12388 + 128,
        }
    }

    fn entry(chunk: u32) -> Entry {
        Entry {
            arena: 0,
            chunk,
            encoding: Encoding::Plain,
            has_page_map: true,
            pages: 1,
            stored_bytes: 4096,
            offset_bytes: 4096 * u64::from(chunk),
            content: Checksum([1; 16]),
            stored: Checksum([2; 16]),
        }
    }

    fn index(entries: &[Entry]) -> (Vec<u8>, Header) {
        let bytes: Vec<u8> = entries.iter().flat_map(Entry::encode).collect();
        let mut header = header();
        header.index.checksum = Checksum::from_bytes(&bytes);
        (bytes, header)
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        let header = header();
        assert_eq!(Header::decode(&header.encode(), header.file_bytes), Ok(header));
        let entries = [Entry { offset_bytes: 4096, ..entry(0) }];
        let (bytes, header) = index(&entries);
        assert_eq!(decode_index(&bytes, &header, &[1]).unwrap(), entries);
    }

    #[test]
    fn another_version_is_refused() {
        let header = header();
        for version in [0, VERSION + 1, u32::MAX] {
            let mut bytes = header.encode();
            bytes[8..12].copy_from_slice(&version.to_le_bytes());
            let checksum = Checksum::from_bytes(&bytes[..240]);
            bytes[240..].copy_from_slice(&checksum.0);
            let refused = Header::decode(&bytes, header.file_bytes).unwrap_err();
            assert_eq!(refused.what, "a version that this program does not know", "{version}");
        }
    }

    #[test]
    fn any_flipped_bit_of_a_header_or_an_index_is_found() {
        let whole = header();
        for bit in 0..HEADER_BYTES * 8 {
            let mut bytes = whole.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&bytes, whole.file_bytes).is_err(), "bit {bit}");
        }
        let (whole, header) = index(&[Entry { offset_bytes: 4096, ..entry(0) }]);
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_index(&bytes, &header, &[1]).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_file_of_another_length_is_refused() {
        let header = header();
        for length in [header.file_bytes - 1, header.file_bytes + 1] {
            assert!(Header::decode(&header.encode(), length).is_err());
        }
        assert!(Header::decode(&header.encode()[..255], header.file_bytes).is_err());
        assert!(Header::decode(b"COWSLIP", header.file_bytes).is_err());
    }

    /// Entries that a matching checksum would let through.
    #[test]
    fn entries_that_contradict_themselves_are_refused() {
        let good = Entry { offset_bytes: 4096, ..entry(0) };
        let bad = [
            Entry { chunk: 5, ..good },
            Entry { arena: 1, ..good },
            Entry { pages: 2, ..good },
            Entry { pages: 513, ..good },
            Entry { pages: 512, stored_bytes: CHUNK_BYTES as u32, ..good },
            Entry { encoding: Encoding::Lz4, ..good },
            Entry { has_page_map: false, ..good },
            Entry { encoding: Encoding::Zero, ..good },
            Entry { encoding: Encoding::Zstd, stored_bytes: u32::MAX, ..good },
            Entry { offset_bytes: 0, ..good },
            Entry { offset_bytes: 4097, ..good },
            Entry { offset_bytes: 8192, ..good },
            Entry { offset_bytes: u64::MAX - 4095, ..good },
        ];
        for entry in bad {
            let (bytes, header) = index(&[entry]);
            assert!(decode_index(&bytes, &header, &[1]).is_err(), "{entry:?}");
        }
        let (bytes, header) = index(&[good, Entry { chunk: 1, ..good }]);
        let refused = decode_index(&bytes, &header, &[2]).unwrap_err();
        assert_eq!(refused.what, "two chunks lie in one place");
        let (bytes, header) = index(&[good, good]);
        assert_eq!(
            decode_index(&bytes, &header, &[1]).unwrap_err().what,
            "the index is not sorted"
        );
    }
}
