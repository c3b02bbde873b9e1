//! Columns of small numbers: seven bits a byte, the least significant first.

/// A column being written.
#[derive(Default)]
pub(super) struct Column {
    bytes: Vec<u8>,
    last: u64,
}

impl Column {
    /// The next number as it is.
    pub(super) fn push(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// The next number by its distance from the one before, the sign in the lowest bit.
    pub(super) fn push_near(&mut self, value: u64) {
        self.push_from(self.last, value);
        self.last = value;
    }

    /// A number by its distance from `base`, which the reader knows.
    pub(super) fn push_from(&mut self, base: u64, value: u64) {
        let distance = value.wrapping_sub(base).cast_signed();
        self.push(((distance << 1) ^ (distance >> 63)).cast_unsigned());
    }

    /// The next byte as it is.
    pub(super) fn push_byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_take_as_few_bytes_as_they_need() {
        let mut column = Column::default();
        column.push(300);
        column.push_near(5);
        column.push_near(3);
        column.push_from(10, 10);
        column.push_byte(200);
        assert_eq!(column.bytes(), [0xac, 0x02, 10, 3, 0, 200]);
    }
}
