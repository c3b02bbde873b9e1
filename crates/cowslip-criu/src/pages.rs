//! The pages of a dump: `pages-N.img`, plain or in LZ4 blocks as CRIU writes them since 4.3.
//!
//! The blocks of an entry follow each other without gaps. One without bytes is zeroes, and one as long as its pages is
//! plain.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use cowslip::{Error, ErrorKind, Result};
use cowslip_sys::error::file_error;
use cowslip_sys::regular;
use lz4_flex::block::decompress_into;
use prost::Message;

pub(crate) const PAGE_BYTES: u64 = 4096;
/// CRIU's longest block, in pages; also of plain pages that are read at once.
const MOST_BLOCK_PAGES: u64 = 1024;
const OPERATION: &str = "read a dump's pages";

/// The compression of an entry's pages.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Blocks {
    #[prost(uint32, repeated, tag = "1")]
    sizes: Vec<u32>,
    #[prost(uint64, required, tag = "2")]
    bytes: u64,
    #[prost(uint32, required, tag = "3")]
    pages_per_block: u32,
}

impl Blocks {
    /// Returns true if these are the blocks of a number of pages.
    pub(crate) fn are_of(&self, pages: u64) -> bool {
        let per_block = u64::from(self.pages_per_block);
        if !(1..=MOST_BLOCK_PAGES).contains(&per_block)
            || self.sizes.len() as u64 != pages.div_ceil(per_block)
        {
            return false;
        }
        let starts = (0..).map(|i| i * per_block);
        let mut blocks = self.sizes.iter().zip(starts);
        let fits = |(size, start): (&u32, u64)| {
            u64::from(*size) <= per_block.min(pages - start) * PAGE_BYTES
        };
        blocks.all(fits)
            && self.sizes.iter().map(|size| u64::from(*size)).sum::<u64>() == self.bytes
    }
}

/// Pages of a process that stand one after the other in its `pages-N.img`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stretch {
    /// The first page's number: its address in pages.
    pub(crate) page: u64,
    /// The number of pages.
    pub(crate) pages: u64,
    /// The place in the file, in bytes.
    pub(crate) at: u64,
    /// True if `criu lazy-pages` may bring them; otherwise `criu restore` reads them itself.
    pub(crate) is_lazy: bool,
    /// `None` for plain pages.
    pub(crate) blocks: Option<Blocks>,
}

impl Stretch {
    /// The end of its place in the file.
    pub(crate) fn end(&self) -> u64 {
        self.at + self.blocks.as_ref().map_or(self.pages * PAGE_BYTES, |blocks| blocks.bytes)
    }

    /// The parts of the file that have its content, in order. What is in none of them is zeroes.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Piece> {
        let blocks = self.blocks.as_ref();
        let per_block = blocks.map_or(MOST_BLOCK_PAGES, |blocks| blocks.pages_per_block.into());
        let (whole, block_bytes) = (self.pages * PAGE_BYTES, per_block * PAGE_BYTES);
        let mut at = self.at;
        let pieces = (0..self.pages.div_ceil(per_block)).map(move |i| {
            let start = i * block_bytes;
            let bytes = block_bytes.min(whole - start);
            let stored = blocks.map_or(bytes, |blocks| blocks.sizes[i as usize].into());
            at += stored;
            Piece { start, bytes: bytes as usize, at: at - stored, stored: stored as usize }
        });
        pieces.filter(|piece| piece.stored > 0)
    }
}

/// A part of a file of pages that is read at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// The distance of its content from the stretch's beginning.
    pub(crate) start: u64,
    /// The length of its content.
    pub(crate) bytes: usize,
    at: u64,
    stored: usize,
}

/// A file of pages that is open.
pub(crate) struct Pages {
    path: PathBuf,
    file: File,
    /// A block before it is decompressed.
    stored: Vec<u8>,
}

impl Pages {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = regular::open(path).map_err(|error| file_error(OPERATION, path, error))?;
        Ok(Self { path: path.to_owned(), file, stored: Vec::new() })
    }

    /// Reads a piece's content into as many bytes.
    pub(crate) fn read(&mut self, piece: &Piece, to: &mut [u8]) -> Result<()> {
        let of_file = |error| file_error(OPERATION, &self.path, error);
        if piece.stored == piece.bytes {
            return self.file.read_exact_at(to, piece.at).map_err(of_file);
        }
        self.stored.resize(piece.stored, 0);
        self.file.read_exact_at(&mut self.stored, piece.at).map_err(of_file)?;
        match decompress_into(&self.stored, to) {
            Ok(bytes) if bytes == piece.bytes => Ok(()),
            _ => {
                let why = format!("its LZ4 block at byte {} is damaged", piece.at);
                Err(Error::new(ErrorKind::Corrupt, OPERATION).of_file(&self.path).because(why))
            }
        }
    }
}
