//! Mappings and the heap.
#![allow(unsafe_code)]

use core::ffi::c_int;

use libc::{EEXIST, EINVAL, PROT_NONE, PROT_READ, PROT_WRITE};

use super::{Me, SKIP};
use crate::model::{Kind, Page, Prot, Region};
use crate::program::Call;
use crate::sys::{self, nonzero};
use crate::words::{self, Content, PAGE};

fn bits(prot: Prot) -> c_int {
    match prot {
        Prot::None => PROT_NONE,
        Prot::Read => PROT_READ,
        Prot::Write => PROT_READ | PROT_WRITE,
    }
}

fn advice(name: &str) -> c_int {
    match name {
        "dontneed" => libc::MADV_DONTNEED,
        "free" => libc::MADV_FREE,
        "hugepage" => libc::MADV_HUGEPAGE,
        "nohugepage" => libc::MADV_NOHUGEPAGE,
        "dontfork" => libc::MADV_DONTFORK,
        "dofork" => libc::MADV_DOFORK,
        "wipeonfork" => libc::MADV_WIPEONFORK,
        "keeponfork" => libc::MADV_KEEPONFORK,
        "cold" => libc::MADV_COLD,
        "pageout" => libc::MADV_PAGEOUT,
        "willneed" => libc::MADV_WILLNEED,
        "populate-read" => libc::MADV_POPULATE_READ,
        "populate-write" => libc::MADV_POPULATE_WRITE,
        _ => libc::MADV_REMOVE,
    }
}

impl Me {
    fn new_region(&self, id: usize, at: usize, pages: usize, prot: Prot) -> Region {
        let region = Region::new(id, at, pages, Content::Zero, prot);
        // Reading a page touches it: half of the regions stay untouched.
        if id.is_multiple_of(2) {
            self.verify(&region);
        }
        region
    }

    pub(super) fn map(&mut self, call: &Call) -> Option<()> {
        let (id, pages) = (call.number(0), call.number(1).max(1));
        if self.region(id).is_some() {
            return SKIP;
        }
        let (prot, flags) = match call.word(2) {
            "reserve" => (Prot::None, libc::MAP_NORESERVE),
            "noreserve" => (Prot::Write, libc::MAP_NORESERVE),
            "populate" => (Prot::Write, libc::MAP_POPULATE),
            "read" => (Prot::Read, 0),
            _ => (Prot::Write, 0),
        };
        let last = self.regions.last().filter(|_| call.word(2) == "hint");
        let hint = last.map_or(0, |region| (region.at(region.pages.len()) + PAGE) & !(PAGE - 1));
        let at = sys::mmap(hint, pages * PAGE, bits(prot), flags);
        let at = at.unwrap_or_else(|errno| self.fail(&format!("mmap: errno {errno}")));
        let region = self.new_region(id, at, pages, prot);
        self.regions.push(region);
        Some(())
    }

    pub(super) fn map_over(&mut self, call: &Call) -> Option<()> {
        let (index, region) = self.mapping(call.number(0))?;
        let span = region.span(call.number(1), call.number(2), |_| ())?;
        let (at, len) = (region.at(span.start), span.len() * PAGE);
        if call.word(3) == "noreplace" {
            let mapped = sys::mmap(at, len, PROT_READ, libc::MAP_FIXED_NOREPLACE);
            self.expect("mmap", mapped, Err(EEXIST));
            return Some(());
        }
        let prot = if call.word(3) == "reserve" { Prot::None } else { Prot::Write };
        self.expect("mmap", sys::mmap(at, len, bits(prot), libc::MAP_FIXED), Ok(at));
        self.regions[index].is_whole = false;
        self.pages(index, span).fill(Page::new(Content::Zero, prot));
        Some(())
    }

    pub(super) fn unmap(&mut self, call: &Call) -> Option<()> {
        let (index, region) = self.mapping(call.number(0))?;
        let span = region.span(call.number(1), call.number(2), |_| ())?;
        self.expect("munmap", sys::munmap(region.at(span.start), span.len() * PAGE), Ok(0));
        self.regions[index].is_whole = false;
        self.pages(index, span).iter_mut().for_each(|page| page.here = false);
        self.regions.retain(|region| region.pages.iter().any(|page| page.here));
        Some(())
    }

    pub(super) fn protect(&mut self, call: &Call) -> Option<()> {
        let (index, region) = self.mapping(call.number(0))?;
        let span = region.span(call.number(1), call.number(2), |_| ())?;
        let prot = match call.word(3) {
            "none" => Prot::None,
            "read" => Prot::Read,
            _ => Prot::Write,
        };
        let done = sys::mprotect(region.at(span.start), span.len() * PAGE, bits(prot));
        self.expect("mprotect", done, Ok(0));
        self.regions[index].is_whole = false;
        self.pages(index, span).iter_mut().for_each(|page| page.prot = prot);
        Some(())
    }

    pub(super) fn advise(&mut self, call: &Call) -> Option<()> {
        let (index, region) = self.mapping(call.number(0))?;
        let alike = |page: &Page| (page.prot, page.locked);
        let span = region.span(call.number(1), call.number(2), alike)?;
        let name = call.word(3);
        let Page { prot, locked, .. } = region.pages[span.start];
        let right = match name {
            "remove" => Err(EINVAL),
            "dontneed" | "free" | "cold" | "pageout" if locked => Err(EINVAL),
            "populate-read" if prot == Prot::None => Err(EINVAL),
            "populate-write" if prot != Prot::Write => Err(EINVAL),
            _ => Ok(0),
        };
        let (at, len) = (region.at(span.start), span.len() * PAGE);
        match call.word(4) {
            "process_madvise" => {
                // On success, it returns the length of the range.
                let right = right.map(|_| len);
                let done = self.process_madvise(at, len, advice(name))?;
                self.expect("process_madvise", done, right);
            }
            _ => self.expect("madvise", sys::madvise(at, len, advice(name)), right),
        }
        self.regions[index].is_whole = false;
        for page in self.pages(index, span).iter_mut().filter(|_| right.is_ok()) {
            match (name, page.content) {
                ("dontneed", _) => page.content = Content::Zero,
                ("free", Content::Seed(seed)) => page.content = Content::Either(seed),
                ("free", Content::Sum(_)) => page.content = Content::Unknown,
                ("dontfork", _) => page.dontfork = true,
                ("dofork", _) => page.dontfork = false,
                ("wipeonfork", _) => page.wipeonfork = true,
                ("keeponfork", _) => page.wipeonfork = false,
                _ => {}
            }
        }
        Some(())
    }

    /// `process_madvise(2)` on this process. `None` where the kernel permits it for other processes only.
    fn process_madvise(&self, at: usize, len: usize, advice: c_int) -> Option<sys::Outcome> {
        #[repr(align(4096))]
        struct Probe([u8; PAGE]);
        static PROBE: Probe = Probe([0; PAGE]);
        if !self.may_open {
            return None;
        }
        let probe = PROBE.0.as_ptr() as usize;
        let is_there = sys::process_madvise(probe, PAGE, libc::MADV_POPULATE_READ);
        let done = is_there.ok().map(|_| sys::process_madvise(at, len, advice))?;
        // The first thread may have ended, and then no thread has the process' number.
        Some(done).filter(|done| *done != Err(libc::ESRCH))
    }

    /// Writes single pages, far from each other.
    pub(super) fn touch(&mut self, call: &Call) -> Option<()> {
        let index = self.regions.iter().position(|region| region.id == call.number(0))?;
        let (first, stride) = (call.number(1), call.number(2).max(1));
        for page in (first..self.regions[index].pages.len()).step_by(stride) {
            if self.regions[index].pages[page].writable() {
                let seed = self.new_seed(page);
                words::write(self.regions[index].at(page), seed);
                self.regions[index].pages[page].content = Content::Seed(seed);
            }
        }
        Some(())
    }

    /// Locks few pages: the limit of an ordinary user is low.
    pub(super) fn lock(&mut self, call: &Call, locked: bool) -> Option<()> {
        let (index, region) = self.mapping(call.number(0))?;
        let span = region.span(call.number(1), call.number(2).min(16), |page| page.prot)?;
        if region.pages[span.start].prot == Prot::None {
            return SKIP;
        }
        let act = if locked { sys::mlock } else { sys::munlock };
        self.expect("mlock", act(region.at(span.start), span.len() * PAGE), Ok(0));
        self.regions[index].is_whole = false;
        self.pages(index, span).iter_mut().for_each(|page| page.locked = locked);
        Some(())
    }

    /// `mremap`, or `realloc`.
    pub(super) fn resize(&mut self, call: &Call) -> Option<()> {
        let index = self.regions.iter().position(|region| region.id == call.number(0))?;
        let region = &self.regions[index];
        let (addr, old, new) = (region.addr, region.pages.len(), call.number(1).max(1));
        if region.kind == Kind::Segment {
            return SKIP;
        }
        let fresh = if region.kind == Kind::Heap {
            if !self.may_allocate {
                return SKIP;
            }
            // SAFETY: the block is from `malloc` or a related function.
            let at = unsafe { libc::realloc(addr as *mut _, new * PAGE) } as usize;
            self.regions[index].addr = at;
            Page::new(Content::Unknown, Prot::Write)
        } else {
            if !region.is_whole {
                return SKIP;
            }
            let at = sys::mremap(addr, old * PAGE, new * PAGE, libc::MREMAP_MAYMOVE, 0);
            let at = at.unwrap_or_else(|errno| self.fail(&format!("mremap: errno {errno}")));
            let prot = region.pages[0].prot;
            self.regions[index].addr = at;
            Page::new(Content::Zero, prot)
        };
        self.regions[index].pages.resize(new, fresh);
        self.verify(&self.regions[index])
    }

    /// `mremap` onto a part of another region: of a whole region, or of one page.
    pub(super) fn move_over(&mut self, call: &Call) -> Option<()> {
        let (from, region) = self.mapping(call.number(0))?;
        let count = if region.is_whole { call.number(2) } else { 1 };
        let span = region.span(call.number(1), count, |_| ())?;
        let (onto, target) = self.mapping(call.number(3))?;
        let place = target.span(call.number(4), span.len(), |_| ())?;
        let span = span.start..span.start + place.len();
        if from == onto || region.pages[span.clone()].iter().any(|page| page.locked) {
            return SKIP;
        }
        let (at, to, len) = (region.at(span.start), target.at(place.start), place.len() * PAGE);
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        self.expect("mremap", sys::mremap(at, len, len, how, to), Ok(to));
        let moved = self.regions[from].pages[span.clone()].to_vec();
        self.pages(onto, place).copy_from_slice(&moved);
        self.pages(from, span).iter_mut().for_each(|page| page.here = false);
        self.regions[from].is_whole = false;
        self.regions[onto].is_whole = false;
        self.verify(&self.regions[onto]);
        self.regions.retain(|region| region.pages.iter().any(|page| page.here));
        Some(())
    }

    /// `mremap` that leaves zeroes at the old place.
    pub(super) fn leave_behind(&mut self, call: &Call) -> Option<()> {
        let (index, region) = self.mapping(call.number(0))?;
        if !region.is_whole || self.region(call.number(1)).is_some() {
            return SKIP;
        }
        let len = region.pages.len() * PAGE;
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        let at = sys::mremap(region.addr, len, len, how, 0);
        let at = at.unwrap_or_else(|errno| self.fail(&format!("mremap: errno {errno}")));
        let mut moved = region.clone();
        (moved.id, moved.addr) = (call.number(1), at);
        self.regions[index].pages.iter_mut().for_each(|page| page.content = Content::Zero);
        self.verify(&moved);
        self.regions.push(moved);
        self.verify(&self.regions[index])
    }

    pub(super) fn allocate(&mut self, call: &Call) -> Option<()> {
        let (id, pages) = (call.number(0), call.number(1).max(1));
        if self.region(id).is_some() || !self.may_allocate {
            return SKIP;
        }
        let mut at = core::ptr::null_mut();
        // SAFETY: the lengths are not zero, and `at` is a place for the result.
        let content = unsafe {
            match call.word(2) {
                "calloc" => at = libc::calloc(pages, PAGE),
                "memalign" => {
                    let made = libc::posix_memalign(&mut at, PAGE, pages * PAGE);
                    self.expect("posix_memalign", nonzero(made), Ok(0));
                }
                _ => at = libc::malloc(pages * PAGE),
            }
            if call.word(2) == "calloc" { Content::Zero } else { Content::Unknown }
        };
        if at.is_null() {
            self.fail("no memory");
        }
        let mut region = Region::new(id, at as usize, pages, content, Prot::Write);
        region.kind = Kind::Heap;
        self.verify(&region);
        self.regions.push(region);
        Some(())
    }

    pub(super) fn free(&mut self, call: &Call) -> Option<()> {
        let id = call.number(0);
        let index = self.regions.iter().position(|region| region.id == id)?;
        let kind = self.regions[index].kind;
        if kind == Kind::Mapping || (kind == Kind::Heap && !self.may_allocate) {
            return SKIP;
        }
        let region = self.regions.remove(index);
        self.verify(&region);
        if kind == Kind::Segment {
            self.expect("shmdt", sys::shmdt(region.addr), Ok(0));
            return Some(());
        }
        // SAFETY: the block is from `malloc` or a related function, and its region was just removed.
        unsafe { libc::free(region.addr as *mut _) };
        Some(())
    }

    pub(super) fn fill(&mut self, call: &Call) -> Option<()> {
        let index = self.regions.iter().position(|region| region.id == call.number(0))?;
        let region = &self.regions[index];
        let span = region.span(call.number(1), call.number(2), Page::writable)?;
        if !region.pages[span.start].writable() {
            return SKIP;
        }
        for page in span {
            let seed = self.new_seed(page);
            words::write(self.regions[index].at(page), seed);
            self.regions[index].pages[page].content = Content::Seed(seed);
        }
        Some(())
    }
}
