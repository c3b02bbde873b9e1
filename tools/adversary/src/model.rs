//! A thread's model of its memory: content, protection and advice of every page.

use core::ops::Range;

use crate::words::{Content, PAGE};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prot {
    None,
    Read,
    Write,
}

#[derive(Clone, Copy)]
pub(crate) struct Page {
    pub(crate) content: Content,
    pub(crate) prot: Prot,
    /// Still mapped. Other memory may be there otherwise.
    pub(crate) here: bool,
    pub(crate) locked: bool,
    pub(crate) dontfork: bool,
    pub(crate) wipeonfork: bool,
}

impl Page {
    pub(crate) fn new(content: Content, prot: Prot) -> Self {
        Self { content, prot, here: true, locked: false, dontfork: false, wipeonfork: false }
    }

    pub(crate) fn readable(&self) -> bool {
        self.here && self.prot != Prot::None
    }

    pub(crate) fn writable(&self) -> bool {
        self.here && self.prot == Prot::Write
    }
}

/// The origin of memory, and the way to release it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `mmap`; any part of it may be unmapped.
    Mapping,
    /// `malloc` and related functions.
    Heap,
    /// `shmat`: shared with every relative that inherited it, and never written.
    Segment,
}

/// A piece of memory, written by one thread.
#[derive(Clone)]
pub(crate) struct Region {
    pub(crate) id: usize,
    pub(crate) addr: usize,
    pub(crate) pages: Vec<Page>,
    pub(crate) kind: Kind,
    /// Never changed in parts: it is one mapping to the kernel too, which `mremap` needs.
    pub(crate) is_whole: bool,
}

impl Region {
    pub(crate) fn new(id: usize, addr: usize, pages: usize, content: Content, prot: Prot) -> Self {
        let pages = vec![Page::new(content, prot); pages];
        Self { id, addr, pages, kind: Kind::Mapping, is_whole: true }
    }

    pub(crate) fn at(&self, page: usize) -> usize {
        self.addr + page * PAGE
    }

    /// At most `count` pages from `first` on, all mapped, with the same key.
    pub(crate) fn span<K: PartialEq>(
        &self,
        first: usize,
        count: usize,
        alike: impl Fn(&Page) -> K,
    ) -> Option<Range<usize>> {
        let first = first % self.pages.len().max(1);
        let head = self.pages.get(first).filter(|page| page.here)?;
        let key = alike(head);
        let same = |page: &&Page| page.here && alike(page) == key;
        let count = self.pages[first..].iter().take(count.max(1)).take_while(same).count();
        Some(first..first + count)
    }

    /// Applies the effects of `fork` in the child.
    pub(crate) fn inherit(&mut self) {
        for page in &mut self.pages {
            page.here &= !page.dontfork;
            page.locked = false;
            if page.wipeonfork {
                page.content = Content::Zero;
            }
        }
        self.is_whole &= self.pages.iter().all(|page| page.here);
    }
}
