//! The words of arenas, as a program sees them.
#![allow(unsafe_code)]

use cowslip::Arena;

use crate::pattern::BYTES;

/// All words of an arena.
pub(crate) fn words(arena: &Arena) -> &[u64] {
    let range = arena.range();
    assert_eq!(range.len, BYTES);
    // SAFETY: these arenas are handed out whole, and no thread writes while this is borrowed.
    unsafe { std::slice::from_raw_parts(range.start as *const u64, range.len / 8) }
}

/// All words of an arena, for writing.
pub(crate) fn words_mut(arena: &mut Arena) -> &mut [u64] {
    let range = arena.range();
    assert_eq!(range.len, BYTES);
    // SAFETY: these arenas are handed out whole; this is the only borrow, as frozen views lie elsewhere.
    unsafe { std::slice::from_raw_parts_mut(range.start as *mut u64, range.len / 8) }
}

/// The bytes of words.
pub(crate) fn bytes(words: &[u64]) -> &[u8] {
    // SAFETY: the bytes are those of the words, with the same lifetime.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 8) }
}
