//! A search for a hole that fails, and one that is not made.
#![allow(unsafe_code)]

mod support;

use cowslip_sys::failpoints::{Op, fail};
use cowslip_sys::memfile;
use cowslip_sys::memory::Sharing;
use cowslip_sys::units::page_size_bytes;
use cowslip_sys::{AsFd, Errno, cache};
use support::{Mapped, skip};

/// It would look through all that follows: of a large file, for each of its chunks.
#[test]
fn no_hole_is_searched_for_beyond_what_was_asked_about() {
    let page = page_size_bytes() as u64;
    let mapped = Mapped::new(8, Sharing::Shared);
    let file = mapped.file.as_fd();
    if cache::cached(file, 0, page).is_err() {
        return skip("cachestat", "this kernel has no cachestat(2)");
    }
    memfile::punch_hole(file, 5 * page, page).unwrap();
    let refused = fail(Op::SeekHole, 0, 1, Errno::IO);
    assert_eq!(memfile::next_data(file, 0, 5 * page), Ok(Some((0, 5 * page))));
    assert_eq!(memfile::next_data(file, 5 * page, 8 * page), Ok(Some((6 * page, 8 * page))));
    assert!(!refused.is_spent(), "there was no hole to be found");
    assert_eq!(memfile::next_data(file, 0, 6 * page), Err(Errno::IO), "a search that ends");
    assert_eq!(memfile::next_data(file, 0, 6 * page), Ok(Some((0, 5 * page))));
}
