//! The effects of `madvise` on known pages.

use cowslip_sys::units::VirtRange;

use super::{Space, memory, shared_page};
use crate::attribute::advice::{
    COLLAPSE, DONTNEED, DONTNEED_LOCKED, FREE, HUGEPAGE, NOHUGEPAGE, POPULATE_READ, POPULATE_WRITE,
    REMOVE,
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
            DONTNEED | FREE | REMOVE | DONTNEED_LOCKED => {
                self.discard(range, history);
                if advice == REMOVE {
                    self.note_shared(range, Page::Discarded, history);
                }
            }
            POPULATE_READ | POPULATE_WRITE | COLLAPSE => {
                let areas: Vec<_> = self.areas.within(range).copied().collect();
                for area in areas {
                    let is_filled = match memory(history.get(area.mapping)) {
                        Memory::Anonymous => advice != POPULATE_READ,
                        Memory::Shared => true,
                        _ => false,
                    };
                    if is_filled {
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
    pub(super) fn fill(&mut self, range: VirtRange, history: &mut MappingHistory) {
        self.pages.set(history.circumstances.pages(range), Page::Own);
        self.note_shared(range, Page::Own, history);
    }

    /// Notes that pages of shared memory are present or gone, for all processes.
    fn note_shared(&self, range: VirtRange, state: Page, history: &mut MappingHistory) {
        for area in self.areas.within(range) {
            let Some(id) = history.get(area.mapping).object else { continue };
            let pages = history.circumstances.pages(area.range.intersect(range));
            let first = shared_page(area, pages.start, history);
            let pages = first..first + (pages.end - pages.start);
            history.objects.get_mut(id).pages.set(pages, state);
        }
    }

    fn discard(&mut self, range: VirtRange, history: &MappingHistory) {
        let at = history.circumstances;
        for area in self.areas.within(range) {
            let pages = at.pages(area.range.intersect(range));
            // If the memory was not seen from its beginning, any page may have been present.
            let is_old = history.get(area.mapping).is_old || area.losses_before < at.losses;
            if is_old || !at.is_complete {
                self.pages.set(pages, Page::Discarded);
                continue;
            }
            let is_shared = history.get(area.mapping).object.is_some();
            if !is_shared && !pages.is_empty() {
                for unseen in self.unseen_blocks(&pages, history) {
                    let part = unseen.start.max(pages.start)..unseen.end.min(pages.end);
                    self.pages.set(part, Page::Discarded);
                }
            }
            self.pages.discard_present(&pages);
        }
    }
}
