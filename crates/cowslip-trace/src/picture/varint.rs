//! Columns of small numbers, compressed as they grow: seven bits a byte, the least significant first.

use std::io::{BufReader, BufWriter, Read, Write};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;

/// A column being written.
pub(super) struct Column {
    packed: BufWriter<ZlibEncoder<Vec<u8>>>,
    last: u64,
}

/// A column being read.
pub(super) struct Numbers<'a>(BufReader<ZlibDecoder<&'a [u8]>>);

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

impl<'a> Numbers<'a> {
    /// The numbers of a finished column.
    pub(super) fn of(packed: &'a [u8]) -> Self {
        Self(BufReader::new(ZlibDecoder::new(packed)))
    }

    pub(super) fn number(&mut self) -> u64 {
        let mut value = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte();
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }

    pub(super) fn number_from(&mut self, base: u64) -> u64 {
        let number = self.number();
        base.wrapping_add((number >> 1) ^ (number & 1).wrapping_neg())
    }

    pub(super) fn byte(&mut self) -> u8 {
        let mut byte = [0];
        self.0.read_exact(&mut byte).expect("what a column was given is in it");
        byte[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_were_written() {
        let mut column = Column::default();
        column.push(300);
        column.push_near(5);
        column.push_near(3);
        column.push_from(10, 10);
        column.push_from(u64::MAX, 0);
        column.push(u64::MAX);
        column.push_byte(200);
        let packed = column.finish();
        let mut numbers = Numbers::of(&packed);
        assert_eq!(numbers.number(), 300);
        assert_eq!([numbers.number_from(0), numbers.number_from(5)], [5, 3]);
        assert_eq!([numbers.number_from(10), numbers.number_from(u64::MAX)], [10, 0]);
        assert_eq!((numbers.number(), numbers.byte()), (u64::MAX, 200));
    }

    #[test]
    fn they_take_as_few_bytes_as_they_need() {
        let mut column = Column::default();
        (0..100_000).for_each(|number| column.push_near(number * 4096));
        assert!(column.finish().len() < 1000);
    }
}
