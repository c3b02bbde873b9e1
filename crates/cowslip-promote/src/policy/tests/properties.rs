//! Properties of every sequence of looks and outcomes.

use super::*;

#[test]
fn the_budget_for_stalls_holds_in_every_sequence() {
    for seed in SEEDS {
        let mut dice = Dice(seed);
        let stall_percent = [0.5, 2.0, 5.0, 25.0][dice.below(4) as usize];
        let settings = Settings { stall_percent, slow_ms: 1_000, ..Settings::default() };
        let mut policy = Policy::new(settings).unwrap();
        let processes = [process(1, (1..500).map(|n| region(n, 512)).collect())];
        let most_ns = 3 * MS;
        let (mut now, mut held_up, mut promotions) = (0, 0, 0);
        for _ in 0..400 {
            now += 1 + dice.below(10 * SECOND);
            let mut this_time = 0;
            for decision in policy.decide(&look(now, &processes)) {
                if decision.reason == Reason::Full {
                    let took = most_ns / 6 + dice.below(most_ns * 5 / 6);
                    this_time += 1;
                    held_up += took;
                    policy.learn(&outcome(decision.address, now, took, None));
                }
            }
            promotions += this_time;
            // The time that may be saved up, and the error of the last round's estimate.
            let allowed = (now + 10 * SECOND) as f64 * stall_percent / 100.0;
            let error = (this_time + 1) * most_ns;
            assert!(held_up as f64 <= allowed + error as f64, "{stall_percent} %: {held_up}");
        }
        assert!(promotions > 100, "{stall_percent} %: {promotions}");
    }
}

/// A machine on which every promotion and split succeeds.
struct Machine {
    processes: Vec<ProcessLook>,
    /// Pages of each region that hold data.
    content: BTreeMap<(ProcessId, u64), u16>,
}

impl Machine {
    /// Each region has a random number of pages, of which fewer may hold data.
    fn new(dice: &mut Dice, processes: i32, regions: u64) -> Self {
        let mut content = BTreeMap::new();
        let mut all = Vec::new();
        for pid in 1..=processes {
            let mut its = Vec::new();
            for number in 1..=regions {
                let pages = 1 + dice.below(512) as u16;
                let full = if dice.one_in(3) { 512 } else { pages };
                its.push(region(number, full));
                let holds = if dice.one_in(2) { full } else { 1 + dice.below(full.into()) as u16 };
                content.insert((id(pid), number << 21), holds);
            }
            all.push(process(pid, its));
        }
        Self { processes: all, content }
    }

    fn apply(&mut self, decision: &Decision) -> Option<Action> {
        let action = decision.reason.action()?;
        let process = self.processes.iter_mut().find(|look| look.process == decision.process)?;
        let region =
            process.regions.iter_mut().find(|region| region.address == decision.address)?;
        let holds = self.content[&(decision.process, decision.address)];
        *region = match action {
            Action::Promote => huge(region.address >> 21, Some(holds)),
            Action::Demote => super::region(region.address >> 21, holds),
        };
        Some(action)
    }
}

#[test]
fn a_region_that_does_not_change_is_not_promoted_and_split_to_and_fro() {
    for seed in SEEDS {
        let mut dice = Dice(seed);
        let threshold_percent = 30 + dice.below(70) as u8;
        let demote_below_percent = dice.below(u64::from(threshold_percent)) as u8;
        let settings = Settings {
            threshold_percent,
            demote_below_percent,
            stall_percent: 100.0,
            ..Settings::default()
        };
        let mut policy = Policy::new(settings).unwrap();
        let mut machine = Machine::new(&mut dice, 3, 60);
        let mut done: BTreeMap<(ProcessId, u64), Vec<Action>> = BTreeMap::new();
        let mut last = 0;
        for round in 0..80u64 {
            let at = look(round * 15 * SECOND, &machine.processes);
            for decision in policy.decide(&at) {
                if let Some(action) = machine.apply(&decision) {
                    let key = (decision.process, decision.address);
                    done.entry(key).or_default().push(action);
                    let freed_pages = 512 - machine.content[&key];
                    let done = ActionOutcome {
                        process: key.0,
                        address: key.1,
                        action,
                        freed_pages,
                        ..outcome(key.1, at.at_ns, MS, None)
                    };
                    policy.learn(&done);
                    last = round;
                }
            }
        }
        for (key, actions) in &done {
            let wanted = [Action::Promote, Action::Demote];
            assert!(wanted.starts_with(actions), "{key:?}: {actions:?}");
        }
        assert!(!done.is_empty() && last < 40, "{last}: it has settled");
    }
}

#[test]
fn nothing_is_promoted_before_it_has_settled_after_a_release() {
    for seed in SEEDS {
        let mut dice = Dice(seed);
        let mut policy = policy();
        let settle_ns = policy.settings().settle_ms * MS;
        let mut pages: Vec<u16> = vec![512; 30];
        let mut released: Vec<Option<u64>> = vec![None; 30];
        let (mut now, mut promotions) = (0, 0);
        for round in 0..500 {
            now += dice.below(6 * SECOND);
            // The state before the first look is unknown.
            let changes = if round == 0 { 0 } else { pages.len() };
            for (pages, released) in pages.iter_mut().zip(&mut released).take(changes) {
                let before = *pages;
                if dice.one_in(6) {
                    *pages = 461 + dice.below(52) as u16;
                }
                if *pages < before {
                    *released = Some(now);
                }
            }
            let regions = pages.iter().zip(1..).map(|(pages, n)| region(n, *pages)).collect();
            for decision in policy.decide(&look(now, &[process(1, regions)])) {
                if decision.reason == Reason::Full {
                    promotions += 1;
                    let at = released[(decision.address >> 21) as usize - 1];
                    assert!(at.is_none_or(|at| now >= at + settle_ns), "{at:?} {now}");
                }
            }
        }
        assert!(promotions > 100, "{promotions}");
    }
}

#[test]
fn shares_converge_for_any_weights_and_starts() {
    for seed in SEEDS {
        let mut dice = Dice(seed);
        let count = 2 + dice.below(3) as usize;
        let weights: Vec<u32> = (0..count).map(|_| 1 + dice.below(4) as u32).collect();
        let starts: Vec<u64> = (0..count).map(|_| dice.below(8)).collect();
        let settings = Settings { compactions: 0, stall_percent: 100.0, ..Settings::default() };
        let mut policy = Policy::new(settings).unwrap();
        let mut processes: Vec<ProcessLook> = (1..)
            .zip(&weights)
            .map(|(pid, weight)| ProcessLook {
                weight: *weight,
                ..process(pid, (1..=800).map(|n| region(n, 512)).collect())
            })
            .collect();
        for round in 0..60u64 {
            let running: Vec<ProcessLook> = processes
                .iter()
                .zip(&starts)
                .filter(|(_, start)| round >= **start)
                .map(|(process, _)| process.clone())
                .collect();
            let system = System { free_huge_pages: 10, ..plenty() };
            for decision in policy.decide(&Look { system, ..look(round * 10 * SECOND, &running) }) {
                if decision.reason == Reason::Full {
                    let process =
                        processes.iter_mut().find(|p| p.process == decision.process).unwrap();
                    process.regions[(decision.address >> 21) as usize - 1].is_huge = true;
                }
            }
        }
        let shares: Vec<f64> = processes
            .iter()
            .map(|process| process.regions.iter().filter(|region| region.is_huge).count() as f64)
            .zip(&weights)
            .map(|(huge, weight)| huge / f64::from(*weight))
            .collect();
        let mean = shares.iter().sum::<f64>() / count as f64;
        let worst = shares.iter().map(|share| (share - mean).abs() / mean).fold(0.0, f64::max);
        assert!(worst <= 0.1, "{weights:?} from {starts:?}: {shares:?}");
    }
}
