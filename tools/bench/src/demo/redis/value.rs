//! Values that name the write that they come from, so that a reader can check every byte of them.

use std::io::Write;

/// Length of the part of a value that names its key and sequence number.
pub(crate) const HEADER_BYTES: usize = 32;

/// Content found under a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Missing,
    /// The whole value of the write with this sequence number.
    Write(u64),
    /// A value that no write of this key ever stored.
    Torn,
}

/// The name of a key.
pub(crate) fn key_name(key: usize) -> String {
    format!("key:{key:012}")
}

/// Fills `value` with the content of write number `sequence` of `key`.
pub(crate) fn compose(value: &mut [u8], key: usize, sequence: u64) {
    let (mut header, body) = value.split_at_mut(HEADER_BYTES);
    write!(header, "{key:016x}{sequence:016x}").expect("the header holds two words in hex");
    let mut random = Random((key as u64) << 32 ^ sequence);
    for word in body.chunks_mut(8) {
        word.copy_from_slice(&random.next().to_le_bytes()[..word.len()]);
    }
}

/// The write that `value` comes from; `scratch` has the length of values.
pub(crate) fn identify(value: &[u8], key: usize, scratch: &mut [u8]) -> Found {
    let sequence = value.get(16..HEADER_BYTES).and_then(|hex| str::from_utf8(hex).ok());
    let Some(sequence) = sequence.and_then(|hex| u64::from_str_radix(hex, 16).ok()) else {
        return Found::Torn;
    };
    compose(scratch, key, sequence);
    if value == scratch { Found::Write(sequence) } else { Found::Torn }
}

/// SplitMix64: a small generator that is the same everywhere.
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to below 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_names_its_write_and_any_changed_byte_shows() {
        let mut value = vec![0; 101];
        let mut scratch = value.clone();
        compose(&mut value, 7, 42);
        assert_eq!(identify(&value, 7, &mut scratch), Found::Write(42));
        assert_eq!(identify(&value, 8, &mut scratch), Found::Torn);
        assert_eq!(identify(&value[..100], 7, &mut scratch), Found::Torn);
        assert_eq!(identify(b"", 7, &mut scratch), Found::Torn);
        for byte in 0..value.len() {
            value[byte] ^= 1;
            assert_eq!(identify(&value, 7, &mut scratch), Found::Torn, "byte {byte}");
            value[byte] ^= 1;
        }
    }

    #[test]
    fn half_of_one_write_and_half_of_the_next_is_torn() {
        let (mut old, mut new, mut scratch) = (vec![0; 64], vec![0; 64], vec![0; 64]);
        compose(&mut old, 7, 1);
        compose(&mut new, 7, 2);
        new[48..].copy_from_slice(&old[48..]);
        assert_eq!(identify(&new, 7, &mut scratch), Found::Torn);
    }
}
