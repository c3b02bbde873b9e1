//! Numbers of variable length, the elements of columns.

use super::{Checked, check};

/// Appends a number.
pub(crate) fn put(column: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        column.push(value as u8 | 0x80);
        value >>= 7;
    }
    column.push(value as u8);
}

/// Appends the difference from `from` to `to`.
pub(crate) fn put_difference(column: &mut Vec<u8>, from: u64, to: u64) {
    let difference = to.wrapping_sub(from) as i64;
    put(column, (difference << 1 ^ difference >> 63) as u64);
}

/// Appends a text.
pub(super) fn put_text(column: &mut Vec<u8>, text: &str) {
    put(column, text.len() as u64);
    column.extend_from_slice(text.as_bytes());
}

/// A column that is being read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Values<'a>(pub(super) &'a [u8]);

impl<'a> Values<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn byte(&mut self) -> Checked<u8> {
        let (&byte, rest) = self.0.split_first().ok_or("a column is too short")?;
        self.0 = rest;
        Ok(byte)
    }

    pub(super) fn bytes(&mut self, length: u64) -> Checked<&'a [u8]> {
        check(length <= self.0.len() as u64, "a column is too short")?;
        let (bytes, rest) = self.0.split_at(length as usize);
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn number(&mut self) -> Checked<u64> {
        let mut value = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            check(bits << shift >> shift == bits, "a number of more than 64 bits")?;
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("a number of more than 64 bits")
    }

    /// A number of at most 32 bits.
    pub(super) fn small(&mut self) -> Checked<u32> {
        self.number()?.try_into().map_err(|_| "a number of more than 32 bits")
    }

    pub(super) fn flag(&mut self) -> Checked<bool> {
        match self.number()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err("neither yes nor no"),
        }
    }

    pub(super) fn difference(&mut self, from: u64) -> Checked<u64> {
        let number = self.number()?;
        Ok(from.wrapping_add(number >> 1 ^ (number & 1).wrapping_neg()))
    }

    pub(super) fn text(&mut self, most_bytes: usize) -> Checked<&'a str> {
        let length = self.number()?;
        check(length <= most_bytes as u64, "a name that is too long")?;
        str::from_utf8(self.bytes(length)?).map_err(|_| "a name that is no text")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDGES: [u64; 9] =
        [0, 1, 0x7f, 0x80, 0x3fff, 0x4000, u32::MAX as u64, i64::MAX as u64, u64::MAX];

    #[test]
    fn numbers_and_differences_are_read_as_they_were_written() {
        for from in EDGES {
            for to in EDGES {
                let mut column = Vec::new();
                put(&mut column, from);
                put_difference(&mut column, from, to);
                assert!(column.len() <= 20);
                let mut values = Values(&column);
                assert_eq!(values.number(), Ok(from));
                assert_eq!(values.difference(from), Ok(to));
                assert!(values.is_empty() && values.byte().is_err());
            }
        }
        let mut column = Vec::new();
        put_difference(&mut column, 7, 6);
        assert_eq!(column, [1], "small steps back are small numbers");
    }

    #[test]
    fn numbers_that_are_too_long_are_refused() {
        assert!(Values(&[0x80; 11]).number().is_err());
        assert!(
            Values(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]).number().is_err()
        );
        assert!(Values(&[0x80, 0x80, 0x80, 0x80, 0x10]).small().is_err());
        assert!(Values(&[0x80]).number().is_err());
        assert!(Values(&[2]).flag().is_err());
    }

    #[test]
    fn texts_are_bounded_and_utf_8() {
        let mut column = Vec::new();
        put_text(&mut column, "[heap]");
        assert_eq!(Values(&column).text(6), Ok("[heap]"));
        assert!(Values(&column).text(5).is_err());
        assert!(Values(&[1, 0xff]).text(6).is_err());
        assert!(Values(&[9, b'a']).text(100).is_err());
    }
}
