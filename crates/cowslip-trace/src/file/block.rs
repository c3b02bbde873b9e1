//! Blocks: a head, and content that is compressed if that makes it shorter.

use std::io::{self, Read};

use zstd::bulk::{Compressor, Decompressor};

use super::layout::{BLOCK_MOST_EVENTS, CONTENT_MOST_BYTES, HEAD_BYTES, checksum};
use super::{Checked, check, damage};

/// The fastest level: the recorder should not disturb the program.
const LEVEL: i32 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BlockKind {
    Events = 1,
    Totals = 2,
    Latencies = 3,
}

/// The content of a head, without the lengths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) kind: BlockKind,
    pub(super) events: u32,
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
}

/// Makes blocks.
pub(super) struct Packer {
    zstd: Compressor<'static>,
    block: Vec<u8>,
}

impl Packer {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { zstd: Compressor::new(LEVEL)?, block: Vec::new() })
    }

    /// A whole block, to be written at once.
    pub(super) fn pack(&mut self, head: Head, content: &[u8]) -> io::Result<&[u8]> {
        let bound = zstd::zstd_safe::compress_bound(content.len());
        self.block.resize(HEAD_BYTES + bound, 0);
        let (place, stored) = self.block.split_at_mut(HEAD_BYTES);
        let mut length = self.zstd.compress_to_buffer(content, stored)?;
        if length >= content.len() {
            stored[..content.len()].copy_from_slice(content);
            length = content.len();
        }
        place[..4].copy_from_slice(&(head.kind as u32).to_le_bytes());
        place[4..8].copy_from_slice(&head.events.to_le_bytes());
        place[8..12].copy_from_slice(&(content.len() as u32).to_le_bytes());
        place[12..16].copy_from_slice(&(length as u32).to_le_bytes());
        place[16..24].copy_from_slice(&head.first_ns.to_le_bytes());
        place[24..32].copy_from_slice(&head.last_ns.to_le_bytes());
        place[32..48].copy_from_slice(&checksum(&stored[..length]));
        let sum = checksum(&place[..48]);
        place[48..].copy_from_slice(&sum);
        Ok(&self.block[..HEAD_BYTES + length])
    }
}

/// Reads blocks.
#[derive(Default)]
pub(super) struct Unpacker {
    zstd: Option<Decompressor<'static>>,
    stored: Vec<u8>,
    content: Vec<u8>,
}

impl Unpacker {
    /// The next block and its content; `None` if the input ends before or inside it. Advances `offset_bytes`
    /// from its beginning to its end.
    pub(super) fn unpack(
        &mut self,
        input: &mut impl Read,
        offset_bytes: &mut u64,
    ) -> io::Result<Option<(Head, &[u8])>> {
        let mut bytes = [0; HEAD_BYTES];
        match input.read_exact(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            answer => answer?,
        }
        let at = *offset_bytes;
        let (head, content_bytes, stored_bytes) = head(&bytes).map_err(|what| damage(at, what))?;
        self.stored.clear();
        let read = input.take(stored_bytes.into()).read_to_end(&mut self.stored)?;
        if read < stored_bytes as usize {
            return Ok(None);
        }
        let is_right = checksum(&self.stored) == bytes[32..48];
        check(is_right, "a block's checksum is wrong").map_err(|what| damage(at, what))?;
        *offset_bytes += (HEAD_BYTES + read) as u64;
        if stored_bytes == content_bytes {
            return Ok(Some((head, &self.stored)));
        }
        if self.zstd.is_none() {
            self.zstd = Some(Decompressor::new()?);
        }
        self.content.resize(content_bytes as usize, 0);
        let zstd = self.zstd.as_mut().expect("it was just made");
        let length = zstd.decompress_to_buffer(&self.stored, &mut self.content[..]).ok();
        let is_whole = length == Some(content_bytes as usize);
        check(is_whole, "a block cannot be decompressed").map_err(|what| damage(at, what))?;
        Ok(Some((head, &self.content)))
    }
}

/// A head, the length of the content and the length as stored.
fn head(bytes: &[u8; HEAD_BYTES]) -> Checked<(Head, u32, u32)> {
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    check(checksum(&bytes[..48]) == bytes[48..], "the checksum of a block's head is wrong")?;
    let kind = match u32_at(0) {
        1 => BlockKind::Events,
        2 => BlockKind::Totals,
        3 => BlockKind::Latencies,
        _ => return Err("an unknown kind of block"),
    };
    let head = Head { kind, events: u32_at(4), first_ns: u64_at(16), last_ns: u64_at(24) };
    let (content_bytes, stored_bytes) = (u32_at(8), u32_at(12));
    check(head.events <= BLOCK_MOST_EVENTS, "a block of too many events")?;
    check(content_bytes <= CONTENT_MOST_BYTES, "a block that is too long")?;
    check(stored_bytes <= content_bytes, "a block that is longer than its content")?;
    check(head.first_ns <= head.last_ns, "a block that ends before it begins")?;
    Ok((head, content_bytes, stored_bytes))
}
