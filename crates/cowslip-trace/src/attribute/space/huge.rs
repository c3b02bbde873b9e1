//! Where huge pages would fit, and may have come unseen.

use super::Space;
use crate::attribute::HugeFit;
use crate::attribute::area::Area;
use crate::attribute::history::MappingHistory;

impl Space {
    /// Whether a huge page would fit around a page, and whether it would have come before.
    pub(super) fn fit(&self, area: &Area, page: u64, history: &MappingHistory) -> HugeFit {
        if area.wants_huge == Some(false) {
            return HugeFit::Refused;
        }
        let huge = history.circumstances.huge_around(page);
        let range = history.circumstances.range(&huge);
        // The kernel makes one mapping of neighbours that are alike.
        let is_alike = |other: &Area| {
            other.mapping == area.mapping
                || (other.protection == area.protection
                    && other.wants_huge == area.wants_huge
                    && history.get(other.mapping).place == history.get(area.mapping).place)
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
            () if self.pages.count_present(huge) == 0 => HugeFit::First,
            () => HugeFit::Further,
        }
    }

    /// Whether a page that no event touched may be there: a fault that does not say whether a huge page
    /// was the answer brought one page or all around it. A second fault in there tells that it was one.
    pub(super) fn may_have_come_unseen(&self, page: u64, history: &MappingHistory) -> bool {
        let at = history.circumstances;
        at.may_have_huge && self.pages.count_present(at.huge_around(page)) == 1
    }
}
