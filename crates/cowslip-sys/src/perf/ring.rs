#![allow(unsafe_code)]
//! The ring to which a processor's events are written.
//!
//! ```text
//!        ┌──────────┬──────────────────────────────────────────────┐
//!        │ header   │ free      │ records not read yet  │ free      │
//!        └──────────┴───────────▲───────────────────────▲───────────┘
//!                   tail: ours ─┘           head: the kernel's
//! ```
//!
//! # Safety
//! The kernel writes records before it publishes the head, and never over unread ones: the bytes between tail and head
//! are ours until the tail moves. The head is loaded with acquire, so that the records are seen; the tail is stored
//! with release, so that they have been read.

use core::ptr::NonNull;
use core::slice;
use core::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys::bindings::perf_event_mmap_page;
use rustix::mm::{MapFlags, ProtFlags};

use super::Event;
use crate::failpoints::{self, Op};
use crate::units::{ByteCount, page_size_bytes};
use crate::{AsFd, Errno, Result};

/// The result of draining the ring.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Drained {
    /// Bytes that were read.
    pub bytes: u64,
    /// Bytes that were no records: they are skipped.
    pub bad_bytes: u64,
}

/// The ring of an event, and of those that share it.
#[derive(Debug)]
pub struct Ring {
    header: NonNull<perf_event_mmap_page>,
    data_bytes: usize,
    scratch: Vec<u8>,
}

// SAFETY: the mapping belongs to this value alone and is used through `&mut self`.
unsafe impl Send for Ring {}

impl Ring {
    /// The ring of `event`; its size is a power of two of pages.
    ///
    /// # Errors
    /// `EPERM` if this user may not have a ring of this size (`perf_event_mlock_kb`, `RLIMIT_MEMLOCK`), `EINVAL` if the
    /// size is wrong.
    pub fn map(event: &Event, size: ByteCount) -> Result<Self> {
        failpoints::check(Op::PerfMap)?;
        let data_bytes = usize::try_from(size.0).map_err(|_| Errno::INVAL)?;
        if !data_bytes.is_power_of_two() || data_bytes < page_size_bytes() {
            return Err(Errno::INVAL);
        }
        // SAFETY: a mapping at an address of the kernel's choice overlaps nothing.
        let at = unsafe {
            rustix::mm::mmap(
                core::ptr::null_mut(),
                page_size_bytes() + data_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                event.as_fd(),
                0,
            )
        }?;
        let header = NonNull::new(at.cast()).ok_or(Errno::FAULT)?;
        Ok(Self { header, data_bytes, scratch: Vec::new() })
    }

    /// Its size, without the header.
    pub fn size(&self) -> ByteCount {
        ByteCount(self.data_bytes as u64)
    }

    /// Passes on every unread record, in the order in which they were written, and makes room.
    pub fn drain(&mut self, each: impl FnMut(&[u8])) -> Drained {
        let header = self.header.as_ptr();
        // SAFETY: both fields are in the mapped header, and this code and the kernel access them only as atomics.
        let (head, tail) = unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*header).data_head),
                AtomicU64::from_ptr(&raw mut (*header).data_tail),
            )
        };
        let end = head.load(Ordering::Acquire);
        let begin = tail.load(Ordering::Relaxed);
        let unread = usize::try_from(end.wrapping_sub(begin)).unwrap_or(usize::MAX);
        let unread = unread.min(self.data_bytes);
        let from = (begin % self.data_bytes as u64) as usize;
        let first = unread.min(self.data_bytes - from);
        // SAFETY: both parts lie in the mapped data area, between tail and head (see the module).
        let (first, second) = unsafe {
            let data = header.cast::<u8>().add(page_size_bytes());
            (
                slice::from_raw_parts(data.add(from), first),
                slice::from_raw_parts(data, unread - first),
            )
        };
        let bad_bytes = walk(first, second, &mut self.scratch, each) as u64;
        tail.store(end, Ordering::Release);
        Drained { bytes: unread as u64, bad_bytes }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; no reference into it is left.
        let _ = unsafe {
            rustix::mm::munmap(self.header.as_ptr().cast(), page_size_bytes() + self.data_bytes)
        };
    }
}

/// Passes on the records of which `first` and then `second` consist, and returns the number of bytes at the end that
/// are no record. A record that begins in `first` and ends in `second` is joined in `scratch`.
fn walk<'a>(
    mut first: &'a [u8],
    mut second: &'a [u8],
    scratch: &mut Vec<u8>,
    mut each: impl FnMut(&[u8]),
) -> usize {
    loop {
        if first.is_empty() {
            (first, second) = (second, &[]);
        }
        let left = first.len() + second.len();
        // The kernel aligns records to eight bytes, so a header is never divided.
        let Some(size) = first.get(6..8) else { return left };
        let size = usize::from(u16::from_ne_bytes([size[0], size[1]]));
        if size < 8 || size > left {
            return left;
        }
        if let Some((record, rest)) = first.split_at_checked(size) {
            each(record);
            first = rest;
        } else {
            let (end, rest) = second.split_at(size - first.len());
            scratch.clear();
            scratch.extend_from_slice(first);
            scratch.extend_from_slice(end);
            each(scratch);
            (first, second) = (rest, &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(size: usize, mark: u8) -> Vec<u8> {
        let mut bytes = vec![mark; size];
        bytes[6..8].copy_from_slice(&(size as u16).to_ne_bytes());
        bytes
    }

    #[test]
    fn records_are_whole_wherever_the_ring_ends() {
        let records = [record(8, 1), record(40, 2), record(16, 3), record(65528, 4)];
        let all = records.concat();
        for cut in (0..=all.len()).step_by(8) {
            let mut seen = Vec::new();
            let left = walk(&all[..cut], &all[cut..], &mut Vec::new(), |record| {
                seen.push(record.to_vec())
            });
            assert!(left == 0 && seen == records, "cut at {cut}");
        }
    }

    #[test]
    fn what_is_no_record_is_counted_and_ends_the_walk() {
        let mut good = record(16, 1);
        for (size, left) in [(0u16, 16), (7, 16), (24, 16), (16, 0)] {
            let mut bad = record(16, 2);
            bad[6..8].copy_from_slice(&size.to_ne_bytes());
            let mut seen = 0;
            assert_eq!(walk(&good, &bad, &mut Vec::new(), |_| seen += 1), left, "size {size}");
            assert_eq!(seen, if left == 0 { 2 } else { 1 });
        }
        good.truncate(4);
        assert_eq!(walk(&good, &[], &mut Vec::new(), |_| unreachable!()), 4);
        assert_eq!(walk(&[], &[], &mut Vec::new(), |_| unreachable!()), 0);
    }
}
