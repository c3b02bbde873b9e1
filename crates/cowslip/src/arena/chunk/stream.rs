#![allow(unsafe_code)]
//! Copying pages past the caches.
//!
//! A copy of pages from all over memory mostly waits for it: a processor fetches ahead inside a page, never into the
//! next one, and it fetches lines that are about to be overwritten. Fetching the beginning of the next page, and
//! writing whole lines past the caches, takes three quarters of `memcpy`'s time.
//!
//! # Safety
//! Both ranges are the core's own, and the callers mapped them: `from` to be read and `to` to be written, without a fault
//! that cannot be served. Until the [`finish`] no thread writes to `from`, and none uses `to`.

use crate::arena::mapping::OwnedRange;

/// Copies the pages of `from` to `to`, which is as long; the copy after them begins at `next`. A [`finish`] follows the
/// last.
#[cfg(target_arch = "x86_64")]
pub(super) fn copy(from: OwnedRange, to: OwnedRange, next: Option<usize>) {
    use std::arch::x86_64::{__m128i, _MM_HINT_T0, _mm_load_si128, _mm_prefetch, _mm_stream_si128};

    use cowslip_sys::units::page_size_bytes;

    const LINE_BYTES: usize = 64;
    // The rest is fetched when its turn comes. More would be fetched at the cost of this page.
    const AHEAD_BYTES: usize = 8 * LINE_BYTES;
    let page = page_size_bytes();
    assert!(from.len == to.len && (from.start | from.len | to.start).is_multiple_of(page));
    for start in (0..from.len).step_by(page) {
        let next = if start + page < from.len { Some(from.start + start + page) } else { next };
        // SAFETY: see the module. A page is whole lines, and a prefetch reads nothing.
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

/// Makes the copies visible before this thread's later stores.
#[cfg(target_arch = "x86_64")]
pub(super) fn finish() {
    // SAFETY: only orders stores.
    unsafe { std::arch::x86_64::_mm_sfence() };
}

/// Like the other, by an ordinary copy.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn copy(from: OwnedRange, to: OwnedRange, _next: Option<usize>) {
    to.with_bytes(|bytes| from.copy_to(bytes));
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn finish() {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::mapping::OwnSpace;
    use cowslip_sys::memory::Prot;
    use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};

    #[test]
    fn copies_every_byte_of_a_run_and_none_beside_it() {
        let page = page_size_bytes();
        let place = OwnSpace::reserve(CHUNK_BYTES, CHUNK_BYTES).unwrap();
        place.map_anonymous(Prot::RW).unwrap();
        place.with_bytes(|bytes| {
            for (i, byte) in bytes[..4 * page].iter_mut().enumerate() {
                *byte = (i.wrapping_mul(0x9e37_79b9) >> 16) as u8;
            }
        });
        let part =
            |first, pages| place.part(VirtRange::new(place.start + first * page, pages * page));
        copy(part(0, 1), part(5, 1), Some(place.start + page));
        copy(part(1, 3), part(7, 3), None);
        finish();
        place.with_bytes(|bytes| {
            let (from, to) = bytes.split_at(4 * page);
            assert!(to[page..2 * page] == from[..page]);
            assert!(to[3 * page..6 * page] == from[page..]);
            let beside = [&to[..page], &to[2 * page..3 * page], &to[6 * page..]];
            assert!(beside.concat().iter().all(|&byte| byte == 0));
        });
    }
}
