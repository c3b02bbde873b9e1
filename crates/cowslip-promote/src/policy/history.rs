//! The policy's memory of a process from one look to the next.

use std::collections::BTreeMap;

use cowslip_sys::{Errno, target::Refusal};

use super::backoff::Backoff;
use super::budget::Budget;
use crate::model::{Action, ActionOutcome, Effect, ProcessLook, REGION_PAGES, Region, Settings};

/// The expected cost of a promotion before one was measured.
const FIRST_GUESS_NS: u64 = 1_000_000;

/// The history of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct RegionHistory {
    pages: u16,
    looks: u32,
    released_at_ns: Option<u64>,
    nonzero_pages: Option<u16>,
    is_filling: bool,
    /// True if a huge page may back it.
    was_huge: bool,
    pub(super) retry: Backoff,
    pub(super) is_given_up: bool,
}

impl RegionHistory {
    fn see(&mut self, region: &Region, now_ns: u64, settings: &Settings) {
        if self.was_huge && region.merged_pages > 0 {
            // Merged anew: copies do not last.
            self.was_huge = false;
            self.retry.exhaust(now_ns, settings);
        }
        if self.looks > 0 && region.present_pages() < self.pages {
            self.released_at_ns = Some(now_ns);
        }
        if let Some(now) = region.nonzero_pages {
            self.is_filling = self.nonzero_pages.is_none_or(|before| now > before);
            self.nonzero_pages = Some(now);
        }
        self.pages = region.present_pages();
        self.was_huge |= region.is_huge || region.is_partially_mapped;
        self.looks += 1;
    }

    pub(super) fn is_new(&self) -> bool {
        self.looks < 2
    }

    /// True if it got fuller since its content was last inspected, or may have.
    pub(super) fn is_filling(&self) -> bool {
        self.is_filling
    }

    /// True if part of a huge page was released, and the page has not been split since.
    pub(super) fn is_partially_mapped(&self, region: &Region) -> bool {
        self.was_huge && !region.is_huge && region.pages > 0
    }

    pub(super) fn was_released(&self, now_ns: u64, settings: &Settings) -> bool {
        let settle_ns = settings.settle_ms * 1_000_000;
        self.released_at_ns.is_some_and(|at| now_ns < at + settle_ns)
    }
}

/// The history of a process.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct ProcessHistory {
    regions: BTreeMap<u64, RegionHistory>,
    pub(super) backoff: Backoff,
    /// The time for which it may still be held up.
    stalls: Budget,
}

impl ProcessHistory {
    pub(super) fn new(now_ns: u64, settings: &Settings) -> Self {
        let stalls = Budget::new(settings.stall_percent, FIRST_GUESS_NS, now_ns, settings);
        Self { regions: BTreeMap::new(), backoff: Backoff::default(), stalls }
    }

    /// Takes in a look; regions that it does not show are forgotten.
    pub(super) fn see(&mut self, look: &ProcessLook, now_ns: u64, settings: &Settings) {
        let mut before = std::mem::take(&mut self.regions);
        for region in &look.regions {
            let mut history = before.remove(&region.address).unwrap_or_default();
            history.see(region, now_ns, settings);
            self.regions.insert(region.address, history);
        }
        self.stalls.pass(settings.stall_percent, now_ns, settings);
    }

    pub(super) fn region(&self, address: u64) -> RegionHistory {
        self.regions.get(&address).copied().unwrap_or_default()
    }

    /// The number of promotions that the budget for stalls allows now.
    pub(super) fn promotions_allowed(&self) -> u64 {
        self.stalls.actions()
    }

    pub(super) fn learn(&mut self, outcome: &ActionOutcome, settings: &Settings) {
        self.stalls.spend(outcome.took_ns);
        if outcome.action == Action::Promote {
            self.stalls.learn(outcome.took_ns);
        }
        let region = self.regions.entry(outcome.address).or_default();
        let now_ns = outcome.at_ns;
        match outcome.effect {
            Effect::Overtaken => {}
            Effect::Done => {
                region.retry.reset();
                region.was_huge = outcome.action == Action::Promote;
                match outcome.action {
                    Action::Promote => region.pages = REGION_PAGES,
                    Action::Demote => region.released_at_ns = Some(now_ns),
                }
                if outcome.took_ns > settings.slow_ms * 1_000_000 {
                    self.backoff.grow(now_ns, settings);
                } else if outcome.action == Action::Promote {
                    self.backoff.reset();
                }
            }
            Effect::Refused(errno) => match Refusal::from_errno(Errno::from_raw_os_error(errno)) {
                Refusal::Retry => region.retry.grow(now_ns, settings),
                // The lack of huge pages is the whole machine's.
                Refusal::SlowDown => {}
                Refusal::GiveUp => {
                    region.is_given_up = true;
                    region.retry.exhaust(now_ns, settings);
                }
                Refusal::Vanished | Refusal::Denied => self.backoff.exhaust(now_ns, settings),
            },
        }
    }
}
