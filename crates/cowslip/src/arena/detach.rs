#![allow(unsafe_code)]
//! Memory that leaves an arena: it becomes what the kernel would have given, under the same addresses.
//!
//! ```text
//!  write-protect ──▶ copy elsewhere ──▶ move the copy over it ──▶ wake
//! ```
//! For what an arena cannot follow, because a freeze makes new mappings: memory locked in RAM, kept from
//! children, wiped in them, with protection keys. Its later forks cost what they cost on stock Linux.
//!
//! Without a userfaultfd nobody can be made to wait. If there are other threads, live memory then becomes a private
//! mapping of the file at one instant, the kernel copies every page of it, and the file's part is given back: what is
//! left is private memory with nothing but zeroes under it. Frozen memory cannot leave that way, as its readers need what
//! is under it; nor need it, as nothing thaws it.
//!
//! # Safety
//! The ranges were checked to be handed out. Writers wait while they are copied, if there is a userfaultfd; else there is
//! no other thread, or the kernel copies page by page as they write. Every address shows the same content before and
//! after.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use super::ledger::{Span, Usage};
use super::space::lost;
use super::state::{Chunk, Role, Shared, State};
use super::store::{Pages, offset};
use crate::error::{During, Error, Result};
use crate::freeze::service::Service;
use crate::freeze::thaw;
use crate::sys::held::HeldFd;
use crate::sys::memory::{self, Advice, Prot, Sharing};
use crate::sys::pagemap::Scanner;
use crate::sys::uffd::RegisterMode;
use crate::sys::{Errno, memfile, process};
use crate::units::{CHUNK_BYTES, VirtRange, page_size_bytes};

const OPERATION: &str = "take memory out of an arena";

/// Why memory leaves an arena and becomes the kernel's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[non_exhaustive]
pub enum Departure {
    /// The program asked for what a freeze would undo: `mlock(2)`, `MADV_DONTFORK`, protection keys, `mseal(2)`.
    Advice,
    /// A file opened with `O_DIRECT` is read into it (`open(2)`).
    DirectIo,
    /// Its pages are, or may be, known to a ring: `io_uring(7)`, `io_setup(2)`.
    Ring,
    /// A futex in it is found by where its page lies, not by its address (`futex(2)`).
    SharedFutex,
    /// The program handles its page faults (`userfaultfd(2)`).
    Userfaultfd,
    /// A limit of the process counts private memory and not an arena's (`getrlimit(2)`).
    Limit,
    /// It is cut into so many protections that a freeze would take longer than a fork.
    Fragmented,
    /// The freeze that a fork needs was refused.
    Refused,
}

impl Departure {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Advice,
        Self::DirectIo,
        Self::Ring,
        Self::SharedFutex,
        Self::Userfaultfd,
        Self::Limit,
        Self::Fragmented,
        Self::Refused,
    ];

    /// Those that [`Metrics::left_for`](crate::Metrics::left_for) names.
    pub fn of_metrics(left_for: u64) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |why| left_for & why.bit() != 0)
    }

    pub(crate) fn bit(self) -> u64 {
        1 << self as u8
    }
}

impl fmt::Display for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Advice => "locked, sealed, kept from children or keyed",
            Self::DirectIo => "target of O_DIRECT reads",
            Self::Ring => "within reach of io_uring or AIO",
            Self::SharedFutex => "holds a shared futex or a thread's stack",
            Self::Userfaultfd => "registered with the program's own userfaultfd",
            Self::Limit => "counted by a resource limit",
            Self::Fragmented => "cut into too many protections",
            Self::Refused => "could not be frozen",
        })
    }
}

impl Shared {
    /// Makes `range` private anonymous memory with the content it has.
    pub(crate) fn detach(&self, state: &mut State, range: VirtRange, why: Departure) -> Result<()> {
        if self.store.pages == Pages::Hugetlb {
            return Err(Error::from_errno(OPERATION, Errno::NOTSUP).on(range));
        }
        let spans: Vec<_> = state.ledger.within(range).collect();
        if spans.iter().any(|span| span.usage == Usage::Free) {
            return Err(Error::from_errno(OPERATION, Errno::NOMEM).on(range));
        }
        self.check_content(state, range)?;
        for span in spans.into_iter().filter(|span| span.usage == Usage::Used) {
            let service = state.service.take();
            let detached = self.detach_span(state, span, service.as_ref());
            state.service = service;
            // What was registered for a thaw may not be any more.
            state.thaw.armed &= detached.is_ok();
            let is_copied =
                detached.map_err(|errno| Error::from_errno(OPERATION, errno).on(span.range))?;
            self.surrender(state, span.range);
            self.counters.left_bytes.fetch_add(span.range.len as u64, Relaxed);
            self.counters.left_for.fetch_or(why.bit(), Relaxed);
            if is_copied {
                // If it fails, the file keeps what nobody shows until the arena ends.
                let _ = self.give_back(state, span.range);
            }
        }
        Ok(())
    }

    fn check_content(&self, state: &State, range: VirtRange) -> Result<()> {
        let is_lost = |chunk| state.chunk(chunk) == Chunk::Lost;
        if state.lost() > 0 && self.chunks_of(range).any(is_lost) {
            return Err(lost(OPERATION, range));
        }
        Ok(())
    }

    /// Whether nothing shows what the file has any more.
    fn detach_span(
        &self,
        state: &State,
        span: Span,
        service: Option<&Service>,
    ) -> Result<bool, Errno> {
        let Span { range, prot, .. } = span;
        if service.is_none() && prot.contains(Prot::WRITE) && process::thread_count() != Some(1) {
            return self.make_private(state, range, prot);
        }
        let copy = memory::reserve(range.len, page_size_bytes())?;
        let detached = (|| {
            if let Some(service) = service {
                self.hold_writers(state, range, service)?;
            }
            // SAFETY: the copy is this function's own; the rest see the module.
            unsafe {
                memory::map_anonymous(copy, Prot::RW)?;
                self.with_scanner(service, |scanner| {
                    self.copy_content(state, range, copy.start, scanner)
                })?;
                memory::protect(copy, prot)?;
                memory::move_mapping(copy, range)
            }
        })();
        if detached.is_err() {
            // SAFETY: the copy is nobody else's.
            let _ = unsafe { memory::unmap(copy) };
        }
        if let Some(service) = service {
            if detached.is_err() {
                let _ = service.uffd().unregister(range);
            }
            // After the mapping, so that who wakes finds it; on errors too (I6).
            let _ = service.uffd().wake(range).or_else(|_| service.uffd().wake(range));
        }
        detached.map(|()| true)
    }

    /// Makes live memory private while others write to it. Whether all of it was copied.
    fn make_private(&self, state: &State, range: VirtRange, prot: Prot) -> Result<bool, Errno> {
        if self.chunks_of(range).any(|chunk| state.chunk(chunk) != Chunk::Live) {
            return Err(Errno::BUSY);
        }
        let at = offset(self.range, range);
        // SAFETY: a store before this instant is in the file, which the new mapping shows; one after it is in a copy.
        unsafe {
            memory::map_file(range, self.store.fd(), at, Sharing::Private, prot)?;
            // If pages are left that are not copied, the file keeps what they show.
            let is_copied = memory::advise(range, Advice::PopulateWrite).is_ok();
            if is_copied {
                let _ = memfile::punch_hole(self.store.fd(), at, range.len as u64);
            }
            Ok(is_copied)
        }
    }

    /// See [`crate::Arena::copy_to`].
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn copy_out(
        &self,
        state: &State,
        range: VirtRange,
        target: usize,
    ) -> Result<()> {
        self.check_content(state, range)?;
        self.with_scanner(state.service.as_ref(), |scanner| {
            // SAFETY: as the caller promised.
            unsafe { self.copy_content(state, range, target, scanner) }
        })
        .during("copy memory of an arena")
    }

    /// Copies what `range`, handed out with one protection, shows to `target`, which is all zeroes.
    ///
    /// # Safety
    /// `target` is writable memory of that length, elsewhere; nobody writes to `range` meanwhile.
    unsafe fn copy_content(
        &self,
        state: &State,
        range: VirtRange,
        target: usize,
        scanner: &Scanner<HeldFd>,
    ) -> Result<(), Errno> {
        let prot = state.ledger.within(range).next().map_or(Prot::NONE, |span| span.prot);
        let is_hidden = !prot.contains(Prot::READ);
        if is_hidden {
            // SAFETY: see the module; who may not read it may see it for a moment, instead of dying.
            unsafe { memory::protect(range, Prot::READ) }?;
        }
        let copied = self.by_chunk(range).try_for_each(|(i, part)| {
            let place = target + (part.start - range.start);
            if state.chunk(i) != Chunk::Overlay {
                // SAFETY: as the caller promised, for a part of the target.
                let content =
                    unsafe { core::slice::from_raw_parts_mut(place as *mut u8, part.len) };
                self.read_file(part, content)?;
            }
            if state.chunk(i) == Chunk::Live {
                return Ok(());
            }
            let copy = |run: VirtRange| {
                let place = (place + (run.start - part.start)) as *mut u8;
                // SAFETY: both are mapped, and the target is elsewhere.
                unsafe { core::ptr::copy_nonoverlapping(run.start as *const u8, place, run.len) }
            };
            scanner.private_runs(part, copy).map(drop)
        });
        if is_hidden {
            // SAFETY: as it was.
            unsafe { memory::protect(range, prot) }?;
        }
        copied
    }

    /// Reads what the file holds for `part`; its holes stay as they are, here and there. Whether there
    /// was anything.
    pub(crate) fn read_file(&self, part: VirtRange, content: &mut [u8]) -> Result<bool, Errno> {
        let start = offset(self.range, part);
        let (mut at, end) = (start, start + part.len as u64);
        // hugetlbfs does not say where its holes are.
        let is_hugetlb = self.store.pages == Pages::Hugetlb;
        let next = |at| match is_hugetlb {
            true => Ok((at < end).then_some((at, end))),
            false => memfile::next_data(self.store.fd(), at, end),
        };
        while let Some((from, to)) = next(at)? {
            at = from;
            while at < to {
                let place = &mut content[(at - start) as usize..(to - start) as usize];
                match memfile::read_at(self.store.fd(), place, at) {
                    Ok(0) => return Err(Errno::IO),
                    Ok(read) => at += read as u64,
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno),
                }
            }
        }
        Ok(at > start)
    }

    /// Whether the file is known to have no hole in `part`.
    pub(crate) fn is_all_data(&self, part: VirtRange) -> Result<bool, Errno> {
        // hugetlbfs does not say where its holes are.
        if self.store.pages == Pages::Hugetlb {
            return Ok(false);
        }
        let start = offset(self.range, part);
        let whole = (start, start + part.len as u64);
        Ok(memfile::next_data(self.store.fd(), whole.0, whole.1)? == Some(whole))
    }

    /// Frees whole chunks of the file that nobody shows any more.
    pub(super) fn give_back(&self, state: &State, range: VirtRange) -> Result<(), Errno> {
        let whole = range.inner_aligned(CHUNK_BYTES);
        // Nobody reads what is under a kept chunk either.
        let live = |i: &usize| matches!(state.chunk(*i), Chunk::Live | Chunk::Kept);
        if state.role == Role::Reader {
            return Ok(());
        }
        for chunk in self.chunks_of(whole).filter(live) {
            let at = offset(self.range, self.chunk_range(chunk, 1));
            memfile::punch_hole(self.store.fd(), at, CHUNK_BYTES as u64)?;
        }
        Ok(())
    }

    /// As in a thaw: stores to `range` wait from here on.
    fn hold_writers(
        &self,
        state: &State,
        range: VirtRange,
        service: &Service,
    ) -> Result<(), Errno> {
        service.uffd().register(range, RegisterMode::WP)?;
        for (_, part) in self.by_chunk(range).filter(|(i, _)| state.chunk(*i) == Chunk::Overlay) {
            // Without a file there are no markers for pages that are not there.
            service.uffd().register(part, RegisterMode::MISSING | RegisterMode::WP)?;
        }
        thaw::write_protect(service.uffd(), range, true)
    }

    fn with_scanner<T>(
        &self,
        service: Option<&Service>,
        act: impl FnOnce(&Scanner<HeldFd>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match service {
            Some(service) => act(service.scanner()),
            None => act(&Scanner::new(HeldFd::hold(memfile::open_proc_self("pagemap")?))),
        }
    }
}
