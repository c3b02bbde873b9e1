//! Replay: decides about a record again, with other settings.
//!
//! The record shows the world as the recorded decisions made it. Where the replay decides otherwise, it
//! adapts later looks to what it would have seen: a region that it promoted is huge until pages of it are
//! released, and one that it left is as it was before.

use std::collections::BTreeMap;

use cowslip_sys::error::{Error, ErrorKind, Result};

use crate::model::{
    Action, ActionOutcome, Effect, Look, ProcessId, REGION_PAGES, Region, Settings,
};
use crate::policy::{Decision, Policy, Reason};
use crate::record::Event;

/// The assumed cost of a promotion that was not recorded.
const GUESS_NS: u64 = 1_000_000;

/// One look, and the decisions of the replay.
#[derive(Clone, PartialEq, Debug)]
pub struct Round {
    /// The look, as it would have been.
    pub look: Look,
    /// The decisions about it.
    pub decisions: Vec<Decision>,
}

/// The totals of a record, as it was and with other settings.
#[derive(Clone, PartialEq, Debug)]
pub struct Replay {
    /// Every look.
    pub rounds: Vec<Round>,
    /// Regions promoted and split in the record.
    pub recorded: Counts,
    /// Regions promoted and split in the replay.
    pub replayed: Counts,
}

/// Numbers of actions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Regions made huge.
    pub promotions: u64,
    /// Pages that were absent in them, and take memory now.
    pub added_pages: u64,
    /// Huge pages split.
    pub splits: u64,
}

/// A region where the replay's world differs from the record's.
#[derive(Clone, Copy, Debug)]
enum Other {
    /// It is huge in the replay; in the record, it was this.
    Huge(Region),
    /// It is not huge in the replay; there, it is this.
    Base(Region),
}

struct World {
    others: BTreeMap<(ProcessId, u64), Other>,
}

/// Decides about a record again, with its settings modified by `change`.
///
/// `Corrupt` for a text that is no record; `Usage` for settings that make no sense.
pub fn replay(
    events: impl IntoIterator<Item = Result<Event>>,
    change: impl Fn(&mut Settings),
) -> Result<Replay> {
    let mut settings: Option<Settings> = None;
    let mut rounds: Vec<(Option<Settings>, Look, Vec<ActionOutcome>)> = Vec::new();
    for event in events {
        match event? {
            Event::Start { settings: mut new, .. } => {
                change(&mut new);
                settings = Some(new);
            }
            Event::Look(look) => rounds.push((settings.take(), look, Vec::new())),
            Event::Outcome(outcome) => {
                if let Some((_, _, outcomes)) = rounds.last_mut() {
                    outcomes.push(outcome);
                }
            }
        }
    }
    let Some((Some(first), ..)) = rounds.first() else {
        let empty = Error::new(ErrorKind::Corrupt, "read the record").because("it shows nothing");
        return Err(empty);
    };
    let mut policy = Policy::new(first.clone())?;
    let mut world = World { others: BTreeMap::new() };
    let mut all =
        Replay { rounds: Vec::new(), recorded: Counts::default(), replayed: Counts::default() };
    for (settings, recorded, outcomes) in rounds {
        if let Some(settings) = settings {
            policy.set(settings)?;
        }
        let look = world.change(&recorded);
        let decisions = policy.decide(&look);
        for outcome in outcomes.iter().filter(|outcome| outcome.effect == Effect::Done) {
            let region = recorded.region(outcome.process, outcome.address).copied();
            all.recorded.count(outcome.action, region.as_ref());
            world.recorded_did(outcome, region);
        }
        for decision in &decisions {
            let Some(action) = decision.reason.action() else { continue };
            let outcome = result(decision, action, &outcomes, &look);
            let is_promotion = action == Action::Promote;
            if is_promotion && policy.is_backing_off(outcome.process, outcome.at_ns) {
                continue;
            }
            policy.learn(&outcome);
            if outcome.effect == Effect::Done {
                let region = look.region(decision.process, decision.address).copied();
                all.replayed.count(action, region.as_ref());
                world.replay_did(decision, action, region);
            }
        }
        all.rounds.push(Round { look, decisions });
    }
    Ok(all)
}

impl Replay {
    /// The reasons for a region's treatment: each change of the reason, with the time of the look and the
    /// region as it was then.
    pub fn story(&self, process: ProcessId, address: u64) -> Vec<(u64, Region, Reason)> {
        let mut story: Vec<(u64, Region, Reason)> = Vec::new();
        for round in &self.rounds {
            let decision = round
                .decisions
                .iter()
                .find(|decision| decision.process == process && decision.address == address);
            let region = round.look.region(process, address).copied();
            let (Some(decision), Some(region)) = (decision, region) else { continue };
            if story.last().is_none_or(|(_, _, reason)| *reason != decision.reason) {
                story.push((round.look.at_ns, region, decision.reason));
            }
        }
        story
    }
}

impl Counts {
    fn count(&mut self, action: Action, region: Option<&Region>) {
        match action {
            Action::Promote => {
                self.promotions += 1;
                let pages = region.map_or(REGION_PAGES, Region::used_pages);
                self.added_pages += u64::from(REGION_PAGES - pages.min(REGION_PAGES));
            }
            Action::Demote => self.splits += 1,
        }
    }
}

impl World {
    /// The look as the replay would have seen it.
    fn change(&mut self, recorded: &Look) -> Look {
        let mut look = recorded.clone();
        for process in &mut look.processes {
            for region in &mut process.regions {
                let key = (process.process, region.address);
                match self.others.get(&key) {
                    // Huge in the record too, or split there by a release: both worlds agree again.
                    Some(Other::Huge(before)) if region.is_huge || region.pages < before.pages => {
                        self.others.remove(&key);
                    }
                    Some(Other::Huge(_)) => {
                        *region = Region {
                            address: region.address,
                            pages: REGION_PAGES,
                            is_huge: true,
                            heat_percent: region.heat_percent,
                            ..Region::default()
                        }
                    }
                    Some(Other::Base(_)) if !region.is_huge => {
                        self.others.remove(&key);
                    }
                    Some(Other::Base(before)) => *region = *before,
                    None => {}
                }
            }
        }
        look
    }

    fn recorded_did(&mut self, outcome: &ActionOutcome, region: Option<Region>) {
        let key = (outcome.process, outcome.address);
        match (outcome.action, self.others.get(&key), region) {
            // The replay did it before.
            (Action::Promote, Some(Other::Huge(_)), _) => {
                self.others.remove(&key);
            }
            (Action::Promote, None, Some(region)) => {
                self.others.insert(key, Other::Base(region));
            }
            (Action::Demote, None, Some(region)) if region.is_huge => {
                self.others.insert(key, Other::Huge(Region { pages: 0, ..region }));
            }
            _ => {}
        }
    }

    fn replay_did(&mut self, decision: &Decision, action: Action, region: Option<Region>) {
        let key = (decision.process, decision.address);
        match (action, self.others.get(&key), region) {
            // The record did it in this round.
            (Action::Promote, Some(Other::Base(_)), _)
            | (Action::Demote, Some(Other::Huge(_)), _) => {
                self.others.remove(&key);
            }
            (Action::Promote, None, Some(region)) => {
                self.others.insert(key, Other::Huge(region));
            }
            (Action::Demote, None, Some(region)) if region.is_huge => {
                let pages = region.nonzero_pages.unwrap_or(0);
                let base = Region { address: region.address, pages, ..Region::default() };
                self.others.insert(key, Other::Base(base));
            }
            _ => {}
        }
    }
}

/// The outcome in the record, or an assumed one: success, in the mean time of the recorded ones.
fn result(
    decision: &Decision,
    action: Action,
    outcomes: &[ActionOutcome],
    look: &Look,
) -> ActionOutcome {
    let same = |outcome: &&ActionOutcome| {
        (outcome.process, outcome.address, outcome.action)
            == (decision.process, decision.address, action)
    };
    if let Some(outcome) = outcomes.iter().find(same) {
        return *outcome;
    }
    let like_it: Vec<&ActionOutcome> =
        outcomes.iter().filter(|outcome| outcome.action == action).collect();
    let mean = |of: fn(&ActionOutcome) -> u64| {
        let sum: u64 = like_it.iter().map(|outcome| of(outcome)).sum();
        sum.checked_div(like_it.len() as u64).unwrap_or(GUESS_NS)
    };
    ActionOutcome {
        process: decision.process,
        address: decision.address,
        action,
        at_ns: look.at_ns,
        took_ns: mean(|outcome| outcome.took_ns),
        cpu_ns: mean(|outcome| outcome.cpu_ns),
        effect: Effect::Done,
        freed_pages: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ProcessLook, System};

    const ID: ProcessId = ProcessId { pid: 7, start_ticks: 1 };

    /// Regions of 512, 400 and 100 pages, seen five times; with the default settings the first one is
    /// promoted after the second look.
    fn record() -> Vec<Result<Event>> {
        let region =
            |number: u64, pages| Region { address: number << 21, pages, ..Region::default() };
        let mut regions = vec![region(1, 512), region(2, 400), region(3, 100)];
        let system = System {
            available_bytes: 8 << 30,
            total_bytes: 16 << 30,
            free_huge_pages: 99,
            ..System::default()
        };
        let mut events = vec![Ok(Event::Start {
            schema: String::new(),
            page_bytes: 4096,
            settings: Settings::default(),
        })];
        for round in 0..5 {
            let process =
                ProcessLook { process: ID, regions: regions.clone(), ..ProcessLook::default() };
            let at_ns = round * 5_000_000_000;
            events.push(Ok(Event::Look(Look { at_ns, system, processes: vec![process] })));
            if round == 1 {
                events.push(Ok(Event::Outcome(ActionOutcome {
                    process: ID,
                    address: 1 << 21,
                    action: Action::Promote,
                    at_ns,
                    took_ns: 500_000,
                    cpu_ns: 1_000_000,
                    effect: Effect::Done,
                    freed_pages: 0,
                })));
                regions[0].is_huge = true;
            }
        }
        events
    }

    fn with(threshold_percent: u8) -> Replay {
        replay(record(), |settings| settings.threshold_percent = threshold_percent).unwrap()
    }

    #[test]
    fn the_same_settings_do_the_same() {
        let same = with(90);
        assert_eq!(same.recorded, Counts { promotions: 1, added_pages: 0, splits: 0 });
        assert_eq!(same.replayed, same.recorded);
        let reasons: Vec<_> = same.story(ID, 1 << 21).iter().map(|change| change.2).collect();
        assert_eq!(reasons, [Reason::FirstLook, Reason::Full, Reason::Huge]);
    }

    #[test]
    fn a_lower_threshold_promotes_more_once_each_and_says_for_how_much_memory() {
        let lower = with(70);
        assert_eq!(lower.replayed, Counts { promotions: 2, added_pages: 112, splits: 0 });
        assert_eq!(with(21).replayed.promotions, 2, "100 of 512 pages are 19.5 %");
        let last = &lower.rounds[4].look.processes[0];
        assert!(last.regions[0].is_huge && last.regions[1].is_huge && !last.regions[2].is_huge);
    }

    #[test]
    fn what_a_replay_leaves_stays_as_it_was() {
        let events = record().into_iter().map(|event| {
            event.map(|event| match event {
                Event::Look(mut look) => {
                    // Not quite full before the record promoted it.
                    let region = &mut look.processes[0].regions[0];
                    region.pages = if region.is_huge { 512 } else { 470 };
                    Event::Look(look)
                }
                other => other,
            })
        });
        let higher = replay(events, |settings| settings.threshold_percent = 95).unwrap();
        assert_eq!((higher.recorded.promotions, higher.replayed.promotions), (1, 0));
        assert_eq!(higher.rounds[4].look.processes[0].regions[0].pages, 470);
    }

    #[test]
    fn nonsense_is_refused() {
        assert_eq!(replay([], |_| ()).unwrap_err().kind(), ErrorKind::Corrupt);
        let error = replay(record(), |settings| settings.threshold_percent = 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
    }
}
