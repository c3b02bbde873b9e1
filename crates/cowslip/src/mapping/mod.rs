#![allow(unsafe_code)]
//! Addresses that the core may map as it likes: parts of an arena, and space of its own.
//!
//! ```text
//!   OwnSpace::reserve ──▶ OwnSpace ──part──▶ OwnedRange: map, protect, advise, move, unmap, copy
//!                            └──leak──▶ an arena ──piece──▶ ArenaPiece: the same, at its place in a file
//! ```
//! # Safety
//! The functions of [`memory`] want a caller that owns the range: no other code relies on a mapping there, and no reference
//! is held across a change that it would show.
//! * **Nothing beside the range changes.** An [`OwnedRange`] lies in an [`OwnSpace`], or in an arena, which was one: its
//!   constructors check that. Both begin and end with a page, and the kernel changes whole pages. An arena's addresses are
//!   its own until it ends, except those that its [`VmaMap`](crate::memory::vma_map::VmaMap) calls foreign or holes: those are the
//!   program's, and are changed only when the program asks for that. An [`OwnSpace`] is unmapped when it is dropped.
//!   Its parts are used while it is there, and are not kept beyond that.
//! * **No reference shows the change.** Under an arena's addresses the content stays the same, except where its user
//!   dropped it by a call that says so. The state machine behind the arena's lock ensures that: I1 to I6 of
//!   [`crate::freeze`]. References into an [`OwnSpace`] are lent by the value that holds it, and end before its mapping
//!   changes.
//!
//! The types guarantee the first. The logic of the callers guarantees the second, like an allocator's: the doc of each
//! method names the decision that comes before its call.

pub(crate) mod backing_file;
mod own_space;

use std::marker::PhantomData;
use std::mem::needs_drop;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;

use cowslip_sys::memory::{self, Advice, Prot, Sharing};
use cowslip_sys::units::{VirtRange, page_size_bytes};
use cowslip_sys::{BorrowedFd, Errno, memfile, outside, streaming};

/// Address space that the core reserved for itself, and that only the holder of the value knows.
#[derive(Debug, Default)]
pub(crate) struct OwnSpace(OwnedRange);

/// A part of an arena or of an [`OwnSpace`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct OwnedRange(VirtRange);

/// A part of one arena, with its place in the arena's files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArenaPiece {
    range: OwnedRange,
    pub(crate) offset: u64,
}

impl Deref for OwnedRange {
    type Target = VirtRange;

    fn deref(&self) -> &VirtRange {
        &self.0
    }
}

impl Deref for ArenaPiece {
    type Target = OwnedRange;

    fn deref(&self) -> &OwnedRange {
        &self.range
    }
}

impl ArenaPiece {
    /// Maps its place in a file of the arena, or in one that the arena borrows, like [`OwnedRange::map_file`].
    pub(crate) fn map(
        self,
        file: BorrowedFd<'_>,
        sharing: Sharing,
        prot: Prot,
    ) -> Result<(), Errno> {
        self.map_file(file, self.offset, sharing, prot)
    }
}

impl OwnedRange {
    /// The part at `range`.
    ///
    /// # Panics
    /// If it is not in here.
    pub(crate) fn part(self, range: VirtRange) -> Self {
        let at = range.start.wrapping_sub(self.start);
        assert!(at <= self.len && range.len <= self.len - at, "{range} is not in {}", *self);
        Self(range)
    }

    /// The part at `range`, with its distance from the start.
    ///
    /// # Panics
    /// If it is not in here.
    pub(crate) fn piece(self, range: VirtRange) -> ArenaPiece {
        let part = self.part(range);
        ArenaPiece { range: part, offset: (range.start - self.start) as u64 }
    }

    /// The first `len` bytes.
    pub(crate) fn first(self, len: usize) -> Self {
        self.part(VirtRange::new(self.start, len))
    }

    /// Maps `file` from an offset on. The file holds the content of the range, or that was dropped.
    pub(crate) fn map_file(
        self,
        file: BorrowedFd<'_>,
        at: u64,
        sharing: Sharing,
        prot: Prot,
    ) -> Result<(), Errno> {
        // SAFETY: see the module.
        unsafe { memory::map_file(self.0, file, at, sharing, prot) }
    }

    /// Maps private memory of zeroes. Content of the range was dropped, or is not here any more.
    pub(crate) fn map_anonymous(self, prot: Prot) -> Result<(), Errno> {
        // SAFETY: see the module.
        unsafe { memory::map_anonymous(self.0, prot) }
    }

    /// Unmaps the range, for good or until it is claimed again: its content was dropped.
    pub(crate) fn unmap(self) -> Result<(), Errno> {
        // SAFETY: see the module.
        unsafe { memory::unmap(self.0) }
    }

    /// Changes the protection. The memory's users asked for that, or hold nothing there, or cannot run meanwhile.
    pub(crate) fn protect(self, prot: Prot) -> Result<(), Errno> {
        // SAFETY: see the module.
        unsafe { memory::protect(self.0, prot) }
    }

    /// Advises the kernel. `DontNeed`, `Free` and `WipeOnFork` drop content, which its user gave up before; no other
    /// does.
    pub(crate) fn advise(self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: see the module.
        unsafe { memory::advise(self.0, advice) }
    }

    /// Advises the kernel of many parts at once, like [`Self::advise`].
    pub(crate) fn advise_all(self, parts: &[VirtRange], advice: Advice) -> Result<(), Errno> {
        for part in parts {
            let _ = self.part(*part);
        }
        // SAFETY: see the module.
        unsafe { memory::advise_all(parts, advice) }
    }

    /// Moves it, which is one mapping, over all of `to`, and leaves nothing mapped. It holds the content of `to`.
    fn move_to(self, to: Self) -> Result<(), Errno> {
        // SAFETY: see the module.
        unsafe { memory::move_mapping(self.0, to.0) }
    }

    /// Moves its pages to `to`, and leaves an empty mapping. Threads that access it meanwhile wait in a userfaultfd.
    pub(crate) fn move_pages_to(self, to: Self) -> Result<(), Errno> {
        // SAFETY: see the module. The kernel refuses a range that is more than one mapping.
        unsafe { memory::move_pages_out(self.0, to.0) }
    }

    /// Writes its content to `file`. An unmapped page is an error of the kernel's; a store that comes meanwhile may be missing.
    pub(crate) fn write_to(self, file: BorrowedFd<'_>, at: u64) -> Result<(), Errno> {
        // SAFETY: mapped by the caller, and without writers: they are kept off, or it is a base. Only the kernel reads it.
        unsafe { memfile::write_range_at(file, self.0, at) }
    }

    /// Copies its content, which is mapped readable. A store that comes meanwhile is in the copy or is not.
    pub(crate) fn copy_to(self, target: &mut [u8]) {
        assert_eq!(self.len, target.len());
        // SAFETY: see the module. The target is as long, and borrowed exclusively, therefore elsewhere.
        unsafe {
            (self.start as *const u8).copy_to_nonoverlapping(target.as_mut_ptr(), self.len);
        }
    }

    /// Copies its whole pages, which are mapped readable, past the caches to `to`, writable pages elsewhere that only the
    /// caller uses. No thread writes it meanwhile. See [`streaming::copy`].
    pub(crate) fn stream_to(self, to: Self, next: Option<usize>) {
        assert!((*self).intersect(*to).is_empty());
        // SAFETY: the caller mapped it and keeps writers off. `to` is elsewhere. Any bytes are a u8.
        let from = unsafe { core::slice::from_raw_parts(self.start as *const u8, self.len) };
        to.with_bytes(|bytes| streaming::copy(from, bytes, next));
    }

    /// Lends bytes that are mapped readable and writable, and that only the caller uses until `act` returns.
    pub(crate) fn with_bytes<T>(self, act: impl FnOnce(&mut [u8]) -> T) -> T {
        // SAFETY: the caller has them for itself, and any bytes are a u8.
        act(unsafe { core::slice::from_raw_parts_mut(self.start as *mut u8, self.len) })
    }

    /// True if whole pages, mapped readable, hold nothing but zeroes. No thread writes them meanwhile.
    pub(crate) fn is_zero(self) -> bool {
        // SAFETY: the caller mapped them and keeps writers off; a page is aligned for u64, and any bytes are one.
        let words = unsafe { core::slice::from_raw_parts(self.start as *const u64, self.len / 8) };
        words.iter().all(|word| *word == 0)
    }
}

impl OwnSpace {
    /// A word of a readable and writable mapping with words that are used only in this way. An access where nothing is
    /// mapped ends the process.
    ///
    /// # Panics
    /// If it is not in here, or not aligned.
    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(size_of::<u64>()) && at < self.len);
        // SAFETY: aligned, and in space that stays reserved as long as the borrow; all access is atomic, or the kernel's.
        unsafe { AtomicU64::from_ptr((self.start + at) as *mut u64) }
    }
}

impl OwnSpace {
    /// Does `work` [outside](outside::run) of this process, on a stack that is this mapped space.
    pub(crate) fn with_stack<T>(&self, work: impl FnOnce() -> T) -> T {
        // SAFETY: mapped and writable but for a guard, and the caller, which has the arena's lock, uses it for this alone.
        unsafe { outside::run(*self.0, work) }
    }
}

/// A value in a private page of its own, far from the program's mappings.
#[derive(Debug)]
pub(crate) struct OwnPage<T> {
    page: OwnSpace,
    value: PhantomData<T>,
}

impl<T> OwnPage<T> {
    /// Puts `value` in a page that maps a new file, the name of which `/proc/PID/maps` shows.
    pub(crate) fn new(file: BorrowedFd<'_>, value: T) -> Result<Self, Errno> {
        const { assert!(size_of::<T>() <= 4096 && align_of::<T>() <= 4096 && !needs_drop::<T>()) };
        let page = OwnSpace::reserve_apart(page_size_bytes(), page_size_bytes())?;
        page.map_file(file, 0, Sharing::Private, Prot::RW)?;
        // SAFETY: a writable page is mapped there, which is large enough and aligned, and nothing refers to it.
        unsafe { (page.start as *mut T).write(value) };
        Ok(Self { page, value: PhantomData })
    }
}

impl<T> Deref for OwnPage<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `new` put a value there, and the page is mapped, and changed by nothing else, until this is dropped.
        unsafe { &*(self.page.start as *const T) }
    }
}
