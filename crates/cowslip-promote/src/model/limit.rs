//! The memory limits of control groups: promotions must not make a group reach its limit, and be killed,
//! sooner.
//!
//! Two things count against a limit. Pages that were absent stay. The huge page itself is charged before the
//! base pages that it replaces are freed; if that hits the limit, the kernel reclaims memory for tens of
//! milliseconds, and makes no huge page in the end.

use cowslip_sys::units::{CHUNK_BYTES, page_size_bytes};
use serde::{Deserialize, Serialize};

use super::{REGION_PAGES, Settings};

/// Room for the huge page, and for as much again that the program may take meanwhile.
const CHARGED_BYTES: u64 = 2 * CHUNK_BYTES as u64;

/// The memory limit of a control group.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Limit {
    /// The group's directory.
    pub group: String,
    /// The limit at which its processes are held up or killed.
    pub limit_bytes: u64,
    /// The room left below it, including pages of files that the kernel can reclaim.
    pub room_bytes: u64,
}

/// The room that stays free below a limit.
pub(crate) fn kept_bytes(limit_bytes: u64, settings: &Settings) -> u64 {
    let share_bytes = limit_bytes / 100 * u64::from(settings.keep_below_limit_percent);
    share_bytes.max(u64::from(settings.keep_below_limit_mib) << 20)
}

/// The room needed for a promotion that adds so much.
pub(crate) fn needed_bytes(limit_bytes: u64, added_bytes: u64, settings: &Settings) -> u64 {
    let kept_bytes = if added_bytes > 0 { kept_bytes(limit_bytes, settings) } else { 0 };
    CHARGED_BYTES.max(added_bytes + kept_bytes)
}

/// The memory that a promotion adds to a region with so many pages in use.
pub(crate) fn added_bytes(pages: u16) -> u64 {
    u64::from(REGION_PAGES.saturating_sub(pages)) * page_size_bytes() as u64
}

impl Limit {
    /// True if there is room for a promotion that adds so much.
    pub(crate) fn has_room(&self, added_bytes: u64, settings: &Settings) -> bool {
        self.room_bytes >= needed_bytes(self.limit_bytes, added_bytes, settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_fills_pages_leaves_room_and_what_fills_none_is_charged_only() {
        let settings = Settings::default();
        let at = |limit_mib: u64, room_mib: u64| Limit {
            limit_bytes: limit_mib * MIB,
            room_bytes: room_mib * MIB,
            ..Limit::default()
        };
        assert!(at(66, 17).has_room(MIB, &settings) && !at(66, 16).has_room(MIB, &settings));
        assert!(at(1000, 101).has_room(MIB, &settings) && !at(1000, 100).has_room(MIB, &settings));
        assert!(at(1000, 4).has_room(0, &settings) && !at(1000, 3).has_room(0, &settings));
        let none = Settings { keep_below_limit_percent: 0, keep_below_limit_mib: 0, ..settings };
        assert!(at(1000, 4).has_room(MIB, &none) && !at(1000, 3).has_room(MIB, &none));
    }
}
