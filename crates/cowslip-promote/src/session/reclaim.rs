//! Bloat given back by the kernel's reclaim, in control groups that hold nothing but targets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use cowslip_sys::cgroup::Group;
use cowslip_sys::error::Result;
use cowslip_sys::process;
use cowslip_sys::procfs::CgroupMembers;

use super::operator::Notice;
use super::{Round, Session};
use crate::model::{Action, ActionOutcome, Effect};
use crate::policy::{Decision, Reason};
use crate::reclaim::{self, ReclaimAnswer, Step};
use crate::record::Event;

/// After so many steps in a row that split nothing, a group's huge pages are only split one by one.
const FRUITLESS_STEPS: u32 = 3;

/// Steps in a row that split nothing, by group.
pub(super) type Fruitless = BTreeMap<PathBuf, u32>;

impl Session {
    /// Has the kernel reclaim a step in each group of targets alone that has huge pages to split, and takes the split
    /// ones off the round. The rest is split one by one.
    pub(super) fn reclaim(&mut self, round: &mut Round) -> Result<()> {
        if self.plan.settings.reclaim_percent == 0.0 {
            return Ok(());
        }
        for (group, bloated) in self.own_groups(round) {
            let steps = self.fruitless_steps.get(group.directory()).copied().unwrap_or(0);
            if steps >= FRUITLESS_STEPS || self.stops() {
                continue;
            }
            let (began, before) = (process::thread_cpu_ns(), group.used_bytes());
            match reclaim::step(&group, &self.plan.settings) {
                Step::Braked => continue,
                Step::Refused(answer) => {
                    self.give_up_reclaim(&group, &answer);
                    continue;
                }
                Step::Taken => {}
            }
            let cpu_ns = process::thread_cpu_ns() - began;
            let freed = before
                .zip(group.used_bytes())
                .map_or(0, |(before, now)| before.saturating_sub(now));
            self.tally.reclaims += 1;
            self.tally.reclaimed_bytes += freed;
            let split = self.take_split(round, &bloated, cpu_ns)?;
            let steps = if split > 0 { 0 } else { steps + 1 };
            self.fruitless_steps.insert(group.directory().to_owned(), steps);
            if steps == FRUITLESS_STEPS {
                self.give_up_reclaim(&group, &reclaim::fruitless());
            }
        }
        Ok(())
    }

    fn give_up_reclaim(&mut self, group: &Group, answer: &ReclaimAnswer) {
        self.fruitless_steps.insert(group.directory().to_owned(), FRUITLESS_STEPS);
        self.operator.tell(&Notice::NoReclaim(group.directory(), answer));
    }

    /// The groups with decisions to split, and those decisions. A group with other processes is none: reclaim would take
    /// memory of theirs.
    fn own_groups(&self, round: &Round) -> Vec<(Group, Vec<Decision>)> {
        let mut groups: BTreeMap<PathBuf, (Group, Vec<Decision>)> = BTreeMap::new();
        let bloat = [Reason::Sparse, Reason::PartiallyMapped];
        for decision in round.decisions.iter().filter(|decision| bloat.contains(&decision.reason)) {
            if let Some(group) = self.promoter.memory_group(decision.process) {
                let fresh = || (group.clone(), Vec::new());
                groups.entry(group.directory().to_owned()).or_insert_with(fresh).1.push(*decision);
            }
        }
        let targets: BTreeSet<i32> =
            self.promoter.targets().map(|target| target.id().pid).collect();
        let is_own = |group: &Group| {
            let members =
                CgroupMembers::open(group.directory()).and_then(|members| members.process_ids());
            members.is_ok_and(|pids| pids.iter().all(|pid| targets.contains(pid)))
        };
        groups.into_values().filter(|(group, _)| is_own(group)).collect()
    }

    /// Accounts for the pages that the kernel has split; returns their number.
    fn take_split(
        &mut self,
        round: &mut Round,
        bloated: &[Decision],
        cpu_ns: u64,
    ) -> Result<usize> {
        let mut split = BTreeSet::new();
        for decision in bloated {
            let Some(freed_pages) = self.promoter.freed_by_kernel(decision) else { continue };
            let outcome = ActionOutcome {
                process: decision.process,
                address: decision.address,
                action: Action::Demote,
                at_ns: process::now_ns(),
                took_ns: 0,
                cpu_ns: if split.is_empty() { cpu_ns } else { 0 },
                effect: Effect::Done,
                freed_pages,
            };
            split.insert((decision.process, decision.address));
            self.promoter.learn(&outcome);
            self.write(&Event::Outcome(outcome))?;
            self.tally.did(&outcome);
            round.look.take_in(&outcome);
            self.rest_after(&outcome);
        }
        round.acts += split.len();
        round.decisions.retain(|decision| !split.contains(&(decision.process, decision.address)));
        Ok(split.len())
    }
}
