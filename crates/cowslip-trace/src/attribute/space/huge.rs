//! Where huge pages would fit, and may have come unseen.

use super::Space;
use crate::attribute::HugeFit;
use crate::attribute::area::Area;
use crate::attribute::ledger::Ledger;

impl Space {
    /// Whether a huge page would fit around a page, and whether it would have come before.
    pub(super) fn fit(&self, area: &Area, page: u64, ledger: &Ledger) -> HugeFit {
        if area.wants_huge == Some(false) {
            return HugeFit::Refused;
        }
        let huge = ledger.circumstances.huge_around(page);
        let range = ledger.circumstances.range(&huge);
        // The kernel makes one mapping of neighbours that are alike.
        let is_alike = |other: &Area| {
            other.mapping == area.mapping
                || (other.protection == area.protection
                    && other.wants_huge == area.wants_huge
                    && ledger.get(other.mapping).place == ledger.get(area.mapping).place)
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
    pub(super) fn may_have_come_unseen(&self, page: u64, ledger: &Ledger) -> bool {
        let at = ledger.circumstances;
        at.may_have_huge && self.pages.count_present(at.huge_around(page)) == 1
    }
}
