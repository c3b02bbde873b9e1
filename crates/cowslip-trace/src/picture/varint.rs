//! Columns of small numbers, compressed as they grow: seven bits a byte, the least significant first.

use std::io::{BufWriter, Write};

use flate2::Compression;
use flate2::write::ZlibEncoder;

/// A column being written.
pub(super) struct Column {
    packed: BufWriter<ZlibEncoder<Vec<u8>>>,
    last: u64,
}

impl Default for Column {
    fn default() -> Self {
        let packed = BufWriter::new(ZlibEncoder::new(Vec::new(), Compression::default()));
        Self { packed, last: 0 }
    }
}

impl Column {
    /// Appends a number as it is.
    pub(super) fn push(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.push_byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.push_byte(value as u8);
    }

    /// Appends a number as the distance from the one before, with the sign in the lowest bit.
    pub(super) fn push_near(&mut self, value: u64) {
        self.push_from(self.last, value);
        self.last = value;
    }

    /// Appends a number as the distance from `base`, which the reader knows.
    pub(super) fn push_from(&mut self, base: u64, value: u64) {
        let distance = value.wrapping_sub(base).cast_signed();
        self.push(((distance << 1) ^ (distance >> 63)).cast_unsigned());
    }

    /// Appends a byte as it is.
    pub(super) fn push_byte(&mut self, byte: u8) {
        self.packed.write_all(&[byte]).expect("memory takes all");
    }

    /// The column as a zlib stream.
    pub(super) fn finish(self) -> Vec<u8> {
        let packed = self.packed.into_inner().map_err(|error| error.into_error());
        packed.and_then(ZlibEncoder::finish).expect("memory takes all")
    }
}
