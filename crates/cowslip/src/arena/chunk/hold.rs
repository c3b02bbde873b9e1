//! How threads are kept from memory that is about to be mapped anew.
//!
//! ```text
//!        R                                 aside
//!  0   frozen, private pages              reserved
//!  1   empty, every access waits          the page tables of R      userfaultfd, mremap(DONTUNMAP)
//!  2   mapped anew, or moved back         nothing                   and then woken
//! ```
//! No entry of a page table is marked, so private pages can be told from others without any privilege, and huge
//! mappings stay whole. hugetlbfs cannot move this way: there, write protection makes writes wait.
//!
//! Pieces that have not been mapped anew when a [`Hold`] ends move back. If the kernel refuses that, the program's
//! writes would be lost, and the process is aborted.
//!
//! No thread sees the pieces between 1 and 2. Only the thread that has the arena locked uses the place aside. No memory
//! is allocated meanwhile: a stopped thread may have the allocator's lock.

use std::io::Write;

use cowslip_sys::Errno;
use cowslip_sys::memory::{Advice, Prot};
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::uffd::{RegisterMode, Uffd};
use cowslip_sys::units::{VirtRange, page_size_bytes};

use super::write_protect::{halves, hold_writers, write_protect};
use crate::arena::state::Shared;
use crate::mapping::OwnedRange;
use crate::mapping::backing_file::Pages;
use crate::retry::retry_until_ok;
use crate::service::Service;

/// How threads are kept from pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    /// Their pages move aside.
    Move { has_file: bool },
    /// Writes wait. For hugetlbfs, and for parts in which some pieces have a file and others have none.
    Protection,
}

/// Pieces of an arena that threads are kept from. They are released when this is dropped.
pub(super) struct Hold<'a> {
    shared: &'a Shared,
    uffd: &'a Uffd<ReservedFd>,
    part: VirtRange,
    pieces: &'a [(VirtRange, Prot)],
    aside: Option<OwnedRange>,
    /// Pages up to here are aside.
    moved_to: usize,
    /// Everything up to here is mapped anew.
    done_to: usize,
}

impl<'a> Hold<'a> {
    /// Keeps threads from `pieces` of `part`, which is no longer than [`Service::aside`]. On an error nothing has changed.
    pub(super) fn begin(
        shared: &'a Shared,
        service: &'a Service,
        part: VirtRange,
        pieces: &'a [(VirtRange, Prot)],
        by: By,
    ) -> Result<Self, Errno> {
        let (moved_to, done_to) = (part.start, part.start);
        if by == By::Protection {
            let uffd = &service.uffd;
            let hold = Self { shared, uffd, part, pieces, aside: None, moved_to, done_to };
            for (piece, _) in pieces {
                let has_file = register_for_protection(uffd, *piece)?;
                match shared.pages {
                    Pages::Hugetlb => write_protect(uffd, *piece, true)?,
                    _ => hold_writers(uffd, Some(service), *piece, has_file)?,
                }
            }
            return Ok(hold);
        }
        let mode = match by {
            By::Move { has_file: true } => RegisterMode::MISSING | RegisterMode::MINOR,
            // Memory without a file has no pages that are merely unmapped.
            _ => RegisterMode::MISSING,
        };
        let uffd = &service.hold;
        let aside = Some(service.aside.first(part.len));
        let mut hold = Self { shared, uffd, part, pieces, aside, moved_to, done_to };
        for (piece, _) in pieces {
            uffd.register(*piece, mode)?;
            let place = hold.content(*piece);
            let piece = shared.piece(*piece);
            // A child forked without our knowledge meanwhile lacks this memory, just as it lacks live memory.
            let _ = piece.advise(Advice::DontFork);
            move_pages(*piece, place, &mut hold.moved_to)?;
        }
        Ok(hold)
    }

    /// The place of a piece's content while it is held.
    pub(super) fn content(&self, piece: VirtRange) -> OwnedRange {
        let Some(aside) = self.aside else { return *self.shared.piece(piece) };
        aside.part(VirtRange::new(aside.start + (piece.start - self.part.start), piece.len))
    }

    /// Notes that everything up to `end` is mapped anew.
    pub(super) fn done(&mut self, end: usize) {
        self.done_to = end;
    }

    /// The number of waiting threads that were not counted before. Threads that are woken uncounted never are.
    pub(super) fn count_waiting(&self) -> u64 {
        self.uffd.read_events().map_or(0, |events| events.faults)
    }

    fn let_go(&mut self) {
        for &(piece, _) in self.pieces {
            if piece.end() <= self.done_to {
                continue;
            }
            if self.aside.is_none() {
                let _ = write_protect(self.uffd, piece, false);
                continue;
            }
            let moved = piece.intersect(VirtRange::between(self.part.start, self.moved_to));
            if !moved.is_empty() {
                self.move_back(moved);
            }
            let _ = retry_until_ok(|| self.uffd.unregister(piece));
        }
        // After the mappings, so that woken threads find them.
        let _ = retry_until_ok(|| self.uffd.wake(self.part));
        if let Some(aside) = self.aside {
            // If it fails, the next hold replaces what is there.
            let _ = aside.map_anonymous(Prot::NONE);
        }
    }

    fn move_back(&self, moved: VirtRange) {
        if move_back(self.content(moved), *self.shared.piece(moved)).is_err() {
            let _ = std::io::stderr().write_all(
                b"cowslip: the kernel would not move memory back after a thaw that failed: too many mappings \
                  (vm.max_map_count)\n",
            );
            std::process::abort();
        }
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// Registers a piece for write protection, which leaves markers where a file has no page. Where there is no file it leaves
/// none: there an access to a missing page waits as well. Where there is one it must not. This thread reads all that may
/// be private, and without [knowledge of markers](cowslip_sys::pagemap::Scanner::knows_markers) that includes places
/// where the file has nothing: it would wait for itself. Returns true if it has one.
fn register_for_protection(uffd: &Uffd<ReservedFd>, piece: VirtRange) -> Result<bool, Errno> {
    // A hold by protection leaves pieces registered, and Linux 7.3 registers no memory for another mode (`EBUSY`).
    let _ = retry_until_ok(|| uffd.unregister(piece));
    // Only memory with a file has minor faults.
    let (mode, has_file) = match uffd.register(piece, RegisterMode::MINOR) {
        Ok(()) => (RegisterMode::WP, true),
        Err(Errno::INVAL) => (RegisterMode::MISSING | RegisterMode::WP, false),
        Err(errno) => return Err(errno),
    };
    let registered = uffd.register(piece, mode).inspect_err(|_| {
        // Threads that wait by now are woken at the hold's end.
        let _ = retry_until_ok(|| uffd.unregister(piece));
    });
    registered.map(|()| has_file)
}

/// Moves the pages of `from` back to `to`, and tries until the kernel agrees, within reason.
pub(crate) fn move_back(from: OwnedRange, to: OwnedRange) -> Result<(), Errno> {
    let mut done = from.start;
    retry_until_ok(|| {
        let rest = VirtRange::between(done, from.end());
        let target = VirtRange::new(to.start + (rest.start - from.start), rest.len);
        if rest.is_empty() {
            return Ok(());
        }
        move_pages(from.part(rest), to.part(target), &mut done)
    })
}

/// Moves the pages of `from` to `to`, and `moved_to` to the end of the moved part of `from`: to the kernel, memory
/// frozen at different times may be several mappings, each with its own history of copies.
pub(crate) fn move_pages(
    from: OwnedRange,
    to: OwnedRange,
    moved_to: &mut usize,
) -> Result<(), Errno> {
    match from.move_pages_to(to) {
        Ok(()) => {
            *moved_to = from.end();
            Ok(())
        }
        Err(Errno::FAULT) if from.len > page_size_bytes() => {
            let (left, right) = halves(*from);
            let target = |part: VirtRange| {
                to.part(VirtRange::new(to.start + (part.start - from.start), part.len))
            };
            move_pages(from.part(left), target(left), moved_to)?;
            move_pages(from.part(right), target(right), moved_to)
        }
        Err(errno) => Err(errno),
    }
}
