#![allow(unsafe_code)]
//! Copying pages past the caches.
//!
//! Whoever copies pages from all over memory mostly waits for it: a processor fetches ahead inside a
//! page, never into the next one, and it fetches what is to be overwritten. Fetching the beginning of
//! the next page, and writing whole lines past the caches, takes three quarters of `memcpy`'s time.
//!
//! # Safety
//! See [`copy`].

use cowslip_sys::units::VirtRange;

/// Copies the pages of `from` to `to`, as long; `next` begins what is copied after them. A [`finish`]
/// follows the last.
///
/// # Safety
/// Both are whole pages, `from` readable and `to` writable. Until the [`finish`] nobody writes to
/// `from`, and nobody uses `to`.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn copy(from: VirtRange, to: VirtRange, next: Option<usize>) {
    use std::arch::x86_64::{__m128i, _MM_HINT_T0, _mm_load_si128, _mm_prefetch, _mm_stream_si128};

    use cowslip_sys::units::page_size_bytes;

    const LINE_BYTES: usize = 64;
    // The rest is fetched when its turn comes. More would be fetched at the cost of this page.
    const AHEAD_BYTES: usize = 8 * LINE_BYTES;
    debug_assert_eq!(from.len, to.len);
    let page = page_size_bytes();
    for start in (0..from.len).step_by(page) {
        let next = if start + page < from.len { Some(from.start + start + page) } else { next };
        // SAFETY: as the caller promised. A page is whole lines, and a prefetch reads nothing.
        unsafe {
            for line in next.iter().flat_map(|at| (*at..at + AHEAD_BYTES).step_by(LINE_BYTES)) {
                _mm_prefetch::<_MM_HINT_T0>(line as *const i8);
            }
            for at in (start..start + page).step_by(LINE_BYTES) {
                let (from, to) =
                    ((from.start + at) as *const __m128i, (to.start + at) as *mut __m128i);
                let line = [0, 1, 2, 3].map(|i| _mm_load_si128(from.add(i)));
                for (i, part) in line.into_iter().enumerate() {
                    _mm_stream_si128(to.add(i), part);
                }
            }
        }
    }
}

/// Has the copies seen by whoever sees what this thread does from here on.
#[cfg(target_arch = "x86_64")]
pub(super) fn finish() {
    // SAFETY: only orders stores.
    unsafe { std::arch::x86_64::_mm_sfence() };
}

/// As the other, in the ordinary way.
///
/// # Safety
/// As the other.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn copy(from: VirtRange, to: VirtRange, _next: Option<usize>) {
    // SAFETY: as the caller promised.
    unsafe {
        core::ptr::copy_nonoverlapping(from.start as *const u8, to.start as *mut u8, from.len);
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn finish() {}

#[cfg(test)]
mod tests {
    use super::*;
    use cowslip_sys::memory::{self, Prot};
    use cowslip_sys::units::{CHUNK_BYTES, page_size_bytes};

    #[test]
    fn copies_every_byte_of_a_run_and_none_beside_it() {
        let page = page_size_bytes();
        let place = memory::reserve(CHUNK_BYTES, CHUNK_BYTES).unwrap();
        // SAFETY: the place was reserved for this test alone, and so is the slice of it.
        let bytes = unsafe {
            memory::map_anonymous(place, Prot::RW).unwrap();
            std::slice::from_raw_parts_mut(place.start as *mut u8, place.len)
        };
        for (i, byte) in bytes[..4 * page].iter_mut().enumerate() {
            *byte = (i.wrapping_mul(0x9e37_79b9) >> 16) as u8;
        }
        let part = |first, pages| VirtRange::new(place.start + first * page, pages * page);
        // SAFETY: whole pages of the place, the first ones apart from the others.
        unsafe {
            copy(part(0, 1), part(5, 1), Some(place.start + page));
            copy(part(1, 3), part(7, 3), None);
        }
        finish();
        let (from, to) = bytes.split_at(4 * page);
        assert!(to[page..2 * page] == from[..page]);
        assert!(to[3 * page..6 * page] == from[page..]);
        let beside = [&to[..page], &to[2 * page..3 * page], &to[6 * page..]];
        assert!(beside.concat().iter().all(|&byte| byte == 0));
        // SAFETY: reserved above; the slices are not used any more.
        unsafe { memory::unmap(place) }.unwrap();
    }
}
