//! Little-endian fields at fixed places.

/// A record of fixed length that is being written.
#[derive(Debug)]
pub(super) struct Record<const N: usize>(pub(super) [u8; N]);

impl<const N: usize> Record<N> {
    pub(super) fn new() -> Self {
        Self([0; N])
    }

    pub(super) fn set<const L: usize>(&mut self, at: usize, field: [u8; L]) {
        self.0[at..at + L].copy_from_slice(&field);
    }
}

/// The field of `L` bytes at `at`.
///
/// # Panics
/// If `bytes` ends before it; callers cut records to their length first.
pub(super) fn field<const L: usize>(bytes: &[u8], at: usize) -> [u8; L] {
    bytes[at..at + L].try_into().expect("the length asked for")
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(field(bytes, at))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(field(bytes, at))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(field(bytes, at))
}
