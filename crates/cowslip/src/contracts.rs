#![allow(unsafe_code)]
//! Public functions with a contract that the compiler cannot check, and that the caller keeps.
//!
//! Each only locks the arena and passes the call on. Inside the crate the same operations are safe functions, like an
//! allocator's: they change mappings only through [`mapping`](crate::mapping), which says what holds for them.

use std::sync::Arc;

#[cfg(doc)]
use cowslip_sys::error::ErrorKind;
use cowslip_sys::error::Result;
use cowslip_sys::memory::Prot;
use cowslip_sys::units::VirtRange;

use crate::arena::Arena;
use crate::freeze::{self, Frozen, Scope};
use crate::memory::departure::Departure;
use crate::raw::RawArena;
#[cfg(doc)]
use crate::raw::Usage;
use crate::thaw;

impl Arena {
    /// Takes memory back: it may no longer be accessed (`munmap`). Parts that are free already are skipped, parts that
    /// left the arena are unmapped.
    ///
    /// # Errors
    /// The kernel's, if it is out of mappings (`vm.max_map_count`).
    ///
    /// # Safety
    /// `range` is page-aligned, was handed out by [`Self::allocate`], and is no longer in use.
    pub unsafe fn release(&self, range: VirtRange) -> Result<()> {
        let shared = self.shared();
        shared.release(&mut shared.lock_restored(range), range)
    }

    /// Makes memory read as zeroes, and gives its pages back (`MADV_DONTNEED`). A huge page gives back parts once an
    /// eighth of it was discarded.
    ///
    /// # Errors
    /// The kernel's; then the content is as before or zeroes, page by page.
    ///
    /// # Safety
    /// The same as for [`Self::release`]; no other thread accesses it meanwhile.
    pub unsafe fn discard(&self, range: VirtRange) -> Result<()> {
        let shared = self.shared();
        shared.discard(&mut shared.lock_restored(range), range)
    }

    /// Changes what may be done to memory (`mprotect`); it stays so through freezes and thaws.
    ///
    /// # Errors
    /// `ENOMEM` if a part of it is not handed out, or the kernel is out of mappings.
    ///
    /// # Safety
    /// `range` is page-aligned and no Rust reference into it needs more than `prot` allows.
    pub unsafe fn protect(&self, range: VirtRange, prot: Prot) -> Result<()> {
        let shared = self.shared();
        shared.protect(&mut shared.lock_restored(range), range, prot)
    }

    /// Thaws the arena now, in this thread: for arenas that nothing thaws in the background because userfaultfd is
    /// unavailable, after a fork for instance.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while a view or a child reads the frozen memory; the kernel's, for the first
    /// chunk that could not be thawed; the rest stays frozen.
    ///
    /// # Safety
    /// No thread stores to the arena's memory, and no system call does, until this returns.
    pub unsafe fn thaw_exclusive(&self) -> Result<()> {
        let shared = self.shared();
        thaw::unattended(shared, &mut shared.lock())
    }

    /// Restores the arena's content at the freeze of `view`. All views stay: the arena can go back further, or forward
    /// again to a later one. Memory handed out since then reads as zeroes; memory given back since then stays given
    /// back.
    ///
    /// ```
    /// use cowslip::{Arena, units::ByteCount};
    ///
    /// let arena = Arena::new(ByteCount::mib(64))?;
    /// let mut words = arena.slice::<u64>(1000)?;
    /// words[3] = 1;
    /// let before = arena.freeze()?;
    /// words[3] = 2;
    /// // SAFETY: this thread is the only one that uses the arena.
    /// unsafe { arena.roll_back(&before) }?;
    /// assert_eq!(words[3], 1);
    /// # Ok::<(), cowslip::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for a view of another arena; [`ErrorKind::Busy`] in a child that reads its parent's arena, while
    /// memory is held for direct I/O, while this thread's stack is in the arena, or if memory that was in use then has left the
    /// arena; [`ErrorKind::OutOfMemory`] if there would be too many mappings. The arena is as before then.
    ///
    /// # Safety
    /// No thread reads or writes the arena's memory, and no system call does, until this returns. No reference to its
    /// content is used afterwards if the change makes its value invalid, such as one into a structure that was not
    /// there then.
    pub unsafe fn roll_back(&self, view: &Frozen) -> Result<()> {
        freeze::roll_back(self, view, Scope::Content)
    }
}

impl Frozen {
    /// Ends the view and thaws the arena now, in this thread. For arenas frozen without userfaultfd,
    /// which nothing thaws in the background.
    ///
    /// # Errors
    /// The kernel's, for the first chunk that could not be thawed; the rest stays frozen.
    ///
    /// # Safety
    /// No thread stores to the arena's memory, and no system call does, until this returns.
    pub unsafe fn thaw_exclusive(self) -> Result<()> {
        let handle = Arc::clone(&self.handle);
        drop(self);
        let shared = &handle.shared;
        thaw::unattended(shared, &mut shared.lock())
    }
}

impl RawArena<'_> {
    /// Restores the arena at the freeze of `view`, like [`Arena::roll_back`](crate::Arena::roll_back), and what was handed out
    /// then: memory given back since is handed out again, and memory handed out since is unmapped.
    ///
    /// # Errors
    /// See [`Arena::roll_back`](crate::Arena::roll_back); [`ErrorKind::Busy`] if something else is mapped where memory was given
    /// back.
    ///
    /// # Safety
    /// The same as for [`Arena::roll_back`](crate::Arena::roll_back). No code uses memory afterwards that was handed out since.
    ///
    /// [`ErrorKind::Busy`]: crate::ErrorKind::Busy
    pub unsafe fn roll_back_handed_out(&self, view: &Frozen) -> Result<()> {
        freeze::roll_back(self.arena(), view, Scope::HandedOut)
    }

    /// Like [`Arena::release`](crate::Arena::release), and unmaps it (`munmap`): mappings that other code makes there
    /// meanwhile are its own, and space that is still free is handed out again.
    ///
    /// # Errors
    /// See [`Arena::release`](crate::Arena::release).
    ///
    /// # Safety
    /// The same as for [`Arena::release`](crate::Arena::release).
    pub unsafe fn unmap(&self, range: VirtRange) -> Result<()> {
        let shared = self.shared();
        shared.unmap(&mut shared.lock_restored(range), range)
    }

    /// Resets memory to zeroes, with this protection (`mmap` with `MAP_FIXED` over it). `false` if a part of it is not
    /// handed out; then nothing is changed.
    ///
    /// # Errors
    /// See [`Arena::discard`](crate::Arena::discard) and [`Arena::protect`](crate::Arena::protect).
    ///
    /// # Safety
    /// The same as for both of them.
    pub unsafe fn remap_zeroed(&self, range: VirtRange, prot: Prot) -> Result<bool> {
        let shared = self.shared();
        shared.remap_zeroed(&mut shared.lock_restored(range), range, prot)
    }

    /// Takes memory out of the arena: under the same addresses it becomes private anonymous memory with the same
    /// content and protection, which freezes and forks leave to the kernel. It is for uses that an arena cannot follow,
    /// such as `mlock(2)` and `MADV_DONTFORK`. Threads that write to it wait; where nothing can make them, it stays a
    /// private mapping of the arena's file ([`Usage::Left`]).
    ///
    /// # Errors
    /// `ENOMEM` if a part of it is not handed out, or memory or mappings run out: then memory that is not detached yet
    /// stays in the arena.
    ///
    /// # Safety
    /// `range` is page-aligned, and no Rust reference into it is used meanwhile.
    pub unsafe fn detach(&self, range: VirtRange, why: Departure) -> Result<()> {
        let shared = self.shared();
        shared.detach(&mut shared.lock_restored(range), range, why)
    }

    /// Copies the content of memory to `target`, which is all zeroes. Holes are not read, and stay holes.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Safety
    /// `range` is page-aligned and handed out with one protection, and is not written meanwhile. `target` is writable
    /// memory of its length, elsewhere.
    pub unsafe fn copy_to(&self, range: VirtRange, target: usize) -> Result<()> {
        let shared = self.shared();
        // SAFETY: as the caller promised, and any bytes are a u8.
        let target = unsafe { std::slice::from_raw_parts_mut(target as *mut u8, range.len) };
        shared.copy_out(&shared.lock_restored(range), range, target)
    }
}
