//! What `madvise` does to pages that are known.

use cowslip_sys::units::VirtRange;

use super::{Space, memory};
use crate::attribute::advice::{
    COLLAPSE, DONTNEED, DONTNEED_LOCKED, FREE, HUGEPAGE, NOHUGEPAGE, POPULATE_WRITE, REMOVE,
};
use crate::attribute::area::Area;
use crate::attribute::history::MappingHistory;
use crate::attribute::pages::Page;
use crate::attribute::rule::Memory;

impl Space {
    pub(in crate::attribute) fn advise(
        &mut self,
        range: VirtRange,
        advice: u32,
        history: &mut MappingHistory,
    ) {
        match advice {
            DONTNEED | FREE | REMOVE | DONTNEED_LOCKED => self.discard(range, history),
            POPULATE_WRITE | COLLAPSE => {
                let areas: Vec<_> = self.areas.within(range).copied().collect();
                for area in areas {
                    if memory(history.get(area.mapping)) == Memory::Anonymous {
                        self.fill(area.range.intersect(range), history);
                    }
                }
            }
            HUGEPAGE | NOHUGEPAGE => {
                for area in self.areas.take(range, history) {
                    let wants_huge = Some(advice == HUGEPAGE);
                    self.areas.insert(Area { wants_huge, ..area });
                }
            }
            _ => {}
        }
    }

    /// The kernel fills the range without a fault.
    pub(super) fn fill(&mut self, range: VirtRange, history: &MappingHistory) {
        self.pages.set(history.circumstances.pages(range), Page::Own);
    }

    fn discard(&mut self, range: VirtRange, history: &MappingHistory) {
        let at = history.circumstances;
        for area in self.areas.within(range) {
            let pages = at.pages(area.range.intersect(range));
            // Of memory that was not seen from its beginning, any page may have been there.
            let is_old = history.get(area.mapping).is_old || area.losses_before < at.losses;
            if is_old || !at.is_complete {
                self.pages.set(pages, Page::Discarded);
                continue;
            }
            for first in self.pages.touched(&pages, at.huge_pages()) {
                let huge = at.huge_around(first);
                let part = huge.start.max(pages.start)..huge.end.min(pages.end);
                if self.may_have_come_unseen(first, history) {
                    self.pages.set(part, Page::Discarded);
                } else {
                    self.pages.discard_present(part);
                }
            }
        }
    }
}
