//! Columns of small numbers, compressed as they grow: seven bits a byte, the least significant first.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;

use crate::file::{put, put_difference};

/// Bytes that are compressed at a time.
const PIECE_BYTES: usize = 8192;

/// A column being written.
pub(super) struct Column {
    packed: ZlibEncoder<Vec<u8>>,
    rest: Vec<u8>,
    last: u64,
}

impl Default for Column {
    fn default() -> Self {
        let packed = ZlibEncoder::new(Vec::new(), Compression::default());
        Self { packed, rest: Vec::new(), last: 0 }
    }
}

impl Column {
    /// Appends a number as it is.
    pub(super) fn push(&mut self, value: u64) {
        put(&mut self.rest, value);
        self.spill(PIECE_BYTES);
    }

    /// Appends a number as the distance from the one before, with the sign in the lowest bit.
    pub(super) fn push_near(&mut self, value: u64) {
        self.push_from(self.last, value);
        self.last = value;
    }

    /// Appends a number as the distance from `base`, which the reader knows.
    pub(super) fn push_from(&mut self, base: u64, value: u64) {
        put_difference(&mut self.rest, base, value);
        self.spill(PIECE_BYTES);
    }

    /// Appends a byte as it is.
    pub(super) fn push_byte(&mut self, byte: u8) {
        self.rest.push(byte);
        self.spill(PIECE_BYTES);
    }

    /// Compresses the rest if it has that many bytes.
    fn spill(&mut self, least_bytes: usize) {
        if self.rest.len() >= least_bytes {
            self.packed.write_all(&self.rest).expect("memory takes all");
            self.rest.clear();
        }
    }

    /// The column as a zlib stream.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.spill(0);
        self.packed.finish().expect("memory takes all")
    }
}
