//! Brings chunks from an image into the file behind an arena, where they are invisible until they
//! are [shown](super::lazy) or the arena is returned.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use cowslip_sys::error::{During, Result};
use cowslip_sys::memory::{Advice, Prot};
use cowslip_sys::units::CHUNK_BYTES;
use cowslip_sys::{AsFd, BorrowedFd, Errno, cache, memfile};

use crate::arena::state::Shared;
use crate::image::chunk::{Scratch, is_zero};
use crate::image::format::{Checksum, Entry, PAGE_BYTES};
use crate::image::storage::Urgency;
use crate::image::{Image, OnArrival};
use crate::mapping::backing_file::BackingFile;
use crate::mapping::{OwnSpace, OwnedRange};
use crate::retry::retry_until_ok;

use super::lending::Lender;
use super::options::OPERATION;
use super::plan::Plan;
use super::schedule::RestoreSchedule;
use super::window::Window;

/// How often, and how long apart, an allocation is retried when memory is short.
const ATTEMPTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(5);

/// From this number of threads on, each fills mapped pages, which the kernel clears first. Fewer are done sooner if
/// they write from a buffer, one at a time under the kernel's lock of the file: a chunk takes 0.18 ms of a processor,
/// 0.08 ms of that for the write; mapped it takes 0.23 ms.
const ENOUGH_FOR_WINDOW: usize = 4;

/// The tools of a thread that fetches.
pub(super) struct FetchContext {
    window: Option<Arc<Window>>,
    /// Room for a chunk.
    content: Option<OwnSpace>,
    scratch: Scratch,
}

impl FetchContext {
    fn new(window: Option<Arc<Window>>) -> Self {
        Self { window, content: None, scratch: Scratch::default() }
    }

    /// For the first of `threads` threads.
    pub(super) fn first(arena: &Shared, file: &BackingFile, threads: usize) -> Self {
        let is_for_window = file.pages.is_huge() && threads >= ENOUGH_FOR_WINDOW;
        let window = is_for_window.then(|| Window::open(file, arena.range.len).ok());
        Self::new(window.flatten().map(Arc::new))
    }

    /// For another thread.
    pub(super) fn beside(&self) -> Self {
        Self::new(self.window.clone())
    }

    /// Called when every chunk is in.
    pub(super) fn close_window(&self) {
        if let Some(window) = &self.window {
            window.close();
        }
    }
}

#[derive(Debug)]
pub(super) struct Source {
    pub(super) image: Image,
    pub(super) arena: u32,
    /// The arena's file: there is one file as long as chunks are missing.
    pub(super) file: Arc<BackingFile>,
    /// Asked before the file is read.
    pub(super) lender: Option<Lender>,
}

impl Source {
    /// Calls `bring_in` with one chunk after the other, until there are none, or it breaks off.
    ///
    /// Chunks that arrive from elsewhere come in the order of arrival: a thread never waits for one while others are ready.
    pub(super) fn each(
        &self,
        schedule: &RestoreSchedule,
        mut bring_in: impl FnMut(u32) -> ControlFlow<()>,
    ) {
        let most_ahead = self.image.has_arrivals().then(|| self.image.prefetch_chunks());
        let claim = |plan: &mut Plan| {
            let Some(most_ahead) = most_ahead else { return plan.claim() };
            self.need_now(&plan.newly_wanted());
            self.will_need(&plan.name_ahead(most_ahead));
            plan.claim_ready(|chunk| self.is_ready(chunk))
        };
        while let Some(chunk) = schedule.claim(claim)
            && bring_in(chunk).is_continue()
        {}
    }

    /// Wakes the threads that wait in [`Self::each`] whenever bytes have arrived, as long as the result lives.
    pub(super) fn listen(&self, schedule: &Arc<RestoreSchedule>) -> Arc<OnArrival> {
        let schedule = Arc::clone(schedule);
        let listener: Arc<OnArrival> = Arc::new(move || schedule.change(|_| ()));
        self.image.subscribe(&listener);
        listener
    }

    /// Begins to fetch chunks, in this order.
    fn will_need(&self, chunks: &[u32]) {
        self.prefetch(chunks, Urgency::Soon);
    }

    /// Begins to fetch chunks that threads wait for.
    pub(super) fn need_now(&self, chunks: &[u32]) {
        self.prefetch(chunks, Urgency::Now);
    }

    /// Prefetches from the image, unless a lender has the chunks.
    fn prefetch(&self, chunks: &[u32], urgency: Urgency) {
        if self.lender.is_none() {
            self.image.prefetch(self.arena, chunks, urgency);
        }
    }

    /// Returns true if a prefetched chunk has arrived.
    fn is_ready(&self, chunk: u32) -> bool {
        self.lender.is_some() || self.image.is_ready(self.arena, chunk)
    }

    /// Brings a chunk into the arena's file, and checks it. After an error it leaves a hole.
    pub(super) fn fetch(&self, chunk: u32, context: &mut FetchContext) -> Result<()> {
        if self.copy(chunk, context) == Some(true) {
            return Ok(());
        }
        let read = self.read(chunk, context);
        if read.is_err() {
            let _ = memfile::punch_hole(self.file.fd(), place(chunk), CHUNK_BYTES as u64);
        }
        read
    }

    /// Brings a chunk in through the arena's own addresses, which are not in use yet, if that needs no wait for a disk
    /// and no decoding. After `false` there is a hole, and the disk has begun to read.
    pub(super) fn fetch_cached(&self, arena: &Shared, chunk: u32) -> bool {
        if let Some((image, stored)) = self.image.verbatim(self.arena, chunk)
            && arena.pages.is_huge()
            && let Some(read) = read_of_cached(image.as_fd(), stored)
        {
            let copy = arena.piece(arena.chunk_range(chunk as usize, 1));
            if read_into(*copy, image.as_fd(), stored, read) == Ok(true) {
                return true;
            }
            // If the hole is refused, a touch must not show this content: without an entry in the page table it is a
            // minor fault.
            let _ = copy.advise(Advice::DontNeed);
            let _ = memfile::punch_hole(self.file.fd(), place(chunk), CHUNK_BYTES as u64);
        }
        self.will_need(&[chunk]);
        false
    }

    /// Has the kernel copy a chunk from one file into the other, and checks it there. Returns `Some(true)` if it is
    /// right; otherwise [`Self::fetch`] finds the reason.
    fn copy(&self, chunk: u32, context: &FetchContext) -> Option<bool> {
        let window = context.window.as_ref().filter(|_| self.lender.is_none())?;
        let (image, stored) = self.image.verbatim(self.arena, chunk)?;
        read_into(window.chunk(chunk), image.as_fd(), stored, memfile::read_at).ok()
    }

    fn read(&self, chunk: u32, context: &mut FetchContext) -> Result<()> {
        let FetchContext { content, scratch, .. } = context;
        let room = match content {
            Some(room) => room,
            None => content.insert(retry_until_ok(room).during(OPERATION)?),
        };
        room.with_bytes(|content| self.read_by_way_of(content, scratch, chunk))
    }

    fn read_by_way_of(&self, content: &mut [u8], scratch: &mut Scratch, chunk: u32) -> Result<()> {
        let is_lent = self.lender.as_ref().is_some_and(|lender| lender.read(chunk, content));
        if !is_lent || !self.image.is_content(self.arena, chunk, content) {
            self.image.read_chunk_with(scratch, self.arena, chunk, content)?;
        }
        let (file, at) = (self.file.fd(), place(chunk));
        if self.file.pages.is_huge() {
            // One write: then the kernel need not clear the huge page first.
            return patiently(|| memfile::write_at(file, content, at)).during(OPERATION);
        }
        let pages = content.chunks_exact(PAGE_BYTES).enumerate();
        for (i, page) in pages.filter(|(_, page)| !is_zero(page)) {
            patiently(|| memfile::write_at(file, page, at + (i * PAGE_BYTES) as u64))
                .during(OPERATION)?;
        }
        Ok(())
    }
}

/// Reads at most a buffer's length, from an offset on; returns the number of bytes.
type Read = fn(BorrowedFd<'_>, &mut [u8], u64) -> Result<usize, Errno>;

/// The function that reads a chunk's stored bytes without waiting for a disk, if the page cache has
/// them.
fn read_of_cached(image: BorrowedFd<'_>, stored: &Entry) -> Option<Read> {
    let (at, bytes) = (stored.offset_bytes, stored.total_bytes());
    match cache::cached(image, at, bytes) {
        // A non-waiting read stops where the kernel intends to read ahead, even if the page is
        // cached.
        Ok(cached) => (cached.bytes >= bytes).then_some(memfile::read_at),
        // Linux before 6.5. Asking for each page would take a third of the time of reading them; the cache may have
        // lost other pages, or hide its content from this user.
        Err(_) => {
            let has_last = cache::holds(image, at + bytes - PAGE_BYTES as u64) == Ok(true);
            has_last.then_some(memfile::read_cached_at)
        }
    }
}

/// Reads a chunk's stored bytes into a mapping of a file of huge pages that no other code accesses, and checks them
/// there. Returns true if they are right.
fn read_into(
    copy: OwnedRange,
    image: BorrowedFd<'_>,
    stored: &Entry,
    read: Read,
) -> Result<bool, Errno> {
    copy.first(PAGE_BYTES).advise(Advice::PopulateWrite)?;
    // The file is as long as the arena. The kernel writes there: a lack of memory is an error, not a signal.
    copy.with_bytes(|bytes| {
        read_all(image, bytes, stored.offset_bytes, read)?;
        Ok(Checksum::from_bytes(bytes) == stored.content)
    })
}

/// Fills `rest`; `EIO` if the file ends first.
fn read_all(
    file: BorrowedFd<'_>,
    mut rest: &mut [u8],
    mut offset_bytes: u64,
    read: Read,
) -> Result<(), Errno> {
    while !rest.is_empty() {
        let bytes = match read(file, rest, offset_bytes)? {
            0 => return Err(Errno::IO),
            bytes => bytes,
        };
        rest = &mut rest[bytes..];
        offset_bytes += bytes as u64;
    }
    Ok(())
}

/// Memory for a chunk, on a huge page if there is one: the first chunk is waited for, and page by page its buffer would
/// take longer than its content.
fn room() -> Result<OwnSpace, Errno> {
    let room = OwnSpace::reserve(CHUNK_BYTES, CHUNK_BYTES)?;
    room.map_anonymous(Prot::RW)?;
    for advice in [Advice::DontFork, Advice::HugePage, Advice::PopulateWrite] {
        // Without it the memory comes as it is touched.
        let _ = room.advise(advice);
    }
    Ok(room)
}

/// The offset of a chunk in the file behind its arena.
fn place(chunk: u32) -> u64 {
    u64::from(chunk) * CHUNK_BYTES as u64
}

/// Retries for a while: memory that is short now may be available a moment later.
fn patiently(mut write: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    for _ in 1..ATTEMPTS {
        match write() {
            Err(Errno::NOMEM | Errno::NOSPC | Errno::AGAIN) => std::thread::sleep(PAUSE),
            answer => return answer,
        }
    }
    write()
}
