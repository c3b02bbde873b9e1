#![allow(unsafe_code)]
//! Copying pages past the caches.
//!
//! A copy of pages from all over memory mostly waits for it: a processor fetches ahead inside a page, never into the
//! next one, and it fetches lines that are about to be overwritten. Fetching the beginning of the next page, and
//! writing whole lines past the caches, takes three quarters of `memcpy`'s time.

/// Copies the whole pages of `from` to `to`, which is as long; the copy after them begins at the address `next`. A
/// [`finish`] follows the last.
///
/// # Panics
/// If one of them is not whole pages, or they differ in length.
#[cfg(target_arch = "x86_64")]
pub fn copy(from: &[u8], to: &mut [u8], next: Option<usize>) {
    use core::arch::x86_64::{
        __m128i, _MM_HINT_T0, _mm_load_si128, _mm_prefetch, _mm_stream_si128,
    };

    use crate::units::page_size_bytes;

    const LINE_BYTES: usize = 64;
    // The rest is fetched when its turn comes. More would be fetched at the cost of this page.
    const AHEAD_BYTES: usize = 8 * LINE_BYTES;
    let page = page_size_bytes();
    let (start, target) = (from.as_ptr().addr(), to.as_mut_ptr().addr());
    assert!(from.len() == to.len() && (start | from.len() | target).is_multiple_of(page));
    for at in (0..from.len()).step_by(page) {
        let next = if at + page < from.len() { Some(start + at + page) } else { next };
        // SAFETY: both slices have the page from `at` on, which is whole lines of four aligned parts, and any bytes are
        // a `__m128i`. A prefetch reads nothing, at any address.
        unsafe {
            for line in next.iter().flat_map(|at| (*at..at + AHEAD_BYTES).step_by(LINE_BYTES)) {
                _mm_prefetch::<_MM_HINT_T0>(line as *const i8);
            }
            for at in (at..at + page).step_by(LINE_BYTES) {
                let from = from.as_ptr().add(at).cast::<__m128i>();
                let to = to.as_mut_ptr().add(at).cast::<__m128i>();
                let line = [0, 1, 2, 3].map(|i| _mm_load_si128(from.add(i)));
                for (i, part) in line.into_iter().enumerate() {
                    _mm_stream_si128(to.add(i), part);
                }
            }
        }
    }
}

/// Makes the copies visible before this thread's later stores.
#[cfg(target_arch = "x86_64")]
pub fn finish() {
    // SAFETY: only orders stores.
    unsafe { core::arch::x86_64::_mm_sfence() };
}

/// Like the other, by an ordinary copy.
#[cfg(not(target_arch = "x86_64"))]
pub fn copy(from: &[u8], to: &mut [u8], _next: Option<usize>) {
    to.copy_from_slice(from);
}

/// Does nothing: an ordinary copy is visible.
#[cfg(not(target_arch = "x86_64"))]
pub fn finish() {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::page_size_bytes;

    #[test]
    fn copies_every_byte_of_a_run_and_none_beside_it() {
        let page = page_size_bytes();
        let mut space = vec![0; 13 * page];
        let first = space.as_ptr().align_offset(page);
        let space = &mut space[first..first + 12 * page];
        for (i, byte) in space[..4 * page].iter_mut().enumerate() {
            *byte = (i.wrapping_mul(0x9e37_79b9) >> 16) as u8;
        }
        let (from, to) = space.split_at_mut(4 * page);
        copy(&from[..page], &mut to[page..2 * page], Some(from[page..].as_ptr().addr()));
        copy(&from[page..], &mut to[3 * page..6 * page], None);
        finish();
        assert!(to[page..2 * page] == from[..page]);
        assert!(to[3 * page..6 * page] == from[page..]);
        let beside = [&to[..page], &to[2 * page..3 * page], &to[6 * page..]];
        assert!(beside.concat().iter().all(|&byte| byte == 0));
    }
}
