//! The memory of one machine: pages that it has, that it gave back, and those that are missing.
//!
//! ```text
//!   missing ──a thread waits, or all are brought in──▶ filled ──▶ removed ──a thread waits──▶ zeroes
//! ```
//! * A removed page (balloon, hot-unplug) is zeroes from then on, and never the image's again.
//! * A machine can touch a page before the message of its removal is read: messages of removals are looked at before
//!   faults of the same read. Until that message is read the kernel refuses to fill pages (`EAGAIN`), and the fault is
//!   tried again.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use cowslip::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::uffd::{Message, Outcome, Uffd};
use cowslip_sys::{AsFd, Errno, process};

use super::content::{Content, Source};
use super::handshake::Mapping;

/// Filled around a page that a thread waits for, once the thread goes on.
const FIRST_WINDOW: usize = 64 << 10;
/// Filled behind it, if pages are touched in order.
const MOST_WINDOW: usize = 2 << 20;
/// Filled between two looks for messages, while all pages are brought in.
const PIECE: usize = 256 << 10;
/// Time until a page is tried again that could not be filled.
const AGAIN: Duration = Duration::from_millis(1);
/// Time in which a removal that began before the memory was left to the kernel is told.
const GRACE: Duration = Duration::from_millis(10);

/// One bit a page.
#[derive(Debug)]
struct Bits(Vec<u64>);

impl Bits {
    fn new(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    fn has(&self, at: usize) -> bool {
        self.0[at / 64] & 1 << (at % 64) != 0
    }

    fn set(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    fn clear(&mut self, at: usize) {
        self.0[at / 64] &= !(1 << (at % 64));
    }
}

/// A region, and the states of its pages.
#[derive(Debug)]
struct Region {
    mapping: Mapping,
    filled: Bits,
    removed: Bits,
    /// The page behind those that were filled last, and how many were.
    next: usize,
    window: usize,
}

impl Region {
    fn pages(&self) -> usize {
        self.mapping.host.len / self.mapping.page_bytes
    }

    fn page_of(&self, address: usize) -> usize {
        (address - self.mapping.host.start) / self.mapping.page_bytes
    }

    fn range(&self, page: usize, pages: usize) -> VirtRange {
        let bytes = self.mapping.page_bytes;
        VirtRange::new(self.mapping.host.start + page * bytes, pages * bytes)
    }

    /// Returns true for a page of the image's that the machine does not have.
    fn wants(&self, page: usize) -> bool {
        !self.filled.has(page) && !self.removed.has(page)
    }

    /// Pages in a row from `page` that it wants, at most so many.
    fn run(&self, page: usize, most: usize) -> usize {
        (page..self.pages().min(page + most)).take_while(|page| self.wants(*page)).count()
    }
}

/// The end of a machine's need for pages, or a reason to give it none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// Its process has ended.
    Gone,
    /// It has all pages, and needs this process no more.
    Whole,
    /// It asked for something that cannot be done: it gets no more pages.
    Refused(String),
}

/// The progress of filling pages.
enum Step {
    Pages(usize),
    /// The kernel does not take pages now.
    Later,
}

#[derive(Debug)]
pub(super) struct Machine {
    uffd: Uffd,
    content: Arc<Content>,
    regions: Vec<Region>,
    /// Addresses at which threads wait.
    waiting: BTreeSet<usize>,
    /// The region and the page from which pages are brought in.
    cursor: (usize, usize),
    is_whole: bool,
    zeroes: Vec<u8>,
}

impl Machine {
    pub(super) fn new(uffd: Uffd, mappings: &[Mapping], content: Arc<Content>) -> Self {
        let region = |mapping: &Mapping| {
            let pages = mapping.host.len / mapping.page_bytes;
            let (filled, removed) = (Bits::new(pages), Bits::new(pages));
            Region { mapping: *mapping, filled, removed, next: usize::MAX, window: 0 }
        };
        let regions = mappings.iter().map(region).collect();
        let (waiting, cursor) = (BTreeSet::new(), (0, 0));
        Self { uffd, content, regions, waiting, cursor, is_whole: false, zeroes: Vec::new() }
    }

    /// Gives it pages until `life` can be read: its process has ended. From the moment at which `stop` can be read, or
    /// from the beginning if it is to be `whole`, all pages are brought in, and then it is left to the kernel.
    pub(super) fn serve(&mut self, life: BorrowedFd<'_>, stop: BorrowedFd<'_>, whole: bool) -> End {
        let (mut fills, mut stops, mut waits) = (whole, false, false);
        loop {
            let timeout = match (self.waiting.is_empty(), fills, self.is_whole) {
                (false, ..) => Some(AGAIN),
                (true, true, false) => Some(if waits { AGAIN } else { Duration::ZERO }),
                (true, _, true) if stops => Some(GRACE),
                (true, ..) => None,
            };
            let mut awaited = vec![self.uffd.as_fd(), life];
            awaited.extend((!stops).then_some(stop));
            let ready = match process::wait_many_readable(&awaited, timeout) {
                Ok(ready) => ready,
                Err(errno) => return refusal("wait for faults", errno),
            };
            if ready[1] {
                return End::Gone;
            }
            stops |= ready.get(2) == Some(&true);
            fills |= stops;
            if stops && self.is_whole && !ready[0] {
                return End::Whole;
            }
            let done = if ready[0] { self.read() } else { Ok(()) };
            let done = done.and_then(|()| self.answer());
            let may_fill = fills && !self.is_whole && self.waiting.is_empty();
            match done.and_then(|()| if may_fill { self.bring_in() } else { Ok(Step::Pages(0)) }) {
                Ok(step) => waits = matches!(step, Step::Later),
                Err(end) => return end,
            }
        }
    }

    /// Reads messages: removals count at once, faults wait for [`Self::answer`].
    fn read(&mut self) -> Result<(), End> {
        let (mut removed, mut other) = (Vec::new(), None);
        let read = self.uffd.read_messages(|message| match message {
            Message::Fault { address, is_missing: true } => drop(self.waiting.insert(address)),
            Message::Removed(range) => removed.push(range),
            strange => other = Some(strange),
        });
        read.map_err(|errno| refusal("read its messages", errno))?;
        for range in removed {
            self.remove(range);
        }
        other.map_or(Ok(()), |strange| {
            Err(End::Refused(format!("its userfaultfd tells of {strange:?}, not of missing pages")))
        })
    }

    fn remove(&mut self, range: VirtRange) {
        for region in &mut self.regions {
            let part = range.intersect(region.mapping.host);
            if part.is_empty() {
                continue;
            }
            let pages = region.page_of(part.start)..=region.page_of(part.end() - 1);
            for page in pages {
                region.removed.set(page);
                region.filled.clear(page);
            }
        }
    }

    /// Fills the pages that threads wait for, and then those around each.
    fn answer(&mut self) -> Result<(), End> {
        for address in std::mem::take(&mut self.waiting) {
            let found =
                self.regions.iter().position(|region| region.mapping.host.contains(address));
            let Some(region) = found.filter(|_| !self.is_whole) else {
                if self.is_whole {
                    continue;
                }
                return Err(End::Refused(format!(
                    "a page at {address:#x} is in none of its regions"
                )));
            };
            let page = self.regions[region].page_of(address);
            let was_removed = self.regions[region].removed.has(page);
            match self.fill(region, page, 1)? {
                Step::Later => drop(self.waiting.insert(address)),
                Step::Pages(_) if was_removed => {}
                Step::Pages(_) => self.fill_around(region, page)?,
            }
        }
        Ok(())
    }

    /// Fills the window of a page, as long as the kernel takes pages.
    fn fill_around(&mut self, index: usize, page: usize) -> Result<(), End> {
        let region = &mut self.regions[index];
        let window = FIRST_WINDOW / region.mapping.page_bytes;
        if window < 2 {
            return Ok(());
        }
        let in_order = page == region.next;
        let most = MOST_WINDOW / region.mapping.page_bytes;
        region.window = if in_order { (region.window * 2).min(most) } else { window };
        let start = if in_order { page } else { page - page % window };
        let end = region.pages().min(start + region.window);
        region.next = end;
        let mut at = start;
        while at < end {
            let pages = self.regions[index].run(at, end - at);
            match pages {
                0 => at += 1,
                _ => match self.fill(index, at, pages)? {
                    Step::Pages(pages) => at += pages,
                    Step::Later => break,
                },
            }
        }
        Ok(())
    }

    /// Fills pages of one source, at most so many; the first is zeroes if it was removed.
    fn fill(&mut self, index: usize, page: usize, pages: usize) -> Result<Step, End> {
        let region = &mut self.regions[index];
        let bytes = region.mapping.page_bytes;
        let offset = region.mapping.offset + (page * bytes) as u64;
        let source = match region.removed.has(page) {
            true => Some((Source::Zeroes, 1)),
            false => self.content.at(offset, bytes, pages),
        };
        let Some((source, pages)) = source else {
            return Err(End::Refused(format!("its huge page at {offset:#x} is in two regions")));
        };
        let range = region.range(page, pages);
        let (range, filled) = match source {
            Source::Memory(from) => (range, self.uffd.copy_from(range, from)),
            Source::Zeroes if bytes == page_size_bytes() => (range, self.uffd.map_zeroes(range)),
            Source::Zeroes => {
                self.zeroes.resize(CHUNK_BYTES, 0);
                let range = region.range(page, 1);
                (range, self.uffd.copy(range, &self.zeroes[..range.len]))
            }
        };
        let done = match filled {
            Ok(Outcome::Done) => range.len,
            Ok(Outcome::Again { done_bytes: 0 }) | Err(Errno::NOMEM) => return Ok(Step::Later),
            Ok(Outcome::Again { done_bytes }) => done_bytes as usize,
            // Not all of it is in one mapping of the machine's: nothing was filled.
            Err(Errno::NOENT) if range.len > bytes => return self.fill(index, page, pages / 2),
            // No thread was woken. Unregistered meanwhile: the kernel gives the page.
            Ok(Outcome::AlreadyMapped) | Err(Errno::NOENT) => {
                let _ = self.uffd.wake(region.range(page, 1));
                bytes
            }
            Err(Errno::SRCH) => return Err(End::Gone),
            Err(errno) => return Err(refusal(&format!("fill {range}"), errno)),
        };
        let done = (done / bytes).max(1);
        (page..page + done).for_each(|page| region.filled.set(page));
        Ok(Step::Pages(done))
    }

    /// Brings in a piece of the pages that it does not have, or leaves it to the kernel if it has all.
    fn bring_in(&mut self) -> Result<Step, End> {
        while let Some(region) = self.regions.get(self.cursor.0) {
            let page = self.cursor.1;
            if page == region.pages() {
                self.cursor = (self.cursor.0 + 1, 0);
                continue;
            }
            let most = (PIECE / region.mapping.page_bytes).max(1);
            let pages = region.run(page, most);
            if pages == 0 {
                self.cursor.1 += 1;
                continue;
            }
            let step = self.fill(self.cursor.0, page, pages)?;
            if let Step::Pages(pages) = step {
                self.cursor.1 += pages;
            }
            return Ok(step);
        }
        for region in &self.regions {
            match self.uffd.unregister(region.mapping.host) {
                // Its parts are gone, or were never registered.
                Ok(()) | Err(Errno::INVAL) => {}
                Err(Errno::SRCH | Errno::NOMEM) => return Err(End::Gone),
                Err(errno) => return Err(refusal("leave its memory to the kernel", errno)),
            }
        }
        self.is_whole = true;
        Ok(Step::Pages(0))
    }
}

fn refusal(step: &str, errno: Errno) -> End {
    End::Refused(format!("{step}: {errno}"))
}
