//! Decides which regions to promote and which to split. It is pure: it can be tested with made-up processes
//! and made-up time, and a record of looks tells what another setting would have done.

mod backoff;
mod budget;
mod history;
mod judge;
mod reason;
mod share;
mod shortage;
mod trial;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

pub use reason::{Decision, Reason};
pub(crate) use trial::{MOST_BLOCKS, Trial, check_load, order, pairs};

use crate::model::{
    Action, ActionOutcome, Effect, GainState, Look, ProcessId, ProcessLook, Region, Settings,
};
use budget::Budget;
use history::ProcessHistory;
use share::{Claimant, Means, Supply};
use shortage::Shortage;

/// Decides about every region of every look, and learns from the outcomes.
///
/// ```
/// use cowslip_promote::{Look, Policy, ProcessLook, Reason, Region, Settings, System};
///
/// let region = Region { address: 0x20_0000, pages: 500, ..Region::default() };
/// let process = ProcessLook { weight: 1, regions: vec![region], ..ProcessLook::default() };
/// let system =
///     System { available_bytes: 8 << 30, total_bytes: 16 << 30, free_huge_pages: 9, ..System::default() };
/// let look = |at_ns| Look { at_ns, system, processes: vec![process.clone()] };
///
/// let mut policy = Policy::new(Settings::default())?;
/// assert_eq!(policy.decide(&look(0))[0].reason, Reason::FirstLook);
/// assert_eq!(policy.decide(&look(1))[0].reason, Reason::Full);
/// # Ok::<(), cowslip_promote::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Policy {
    settings: Settings,
    processes: BTreeMap<ProcessId, ProcessHistory>,
    /// Processor time of promotions and splits, from the first look on.
    cpu: Option<Budget>,
    /// Splits in a row that gave no memory back.
    fruitless_splits: u32,
    /// Regions that the last look decided to take back.
    taken_back: BTreeSet<(ProcessId, u64)>,
    /// Huge pages taken back, and not made anew elsewhere so far.
    awaited: u64,
    shortage: Shortage,
}

/// After so many of them, nothing is split any more.
const FRUITLESS_SPLITS: u32 = 3;

/// Expected processor time of a promotion before one was measured: the huge page made before, and its own.
const FIRST_GUESS_NS: u64 = 2_000_000;

impl Policy {
    /// A policy that has seen nothing yet; an error if the settings make no sense.
    pub fn new(settings: Settings) -> cowslip_sys::error::Result<Self> {
        settings.check()?;
        Ok(Self {
            settings,
            processes: BTreeMap::new(),
            cpu: None,
            fruitless_splits: 0,
            taken_back: BTreeSet::new(),
            awaited: 0,
            shortage: Shortage::default(),
        })
    }

    /// The settings in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Continues with other settings, and keeps its memory.
    pub fn set(&mut self, settings: Settings) -> cowslip_sys::error::Result<()> {
        settings.check()?;
        self.settings = settings;
        Ok(())
    }

    /// One decision for each region of the look: first the promotions and splits, in the order in which to do
    /// them, then the rest.
    pub fn decide(&mut self, look: &Look) -> Vec<Decision> {
        self.remember(look);
        let mut decisions = Vec::new();
        let mut left = Vec::new();
        let mut claimants = Vec::new();
        let saved_ns = share::mean_saved_ns(&look.processes);
        for (index, process) in look.processes.iter().enumerate() {
            let (mut wanted, mut given) = (Vec::new(), Vec::new());
            for (region, reason) in self.judge(process, look).into_iter().enumerate() {
                let decision = decision(process, region, reason);
                match reason {
                    Reason::Full => wanted.push(region),
                    Reason::Huge if Claimant::may_give(&process.regions[region]) => {
                        given.push(region);
                    }
                    Reason::Sparse | Reason::PartiallyMapped => decisions.push(decision),
                    _ => left.push(decision),
                }
            }
            let allowed = self.processes[&process.process].promotions_allowed();
            claimants.push((index, Claimant::new(process, wanted, given, allowed, saved_ns)));
        }
        let looks = &look.processes;
        let compactions = u64::from(self.settings.compactions);
        // Where the kernel does not make huge pages of what was taken back, no more is.
        let take_backs = match self.shortage.is_known() {
            true => compactions.saturating_sub(self.awaited),
            false => 0,
        };
        let supply = Supply {
            huge_pages: self.shortage.huge_pages(compactions),
            take_backs,
            probes: self.shortage.probes(look.at_ns, compactions),
            is_waiting: self.shortage.is_waiting(look.at_ns),
        };
        let means = Means::new(look, self.cpu_actions(), supply, &self.settings);
        self.taken_back.clear();
        share::share(looks, claimants, means, &self.settings, |process, region, reason| {
            let decision = decision(&looks[process], region, reason);
            if reason == Reason::TakenBack {
                self.taken_back.insert((decision.process, decision.address));
            }
            if reason.action().is_some() { decisions.push(decision) } else { left.push(decision) }
        });
        self.awaited += self.taken_back.len() as u64;
        self.shortage.expect(self.taken_back.len() as u64);
        decisions.extend(left);
        decisions
    }

    /// True if a process gets no promotion at `now_ns`, because one in it was slow, or one in any process found no huge
    /// page. That also stops promotions decided before. Its huge pages may still be split.
    pub fn is_backing_off(&self, process: ProcessId, now_ns: u64) -> bool {
        self.shortage.is_waiting(now_ns)
            || self
                .processes
                .get(&process)
                .is_some_and(|history| history.backoff.is_waiting(now_ns))
    }

    /// The time when [`Self::is_backing_off`] ends or ended, in nanoseconds of the monotonic clock.
    pub fn backs_off_until_ns(&self, process: ProcessId) -> u64 {
        let own = self.processes.get(&process).map_or(0, |history| history.backoff.until_ns());
        own.max(self.shortage.until_ns())
    }

    /// True while huge pages are scarce: from a promotion that found none to one that found a free one.
    pub fn is_scarce(&self) -> bool {
        self.shortage.is_known()
    }

    /// Takes in the outcome of an action.
    pub fn learn(&mut self, outcome: &ActionOutcome) {
        let was_taken_back = self.taken_back.contains(&(outcome.process, outcome.address));
        match (outcome.action, outcome.effect) {
            (Action::Promote, Effect::Done) => {
                self.shortage.found();
                self.awaited = self.awaited.saturating_sub(1);
            }
            (Action::Promote, effect) if effect.lacks_huge_page() => {
                self.shortage.refused(outcome.at_ns, &self.settings);
            }
            _ => {}
        }
        if (outcome.action, outcome.effect) == (Action::Demote, Effect::Done) && !was_taken_back {
            let is_fruitless = outcome.freed_pages == 0;
            self.fruitless_splits = if is_fruitless { self.fruitless_splits + 1 } else { 0 };
        }
        if let Some(cpu) = &mut self.cpu {
            cpu.spend(outcome.cpu_ns);
            if outcome.action == Action::Promote {
                cpu.learn(outcome.cpu_ns);
            }
        }
        if let Some(history) = self.processes.get_mut(&outcome.process) {
            history.learn(outcome, &self.settings);
        }
    }

    /// The number of promotions that the budget of processor time allows now.
    fn cpu_actions(&self) -> u64 {
        self.cpu.map_or(0, |cpu| cpu.actions())
    }

    fn remember(&mut self, look: &Look) {
        self.shortage.see(look.system.free_huge_pages);
        let settings = &self.settings;
        let percent = settings.promotion_cpu_percent;
        let fresh = || Budget::new(percent, FIRST_GUESS_NS, look.at_ns, settings);
        self.cpu.get_or_insert_with(fresh).pass(percent, look.at_ns, settings);
        let mut before = std::mem::take(&mut self.processes);
        for process in &look.processes {
            let mut history = before
                .remove(&process.process)
                .unwrap_or_else(|| ProcessHistory::new(look.at_ns, settings));
            history.see(process, look.at_ns, settings);
            self.processes.insert(process.process, history);
        }
    }

    fn judge(&self, process: &ProcessLook, look: &Look) -> Vec<Reason> {
        let history = &self.processes[&process.process];
        let threshold = judge::threshold_percent(look.system.fragmentation_percent, &self.settings);
        let judge = |region: &Region| {
            let past = history.region(region.address);
            let reason = judge::judge(region, &past, threshold, look.at_ns, &self.settings);
            match reason {
                Reason::Sparse if self.fruitless_splits >= FRUITLESS_SPLITS => Reason::NotFreed,
                Reason::Full if process.is_disabled => Reason::Disabled,
                Reason::Full if process.gain == GainState::Unmeasured => Reason::Unmeasured,
                Reason::Full if process.gain == GainState::NotShown => Reason::NoGain,
                Reason::Full if history.backoff.is_waiting(look.at_ns) => Reason::BackingOff,
                Reason::Sparse if history.promotions_allowed() == 0 => Reason::StallBudget,
                Reason::Sparse if self.cpu_actions() == 0 => Reason::CpuBudget,
                reason => reason,
            }
        };
        process.regions.iter().map(judge).collect()
    }
}

fn decision(process: &ProcessLook, region: usize, reason: Reason) -> Decision {
    let region = &process.regions[region];
    let (address, pages) = (region.address, region.used_pages());
    Decision { process: process.process, address, pages, reason }
}
