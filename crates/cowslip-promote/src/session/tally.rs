//! The results for each process, for tables and metrics.

use std::collections::BTreeMap;
use std::mem::take;

use crate::model::{
    Action, ActionOutcome, Coverage, Effect, HeatSource, HugeSource, LazyFreeSource, Limit, Look,
    Measurement, ProcessId, REGION_PAGES, System,
};
use crate::policy::{Decision, Reason};
use cowslip_sys::units::page_size_bytes;

/// One process.
#[derive(Clone, Debug, Default)]
pub struct ProcessTally {
    /// Its name, for people.
    pub name: String,
    /// Its weight in sharing huge pages with others.
    pub weight: u32,
    /// The group with which it has one share together, if any.
    pub group: Option<String>,
    /// Its memory that is in RAM, of all kinds.
    pub resident_bytes: u64,
    /// The limits of its control group and of that group's ancestors, by the last look.
    pub limits: Vec<Limit>,
    /// The mean of its regions, where known.
    pub heat_percent: Option<u8>,
    /// Its coverage at first: by the looks, or by the kernel's own sums if these were requested.
    pub before: Option<Coverage>,
    /// Its coverage in the end, likewise.
    pub after: Option<Coverage>,
    /// Its coverage by the last look.
    pub seen: Coverage,
    /// The source of the coverage.
    pub huge_source: HugeSource,
    /// The source of its heat.
    pub heat_source: HeatSource,
    /// Memory that it has given back lazily, as far as that was measured; by the last look.
    pub lazily_freed_bytes: u64,
    /// The source that tells which pages those are.
    pub lazy_free_source: LazyFreeSource,
    /// Zero pages inside huge pages, as far as these were read; by the last look that read any.
    pub bloat_bytes: u64,
    /// Regions made huge.
    pub promotions: u64,
    /// Huge pages split.
    pub splits: u64,
    /// Memory that the splits gave back.
    pub freed_bytes: u64,
    /// Actions that came too late: a child was made, or memory released.
    pub overtaken: u64,
    /// Refusals by error number.
    pub refusals: BTreeMap<i32, u64>,
    /// Regions by reason, at the last look.
    pub regions: BTreeMap<Reason, u64>,
    /// The time in which the kernel acted on it, and may have held it up.
    pub stall_ns: u64,
    /// The longest of these times.
    pub longest_stall_ns: u64,
    /// The last measurement of its gain, if there was one.
    pub measured: Option<Measurement>,
    /// True if it is no longer a target.
    pub has_ended: bool,
}

impl ProcessTally {
    /// Adds the counts of `other`, which has none afterwards.
    fn take_counts(&mut self, other: &mut Self) {
        self.promotions += take(&mut other.promotions);
        self.splits += take(&mut other.splits);
        self.freed_bytes += take(&mut other.freed_bytes);
        self.overtaken += take(&mut other.overtaken);
        self.stall_ns += take(&mut other.stall_ns);
    }
}

/// The results for all processes, and the effort.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// By process.
    pub processes: BTreeMap<ProcessId, ProcessTally>,
    /// Counts of processes from when they had another name or group, by name and group.
    pub earlier: BTreeMap<(String, Option<String>), ProcessTally>,
    /// Looks at all processes.
    pub looks: u64,
    /// Processor time of looking.
    pub look_cpu_ns: u64,
    /// Steps of reclaim that the kernel was asked for.
    pub reclaims: u64,
    /// Memory that control groups held less after them.
    pub reclaimed_bytes: u64,
    /// The system by the last look.
    pub system: System,
}

fn mean(values: impl Iterator<Item = u8>) -> Option<u8> {
    let (sum, count) =
        values.fold((0, 0), |(sum, count), value| (sum + u64::from(value), count + 1));
    sum.checked_div(count).map(|mean| mean as u8)
}

impl Tally {
    pub(crate) fn see(&mut self, look: &Look, decisions: &[Decision], cpu_ns: u64) {
        self.looks += 1;
        self.look_cpu_ns += cpu_ns;
        self.system = look.system;
        for process in &look.processes {
            let tally = self.processes.entry(process.process).or_default();
            let is_renamed = tally.name != process.name || tally.group != process.group;
            if is_renamed && !tally.name.is_empty() {
                // Otherwise a sum by name would fall, and another one rise by the same.
                let (name, group) = (take(&mut tally.name), take(&mut tally.group));
                let earlier = self.earlier.entry((name, group)).or_insert_with_key(|key| {
                    let (name, group) = key.clone();
                    ProcessTally { name, group, has_ended: true, ..ProcessTally::default() }
                });
                earlier.take_counts(tally);
            }
            tally.name.clone_from(&process.name);
            tally.weight = process.weight;
            tally.group.clone_from(&process.group);
            tally.resident_bytes = process.resident_bytes;
            tally.heat_percent =
                mean(process.regions.iter().filter_map(|region| region.heat_percent));
            tally.regions.clear();
            tally.seen = process.coverage();
            tally.limits.clone_from(&process.limits);
            tally.heat_source = process.heat_source;
            tally.huge_source = process.huge_source;
            tally.lazily_freed_bytes = process.lazily_freed_bytes;
            tally.lazy_free_source = process.lazy_free_source;
            let huge: Vec<_> = process.regions.iter().filter(|region| region.is_huge).collect();
            tally.before.get_or_insert(tally.seen);
            tally.after = Some(tally.seen);
            let known: Vec<u16> = huge.iter().filter_map(|region| region.nonzero_pages).collect();
            // A look that reads into no huge page leaves the last figure, as long as there are any.
            if !known.is_empty() || huge.is_empty() {
                let zero: u64 = known.iter().map(|pages| u64::from(REGION_PAGES - pages)).sum();
                tally.bloat_bytes = zero * page_size_bytes() as u64;
            }
        }
        for decision in decisions {
            let tally = self.processes.entry(decision.process).or_default();
            *tally.regions.entry(decision.reason).or_default() += 1;
        }
    }

    /// Updates the coverage after actions.
    pub(crate) fn cover(&mut self, look: &Look) {
        for process in &look.processes {
            if let Some(tally) = self.processes.get_mut(&process.process) {
                tally.seen = process.coverage();
            }
        }
    }

    pub(crate) fn did(&mut self, outcome: &ActionOutcome) {
        let tally = self.processes.entry(outcome.process).or_default();
        tally.stall_ns += outcome.took_ns;
        tally.longest_stall_ns = tally.longest_stall_ns.max(outcome.took_ns);
        match (outcome.effect, outcome.action) {
            (Effect::Done, Action::Promote) => tally.promotions += 1,
            (Effect::Done, Action::Demote) => {
                tally.splits += 1;
                tally.freed_bytes += u64::from(outcome.freed_pages) * page_size_bytes() as u64;
            }
            (Effect::Refused(errno), _) => *tally.refusals.entry(errno).or_default() += 1,
            (Effect::Overtaken, _) => tally.overtaken += 1,
        }
    }

    pub(crate) fn end(&mut self, process: ProcessId) {
        if let Some(tally) = self.processes.get_mut(&process) {
            tally.has_ended = true;
        }
    }

    /// Huge pages split, of all processes.
    pub fn splits(&self) -> u64 {
        self.all().map(|tally| tally.splits).sum()
    }

    /// The results for all processes, also under earlier names.
    pub(crate) fn all(&self) -> impl Iterator<Item = &ProcessTally> {
        self.processes.values().chain(self.earlier.values())
    }

    /// The coverage of all processes that still run, as `of` selects it.
    pub fn coverage(&self, of: impl Fn(&ProcessTally) -> Option<Coverage>) -> Coverage {
        let running = self.processes.values().filter(|tally| !tally.has_ended);
        running.filter_map(of).fold(Coverage::default(), Coverage::plus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ProcessLook, Region};

    #[test]
    fn counts_stay_with_the_name_under_which_they_were_made() {
        let mut tally = Tally::default();
        for name in ["python3", "worker", "python3"] {
            let process = ProcessLook { name: name.into(), ..ProcessLook::default() };
            tally.see(&Look { processes: vec![process], ..Look::default() }, &[], 0);
            tally.did(&ActionOutcome {
                process: ProcessId::default(),
                address: 0,
                action: Action::Promote,
                at_ns: 0,
                took_ns: 1,
                cpu_ns: 0,
                effect: Effect::Done,
                freed_pages: 0,
            });
        }
        let count = |name: &str| -> u64 {
            tally.all().filter(|tally| tally.name == name).map(|tally| tally.promotions).sum()
        };
        assert_eq!((count("python3"), count("worker")), (2, 1));
        assert_eq!(tally.earlier.len(), 2);
    }

    #[test]
    fn bloat_ends_with_the_last_huge_page() {
        let mut tally = Tally::default();
        let mut bloat_after = |regions: Vec<Region>| {
            let processes = vec![ProcessLook { regions, ..ProcessLook::default() }];
            tally.see(&Look { processes, ..Look::default() }, &[], 0);
            tally.processes[&ProcessId::default()].bloat_bytes
        };
        let huge = Region { is_huge: true, ..Region::default() };
        let read = Region { nonzero_pages: Some(REGION_PAGES - 10), ..huge };
        let bytes = 10 * page_size_bytes() as u64;
        assert_eq!(bloat_after(vec![read]), bytes);
        assert_eq!(bloat_after(vec![huge]), bytes, "it was not read this time");
        assert_eq!(bloat_after(vec![Region::default()]), 0);
    }
}
