//! What was done to each process, for tables and metrics.

use std::collections::BTreeMap;

use cowslip::units::page_size_bytes;
use cowslip_promote::{
    Action, Coverage, Decision, Effect, HeatSource, HugeSource, Limit, Look, Outcome, ProcessId,
    REGION_PAGES, Reason, System,
};

/// One process.
#[derive(Clone, Debug, Default)]
pub(super) struct ProcessTally {
    pub(super) name: String,
    pub(super) weight: u32,
    pub(super) group: Option<String>,
    pub(super) resident_bytes: u64,
    /// Of its control group and of those that this is a part of, by the last look.
    pub(super) limits: Vec<Limit>,
    /// The mean of its regions, where that is known.
    pub(super) heat_percent: Option<u8>,
    /// At first and in the end: by the looks, or by the kernel's own sums where they were asked for.
    pub(super) before: Option<Coverage>,
    pub(super) after: Option<Coverage>,
    /// By the last look.
    pub(super) seen: Coverage,
    /// How that was found out.
    pub(super) huge_source: HugeSource,
    pub(super) heat_source: HeatSource,
    /// Zero pages inside huge pages, as far as they were looked into; by the last look that did.
    pub(super) bloat_bytes: u64,
    pub(super) promotions: u64,
    pub(super) splits: u64,
    pub(super) freed_bytes: u64,
    /// Actions that were too late: a child came, or something was released.
    pub(super) overtaken: u64,
    /// Refusals by error number.
    pub(super) refusals: BTreeMap<i32, u64>,
    /// Regions by reason, at the last look.
    pub(super) regions: BTreeMap<Reason, u64>,
    pub(super) stall_ns: u64,
    pub(super) longest_stall_ns: u64,
    pub(super) has_ended: bool,
}

/// All of them, and what it took.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) processes: BTreeMap<ProcessId, ProcessTally>,
    pub(super) looks: u64,
    /// Processor time of looking.
    pub(super) look_cpu_ns: u64,
    /// By the last look.
    pub(super) system: System,
}

fn mean(values: impl Iterator<Item = u8>) -> Option<u8> {
    let (sum, count) = values.fold((0, 0), |(sum, count), it| (sum + u64::from(it), count + 1));
    sum.checked_div(count).map(|mean| mean as u8)
}

impl Tally {
    pub(super) fn see(&mut self, look: &Look, decisions: &[Decision], cpu_ns: u64) {
        self.looks += 1;
        self.look_cpu_ns += cpu_ns;
        self.system = look.system;
        for process in &look.processes {
            let tally = self.processes.entry(process.process).or_default();
            tally.name.clone_from(&process.name);
            tally.weight = process.weight;
            tally.group.clone_from(&process.group);
            tally.resident_bytes = process.resident_bytes;
            tally.heat_percent = mean(process.regions.iter().filter_map(|it| it.heat_percent));
            tally.regions.clear();
            tally.seen = process.coverage();
            tally.limits.clone_from(&process.limits);
            tally.heat_source = process.heat_source;
            tally.huge_source = process.huge_source;
            let huge = process.regions.iter().filter(|it| it.is_huge);
            tally.before.get_or_insert(tally.seen);
            tally.after = Some(tally.seen);
            let known: Vec<u16> = huge.filter_map(|it| it.nonzero_pages).collect();
            if !known.is_empty() {
                let zero: u64 = known.iter().map(|it| u64::from(REGION_PAGES - it)).sum();
                tally.bloat_bytes = zero * page_size_bytes() as u64;
            }
        }
        for decision in decisions {
            let tally = self.processes.entry(decision.process).or_default();
            *tally.regions.entry(decision.reason).or_default() += 1;
        }
    }

    /// What is huge after something was done.
    pub(super) fn cover(&mut self, look: &Look) {
        for process in &look.processes {
            if let Some(tally) = self.processes.get_mut(&process.process) {
                tally.seen = process.coverage();
            }
        }
    }

    pub(super) fn did(&mut self, outcome: &Outcome) {
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

    pub(super) fn end(&mut self, process: ProcessId) {
        if let Some(tally) = self.processes.get_mut(&process) {
            tally.has_ended = true;
        }
    }

    /// Huge pages split, of all processes.
    pub(super) fn splits(&self) -> u64 {
        self.processes.values().map(|it| it.splits).sum()
    }

    /// How much is huge of all processes that still run, by the kernel's sums.
    pub(super) fn coverage(&self, of: impl Fn(&ProcessTally) -> Option<Coverage>) -> Coverage {
        let running = self.processes.values().filter(|tally| !tally.has_ended);
        running.filter_map(of).fold(Coverage::default(), Coverage::plus)
    }
}
