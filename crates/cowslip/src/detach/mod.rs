//! Memory that leaves an arena: it becomes ordinary memory of the kernel, under the same addresses.
//!
//! ```text
//!  write-protect ──▶ copy elsewhere ──▶ move the copy over it ──▶ wake
//! ```
//! For uses that an arena cannot follow, because a freeze makes new mappings: memory locked in RAM, kept from children,
//! wiped in them, with protection keys, read into by devices, with shared futexes. Its later forks cost as much as on
//! stock Linux.
//!
//! Writers wait while their memory is copied, in the arena's userfaultfd or in one opened for this alone. Without any,
//! in a process that has other threads, and where the caller stands on it, memory is *left*: it is mapped privately
//! where it lies, in one step that no thread has to wait for, and never thawed. Its base stays in the file as long as
//! the arena, and its place is never handed out again: children that inherited it read that base, and are not counted
//! as readers.
//!
//! Every address shows the same content before and after.

mod content;

use std::sync::atomic::Ordering::Relaxed;

use cowslip_sys::Errno;
use cowslip_sys::error::{During, Error, Result};
use cowslip_sys::memory::{Advice, Prot, Sharing};
use cowslip_sys::process::BlockedSignals;
use cowslip_sys::procfs::own;
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::uffd::{self, Features, RegisterMode, Uffd};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};

use crate::arena::allocate::lost;
use crate::arena::chunk::{contains_current_stack, hold_writers};
use crate::arena::state::{Chunk, Role, Shared, State};
use crate::mapping::OwnSpace;
use crate::mapping::backing_file::Pages;
use crate::memory::departure::Departure;
use crate::memory::vma_map::{Span, Usage};
use crate::service::Service;

const OPERATION: &str = "take memory out of an arena";

impl Shared {
    /// Makes `range` private anonymous memory with its present content.
    pub(crate) fn detach(&self, state: &mut State, range: VirtRange, why: Departure) -> Result<()> {
        if self.pages == Pages::Hugetlb {
            return Err(Error::from_errno(OPERATION, Errno::NOTSUP).on(range));
        }
        let spans: Vec<_> = state.vma_map.within(range).collect();
        if spans.iter().any(|span| span.usage == Usage::Free) {
            return Err(Error::from_errno(OPERATION, Errno::NOMEM).on(range));
        }
        self.check_content(state, range)?;
        state.zero_pages.let_go();
        let service = self.service(state);
        let service = service.as_deref();
        let able = service.filter(|service| !service.has_failed());
        let needs_own = able.is_none() && self.wants_userfaultfd;
        let own = if needs_own { Self::own_guard() } else { None };
        let guard = able.map(|service| &service.uffd).or(own.as_ref());
        let has_writers = guard.is_none() && own::thread_count() != Some(1);
        let mut done = Ok(());
        let used: Vec<_> = spans.into_iter().filter(|span| span.usage == Usage::Used).collect();
        for run in used.chunk_by(|a, b| a.range.end() == b.range.start) {
            let whole = VirtRange::between(run[0].range.start, run[run.len() - 1].range.end());
            // A thread that copied its own stack would wait for itself, or lose its writes to it meanwhile.
            let moved = match has_writers || contains_current_stack(whole) {
                true => Err(Errno::BUSY),
                false => self.detach_run(state, whole, run, service, guard),
            };
            // Memory that could not be copied, for lack of memory or of a descriptor, can be left.
            let is_left = moved.is_err() && state.vma_map.is_all(whole, Usage::Used);
            let leave = || run.iter().try_for_each(|span| self.leave_span(state, *span));
            let left = if is_left { leave() } else { moved };
            if let Err(errno) = left {
                done = Err(Error::from_errno(OPERATION, errno).on(whole));
                break;
            }
            if is_left {
                state.files.forget_target();
            }
            for span in run {
                match is_left {
                    true => state.vma_map.leave(span.range, span.prot),
                    false => {
                        self.keep_wiped(state, span.range);
                        self.set_detached(state, span.range, span.prot);
                    }
                }
            }
            if !is_left {
                // If it fails, the file keeps content that no mapping shows.
                let _ = self.give_back(state, whole);
            }
            self.counters.left_bytes.fetch_add(whole.len as u64, Relaxed);
            self.counters.left_for.fetch_or(why.bit(), Relaxed);
        }
        done
    }

    /// A userfaultfd to make writers wait in an arena without a service thread; its events need no reader.
    fn own_guard() -> Option<Uffd<ReservedFd>> {
        const FEATURES: Features = Features::PAGEFAULT_FLAG_WP
            .union(Features::MISSING_SHMEM)
            .union(Features::WP_HUGETLBFS_SHMEM);
        let fd = uffd::open_reserved().ok()?;
        Uffd::new(fd, FEATURES).ok()
    }

    /// Maps a span privately where it lies, for good. Frozen chunks are mapped so already.
    fn leave_span(&self, state: &State, span: Span) -> Result<(), Errno> {
        for (i, part) in self.by_chunk(span.range) {
            if let Some(base) = &state.borrowed_base
                && state.chunk(i) == Chunk::Borrowed
            {
                base.set_inherited(Advice::DoFork)?;
            }
            let piece = self.piece(part);
            // The base under it is not written any more: an arena writes bases of live memory and of memory that it thaws.
            if state.chunk(i) == Chunk::Live {
                let left = piece.map(state.file_at(part.start).fd(), Sharing::Private, span.prot);
                // Before Linux 6.12 a mapping that `vm.overcommit_memory=2` refuses leaves none in its place.
                left.inspect_err(|_| _ = self.map_live(state, part, span.prot))?;
            } else {
                piece.advise(Advice::DoFork)?;
            }
            let is_of_file = !matches!(state.chunk(i), Chunk::Borrowed | Chunk::Anonymous);
            if is_of_file && !state.files.are_renounced() {
                // Children get the mapping without a token that counts them.
                state.file_at(part.start).set_exposed();
            }
        }
        Ok(())
    }

    /// See [`crate::raw::RawArena::wipe_on_fork`].
    pub(crate) fn wipe_on_fork(&self, state: &mut State, range: VirtRange, wiped: bool) {
        if wiped {
            state.wiped.push(range);
            return;
        }
        let cut = |old: VirtRange| {
            let before = VirtRange::between(old.start, range.start.min(old.end()));
            [before, VirtRange::between(range.end().max(old.start), old.end())]
        };
        state.wiped = state.wiped.drain(..).flat_map(cut).filter(|part| !part.is_empty()).collect();
    }

    /// Makes the kernel empty wiped memory in children, once an anonymous mapping has taken the place of memory that
    /// left.
    pub(crate) fn keep_wiped(&self, state: &State, range: VirtRange) {
        let wiped = state.wiped.iter().map(|wiped| wiped.intersect(range));
        for part in wiped.filter(|part| !part.is_empty()) {
            let _ = self.piece(part).advise(Advice::WipeOnFork);
        }
    }

    /// The spans that a child must find empty and that the kernel does not empty, since they still map files.
    pub(crate) fn emptied_in_child(&self, state: &State) -> impl Iterator<Item = Span> {
        let left = |range| state.vma_map.within(range).filter(|span| span.usage == Usage::Left);
        state.wiped.iter().copied().flat_map(left)
    }

    /// In a child: empties the spans that it must find empty.
    pub(crate) fn wipe(&self, state: &mut State) {
        let spans: Vec<Span> = self.emptied_in_child(state).collect();
        state.wiped.clear();
        for span in spans {
            let piece = self.piece(span.range);
            if piece.map_anonymous(span.prot).is_ok() {
                self.set_detached(state, span.range, span.prot);
                // Its children must find it empty, too.
                let _ = piece.advise(Advice::WipeOnFork);
            }
        }
    }

    /// Detaches all live memory: memory that cannot be frozen cannot be forked.
    pub(crate) fn detach_live(&self, state: &mut State, why: Departure) -> Result<()> {
        let mut from = 0;
        while let Some(run) = state.map.next_run(from, usize::MAX, |chunk| chunk == Chunk::Live) {
            from = run.end;
            let whole = self.chunk_range(run.start, run.len());
            for used in state.vma_map.used_within(whole) {
                self.detach(state, used, why)?;
            }
        }
        Ok(())
    }

    fn check_content(&self, state: &State, range: VirtRange) -> Result<()> {
        let is_lost = |chunk| state.chunk(chunk) == Chunk::Poisoned;
        if state.map.count(Chunk::Poisoned) > 0 && self.chunks_of(range).any(is_lost) {
            return Err(lost(OPERATION, range));
        }
        Ok(())
    }

    /// Makes `whole`, spans without gaps, private anonymous memory. If it fails, a part of it may be that already, and
    /// no longer the arena's.
    fn detach_run(
        &self,
        state: &mut State,
        whole: VirtRange,
        spans: &[Span],
        service: Option<&Service>,
        guard: Option<&Uffd<ReservedFd>>,
    ) -> Result<(), Errno> {
        let mut copy = OwnSpace::reserve_apart(whole.len, page_size_bytes())?;
        // A signal handler could store to memory that waits for this very thread.
        let _blocked = guard.map(|_| BlockedSignals::enter());
        let mut moved_to = whole.start;
        let detached = (|| {
            if let Some(guard) = guard {
                self.hold_writers(state, whole, guard, service)?;
            }
            copy.map_anonymous(Prot::RW)?;
            for Span { range, prot, .. } in spans {
                let place = VirtRange::new(copy.start + (range.start - whole.start), range.len);
                let place = copy.part(place);
                place.with_bytes(|target| self.copy_content(state, *range, target, service))?;
                if *prot != Prot::RW {
                    place.protect(*prot)?;
                }
            }
            for Span { range, .. } in spans {
                copy.move_front_to(*self.piece(*range))?;
                moved_to = range.end();
            }
            Ok(())
        })();
        // Another thread may have mapped something by now where parts were moved away.
        drop(copy);
        if detached.is_err() {
            for span in spans.iter().filter(|span| span.range.end() <= moved_to) {
                self.set_detached(state, span.range, span.prot);
            }
        }
        if let Some(guard) = guard {
            if detached.is_err() {
                let _ = guard.unregister(whole);
            }
            // After the mapping, so that woken threads find it; on errors too (I6).
            let _ = guard.wake(whole).or_else(|_| guard.wake(whole));
        }
        detached
    }

    /// See [`crate::raw::RawArena::copy_to`].
    pub(crate) fn copy_out(
        &self,
        state: &State,
        range: VirtRange,
        target: &mut [u8],
    ) -> Result<()> {
        self.check_content(state, range)?;
        let service = self.service(state);
        let copied = state.vma_map.within(range).try_for_each(|Span { range: part, .. }| {
            let place = &mut target[part.start - range.start..][..part.len];
            self.copy_content(state, part, place, service.as_deref())
        });
        copied.during("copy memory of an arena")
    }

    /// Frees whole chunks of the file that no mapping shows any more.
    pub(crate) fn give_back(&self, state: &State, range: VirtRange) -> Result<(), Errno> {
        let whole = range.inner_aligned(CHUNK_BYTES);
        // The base of a clean chunk has no readers either.
        let live = |i: &usize| matches!(state.chunk(*i), Chunk::Live | Chunk::Clean);
        if state.role == Role::Reader {
            return Ok(());
        }
        self.chunks_of(whole).filter(live).try_for_each(|chunk| {
            let place = self.chunk_range(chunk, 1);
            self.punch_in(state.file_at(place.start), place)
        })
    }

    /// Makes stores to `range` wait from here on, as in a thaw.
    fn hold_writers(
        &self,
        state: &State,
        range: VirtRange,
        guard: &Uffd<ReservedFd>,
        service: Option<&Service>,
    ) -> Result<(), Errno> {
        guard.register(range, RegisterMode::WP)?;
        for (_, part) in self.by_chunk(range).filter(|(i, _)| state.chunk(*i) == Chunk::Anonymous) {
            // Without a file there are no markers for pages that are not there.
            guard.register(part, RegisterMode::MISSING | RegisterMode::WP)?;
        }
        self.by_chunk(range).try_for_each(|(i, part)| {
            hold_writers(guard, service, part, state.chunk(i) != Chunk::Anonymous)
        })
    }
}
