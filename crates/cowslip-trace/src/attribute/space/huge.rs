//! Where huge pages would fit, and may have come unseen.

use std::ops::Range;

use super::{Space, shared_page};
use crate::attribute::HugeFit;
use crate::attribute::area::Area;
use crate::attribute::history::MappingHistory;
use crate::attribute::object::Object;
use crate::attribute::place::Place;

impl Space {
    /// Room for a huge page around a page, now and before.
    pub(super) fn fit(&self, area: &Area, page: u64, history: &MappingHistory) -> HugeFit {
        if area.wants_huge == Some(false) {
            return HugeFit::Refused;
        }
        let huge = self.block(area, page, history);
        let range = history.circumstances.range(&huge);
        let object = history.get(area.mapping).object;
        let is_of_one_object = |other: &Area| {
            let at = other.range.start.max(range.start) as u64 / history.circumstances.page_bytes;
            let ahead = shared_page(area, page, history).wrapping_sub(page);
            object.is_none() || shared_page(other, at, history).wrapping_sub(at) == ahead
        };
        // The kernel makes one mapping of neighbours that are alike.
        let is_alike = |other: &Area| {
            let (mapping, its) = (history.get(area.mapping), history.get(other.mapping));
            other.mapping == area.mapping && object.is_none()
                || (other.protection == area.protection
                    && other.wants_huge == area.wants_huge
                    && its.place == mapping.place
                    && its.object == object
                    && is_of_one_object(other))
        };
        let mut covered = range.start;
        for other in self.areas.within(range) {
            if other.range.start > covered || !is_alike(other) {
                break;
            }
            covered = other.range.end();
        }
        match () {
            () if covered < range.end() => HugeFit::No,
            () if object.is_some() && is_misplaced(area, page, history) => HugeFit::No,
            () if self.pages.count_present(&huge) == 0 => HugeFit::First,
            () => HugeFit::Further,
        }
    }

    /// The pages that a huge page around a page would map. Of shared memory it is a part of what is mapped,
    /// wherever that lies: the kernel would have put it in its place if it gave shared memory huge pages.
    pub(super) fn block(&self, area: &Area, page: u64, history: &MappingHistory) -> Range<u64> {
        let at = history.circumstances;
        if history.get(area.mapping).object.is_none() {
            return at.huge_around(page);
        }
        let into = shared_page(area, page, history) % at.huge_pages();
        let first = page.saturating_sub(into);
        first..first + at.huge_pages()
    }

    /// True if a page that no event touched may be there: a fault that does not say whether a huge page
    /// was the answer brought one page or all around it. A second fault in there tells that it was one.
    pub(super) fn may_have_come_unseen(&self, page: u64, history: &MappingHistory) -> bool {
        let sizes = sizes(history.circumstances.private_sizes);
        let is_alone = |block: Range<u64>| self.pages.count_present(&block) == 1;
        sizes.map(|size| around(page, size)).any(is_alone)
    }

    /// The blocks with something in `pages` of which all may be there, as above.
    pub(super) fn unseen_blocks(
        &self,
        pages: &Range<u64>,
        history: &MappingHistory,
    ) -> Vec<Range<u64>> {
        let at = history.circumstances;
        let [first, last] = [pages.start, pages.end - 1].map(|page| at.huge_around(page));
        let present = self.pages.present(&(first.start..last.end)).into_iter();
        // A page that is alone in its block begins or ends a run.
        let ends = present.flat_map(|run| [run.start, run.end - 1]);
        let all = ends.flat_map(|page| sizes(at.private_sizes).map(move |size| around(page, size)));
        all.filter(|block| self.pages.count_present(block) == 1).collect()
    }

    /// The same for shared memory of which this process has not mapped the place, but another one has.
    pub(super) fn may_be_shared_unseen(
        &self,
        area: &Area,
        page: u64,
        object: &Object,
        history: &MappingHistory,
    ) -> bool {
        let shared = shared_page(area, page, history);
        sizes(history.circumstances.shared_sizes).any(|size| {
            let block = around(shared, size);
            let first = page.saturating_sub(shared - block.start);
            object.pages.count_present(&block) == 1
                && self.pages.count_present(&(first..first + size)) == 0
        })
    }
}

/// True if shared memory lies where huge pages do not fit, although the kernel looks after that.
fn is_misplaced(area: &Area, page: u64, history: &MappingHistory) -> bool {
    let at = history.circumstances;
    // The mount of a file decides about huge pages, which is not known.
    let is_mounted = matches!(&history.get(area.mapping).place,
        Place::MemoryFile(name) if name.starts_with("/dev/shm/"));
    let is_aligned = shared_page(area, page, history) % at.huge_pages() == page % at.huge_pages();
    at.aligns_shared && !is_mounted && !is_aligned
}

/// The sizes of a mask of powers of two.
fn sizes(mask: u32) -> impl Iterator<Item = u64> {
    (0..u32::BITS).filter(move |bit| mask & 1 << bit != 0).map(|bit| 1 << bit)
}

/// The pages of the block of that size around a page.
fn around(page: u64, size: u64) -> Range<u64> {
    let first = page / size * size;
    first..first + size
}
