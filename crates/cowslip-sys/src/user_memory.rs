#![allow(unsafe_code)]
//! Reads the memory that a program's calls point to, before the kernel does.
//!
//! A pointer that a program passes to the kernel may be invalid: then the kernel returns `EFAULT`, and this code must
//! not die when it looks first. It asks the kernel if the words are there, by a call that reads a word and does
//! nothing: `rt_sigprocmask(2)` copies the new mask before it rejects an unknown `how`.
//!
//! # Safety
//! Memory is read only after the kernel has read it at the same addresses. If another thread of the program unmaps it
//! at that instant, the program's own call could find it unmapped as well.

use core::mem::size_of;
use core::ops::ControlFlow;

use crate::Errno;
use crate::errno;
use crate::units::page_size_bytes;

const WORD_BYTES: usize = size_of::<u64>();
const DO_NOTHING: i32 = -1;

/// Returns true if `addr .. addr + len` can be read.
pub fn is_readable(addr: usize, len: usize) -> bool {
    let Some(end) = addr.checked_add(len) else { return false };
    if len == 0 {
        return true;
    }
    let first = addr / WORD_BYTES * WORD_BYTES;
    let pages = (first..end).step_by(page_size_bytes());
    let last = (end - 1) / WORD_BYTES * WORD_BYTES;
    pages.chain([last]).all(has_word)
}

fn has_word(addr: usize) -> bool {
    let none = core::ptr::null_mut::<u64>();
    // SAFETY: errno is a thread-local integer that is always there. The call reads the word and changes nothing.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let answer = crate::passthrough::by_number()(
            libc::SYS_rt_sigprocmask,
            DO_NOTHING,
            addr as *const u64,
            none,
            WORD_BYTES,
        );
        let is_there = answer != -1 || errno::last() != Errno::FAULT;
        *errno = before;
        is_there
    }
}

/// Reads the value at `addr`, if it can be read.
pub fn read<T: Copy + Plain>(addr: usize) -> Option<T> {
    if addr == 0 || !is_readable(addr, size_of::<T>()) {
        return None;
    }
    // SAFETY: see the module; any bytes are a `Plain`.
    Some(unsafe { core::ptr::read_unaligned(addr as *const T) })
}

/// Visits the array of `count` elements at `addr`, as far as it can be read.
pub fn each<T: Copy + Plain>(addr: usize, count: usize, mut act: impl FnMut(T) -> ControlFlow<()>) {
    for i in 0..count {
        let at = i.checked_mul(size_of::<T>()).and_then(|offset| addr.checked_add(offset));
        let Some(element) = at.and_then(read) else { return };
        if act(element).is_break() {
            return;
        }
    }
}

/// Types for which any bytes are a valid value.
///
/// # Safety
/// Integers, and structures of them without padding that matters.
pub unsafe trait Plain {}

macro_rules! plain {
    ($($name:ty),*) => {
        $(
            // SAFETY: an integer, or an array of them.
            unsafe impl Plain for $name {}
        )*
    };
}

plain!(u8, u32, i32, u64, usize, [u64; 2], [u64; 3], [u64; 8]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_not_read() {
        let words = [1u64, 2, 3];
        let at = words.as_ptr() as usize;
        assert_eq!(read::<u64>(at + 8), Some(2));
        assert_eq!(read::<[u64; 2]>(at + 8), Some([2, 3]));
        assert_eq!(read::<u64>(0), None);
        assert_eq!(read::<u64>(usize::MAX - 3), None);
        let page = page_size_bytes();
        let two = crate::memory::reserve(2 * page, page).unwrap();
        // SAFETY: reserved just now.
        unsafe {
            crate::memory::protect(
                crate::units::VirtRange::new(two.start, page),
                crate::memory::Prot::RW,
            )
        }
        .unwrap();
        assert!(is_readable(two.start, page));
        assert!(!is_readable(two.start, page + 1));
        assert_eq!(read::<u64>(two.start + page - 4), None);
        assert_eq!(read::<u64>(two.start + page), None);
        let mut seen = 0;
        each::<u64>(two.start, 1 << 20, |word| {
            seen += 1;
            assert_eq!(word, 0);
            ControlFlow::Continue(())
        });
        assert_eq!(seen, page / 8);
    }
}
