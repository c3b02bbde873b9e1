//! Judges one region by itself: to promote it, to split it or to leave it, regardless of the cost.

use super::history::RegionHistory;
use super::reason::Reason;
use crate::model::{REGION_PAGES, Region, RegionKind, Settings};

/// `Full` and `Sparse` are wishes; any other reason is final.
pub(super) fn judge(
    region: &Region,
    history: &RegionHistory,
    threshold_percent: u8,
    now_ns: u64,
    settings: &Settings,
) -> Reason {
    if region.kind == RegionKind::FrozenArena {
        return Reason::Frozen;
    }
    if region.shared_pages > 0 {
        return Reason::Shared;
    }
    if region.merged_pages > 0 && !region.is_hot() {
        return Reason::Merged;
    }
    if history.retry.is_waiting(now_ns) {
        return if history.is_given_up { Reason::GivenUp } else { Reason::RetryLater };
    }
    if region.is_huge {
        return match region.nonzero_pages {
            Some(pages)
                if region.kind == RegionKind::Private
                    && !reaches(pages, settings.demote_below_percent) =>
            {
                if history.is_filling() {
                    Reason::Filling
                } else {
                    Reason::Sparse
                }
            }
            _ => Reason::Huge,
        };
    }
    if region.swapped_pages > settings.max_swapped_pages {
        Reason::Swapped
    } else if !reaches(region.used_pages(), threshold_percent)
        && reaches(region.present_pages(), threshold_percent)
    {
        Reason::LazilyFreed
    } else if !reaches(region.present_pages(), threshold_percent) {
        // A huge page of an arena's file is whole, however little of it is mapped.
        let is_partially_mapped =
            region.kind == RegionKind::Private && history.is_partially_mapped(region);
        if is_partially_mapped { Reason::PartiallyMapped } else { Reason::BelowThreshold }
    } else if history.was_released(now_ns, settings) {
        Reason::JustReleased
    } else if history.is_new() {
        Reason::FirstLook
    } else if region.is_elsewhere {
        Reason::Elsewhere
    } else {
        Reason::Full
    }
}

fn reaches(pages: u16, percent: u8) -> bool {
    u32::from(pages) * 100 >= u32::from(percent) * u32::from(REGION_PAGES)
}

/// Ingens' threshold: lower while huge pages are available, if the user wants that.
pub(super) fn threshold_percent(fragmentation_percent: u8, settings: &Settings) -> u8 {
    match settings.unfragmented_threshold_percent {
        Some(lower) if fragmentation_percent < 50 => lower,
        _ => settings.threshold_percent,
    }
}
