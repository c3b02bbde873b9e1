//! A machine with a fixed number of huge pages, all of which targets hold or want.

use super::*;

/// Programs of 200 full regions each on a machine with this many huge pages: those of each in the end. The first starts
/// five seconds before the others; their looks are changed by `change`.
fn share_out(weights: &[u32], huge_pages: usize, change: impl Fn(&mut ProcessLook)) -> Vec<usize> {
    let mut policy = Policy::new(Settings::default()).unwrap();
    let mut looks: Vec<ProcessLook> = (1..)
        .zip(weights)
        .map(|(pid, &weight)| {
            let regions = (1..201).map(|number| region(number, 512)).collect();
            ProcessLook { weight, ..process(pid, regions) }
        })
        .collect();
    looks.iter_mut().for_each(&change);
    let count = |look: &ProcessLook| look.regions.iter().filter(|region| region.is_huge).count();
    let mut requests = 0;
    for second in (0..600).step_by(5) {
        let now = second * SECOND;
        let running = if second < 60 { 1 } else { looks.len() };
        let system = System { free_huge_pages: 0, ..plenty() };
        for decision in policy.decide(&Look { system, ..look(now, &looks[..running]) }) {
            let Some(action) = decision.reason.action() else { continue };
            if action == Action::Promote && policy.is_backing_off(decision.process, now) {
                continue;
            }
            let held: usize = looks.iter().map(count).sum();
            let is_there = action == Action::Demote || held < huge_pages;
            requests += usize::from(!is_there);
            let errno = (!is_there).then_some(Errno::NOMEM);
            let done = outcome(decision.address, now, MS / 2, errno);
            policy.learn(&ActionOutcome { process: decision.process, action, ..done });
            if is_there {
                let its = looks.iter_mut().find(|look| look.process == decision.process).unwrap();
                its.regions[(decision.address >> 21) as usize - 1].is_huge =
                    action == Action::Promote;
            }
        }
        assert!(looks.iter().map(count).sum::<usize>() <= huge_pages);
    }
    // Waits of up to a minute, and the looks of the first minutes.
    assert!(requests <= 20, "{requests} requests for huge pages that are not there");
    looks.iter().map(count).collect()
}

/// The largest distance of a share from its part of the weights, relative to that part.
fn worst_error(shares: &[usize], wanted: &[f64]) -> f64 {
    let all: usize = shares.iter().sum();
    let sum: f64 = wanted.iter().sum();
    let error =
        |(share, wanted): (&usize, &f64)| (*share as f64 / all as f64 / (wanted / sum) - 1.0).abs();
    shares.iter().zip(wanted).map(error).fold(0.0, f64::max)
}

#[test]
fn late_comers_get_the_share_of_their_weight() {
    let two = share_out(&[1, 9], 150, |_| {});
    assert!(two.iter().sum::<usize>() >= 149 && worst_error(&two, &[1.0, 9.0]) <= 0.1, "{two:?}");
    let eight = share_out(&[1, 9, 1, 9, 1, 9, 1, 9], 400, |_| {});
    let wanted = [1.0, 9.0].repeat(4);
    assert!(eight.iter().sum::<usize>() >= 399 && worst_error(&eight, &wanted) <= 0.1, "{eight:?}");
}

#[test]
fn more_goes_where_a_page_saves_more() {
    let saves = |look: &mut ProcessLook| {
        look.saved_ns = Some(if look.process == id(2) { 3e6 } else { 1e6 });
    };
    let shares = share_out(&[1, 1], 120, saves);
    assert!(worst_error(&shares, &[1.0, 3.0]) <= 0.1, "{shares:?}");
    let only_one_is_known = |look: &mut ProcessLook| {
        look.saved_ns = (look.process == id(2)).then_some(3e6);
    };
    let shares = share_out(&[1, 1], 120, only_one_is_known);
    assert!(
        worst_error(&shares, &[1.0, 1.0]) <= 0.1,
        "as much as those that are known: {shares:?}"
    );
}

#[test]
fn who_gains_nothing_gives_more_than_half() {
    let taken_back = |gain| {
        let rich = process(1, (1..9).map(|number| huge(number, None)).collect());
        let wants = process(2, (1..9).map(|number| region(number, 512)).collect());
        let looks = [ProcessLook { gain, ..rich }, wants];
        let scarce = System { free_huge_pages: 0, ..plenty() };
        let mut policy = policy();
        policy.decide(&Look { system: scarce, ..look(0, &looks) });
        let refused = outcome(1 << 21, SECOND, MS, Some(Errno::NOMEM));
        policy.learn(&ActionOutcome { process: id(2), ..refused });
        let decisions = policy.decide(&Look { system: scarce, ..look(SECOND, &looks) });
        decisions.iter().filter(|decision| decision.reason == Reason::TakenBack).count()
    };
    let (in_use, without_gain) = (taken_back(GainState::Assumed), taken_back(GainState::NotShown));
    assert!((3..=4).contains(&in_use) && without_gain > in_use, "{in_use}, {without_gain}");
}

#[test]
fn hot_regions_get_the_idle_huge_pages_of_their_own_process() {
    let mut policy = policy();
    let warm = |region: Region, heat| Region { heat_percent: Some(heat), ..region };
    let regions = vec![
        warm(huge(1, None), 0),
        warm(huge(2, None), 90),
        warm(region(3, 512), 80),
        warm(region(4, 512), 5),
    ];
    let scarce = System { free_huge_pages: 0, ..plenty() };
    let looks = [process(1, regions)];
    policy.decide(&Look { system: scarce, ..look(0, &looks) });
    policy.learn(&outcome(3 << 21, SECOND, MS, Some(Errno::NOMEM)));
    let decisions = policy.decide(&Look { system: scarce, ..look(SECOND, &looks) });
    let reason = |number: u64| {
        decisions.iter().find(|decision| decision.address == number << 21).unwrap().reason
    };
    assert_eq!((reason(1), reason(2)), (Reason::TakenBack, Reason::Huge));
    assert_eq!((reason(3), reason(4)), (Reason::Full, Reason::BackingOff));
    assert!(!policy.is_backing_off(id(1), SECOND + MS), "it is expected to be there");
}

#[test]
fn a_shortage_costs_few_requests_and_ends_with_a_free_huge_page() {
    let looks: Vec<_> = (1..=8)
        .map(|pid| process(pid, (1..51).map(|number| region(number, 512)).collect()))
        .collect();
    let mut policy = policy();
    let mut requests = 0;
    for second in 0..600 {
        let system = System { free_huge_pages: 6, ..plenty() };
        let now = second * SECOND;
        for decision in policy.decide(&Look { system, ..look(now, &looks) }) {
            if decision.reason == Reason::Full && !policy.is_backing_off(decision.process, now) {
                requests += 1;
                let refused = outcome(decision.address, now, MS, Some(Errno::NOMEM));
                policy.learn(&ActionOutcome { process: decision.process, ..refused });
            }
        }
    }
    assert!((8..=20).contains(&requests), "{requests}: the kernel keeps six for itself");
    assert!(policy.is_scarce());
    let system = System { free_huge_pages: 7, ..plenty() };
    let decisions = policy.decide(&Look { system, ..look(600 * SECOND, &looks) });
    let tried: Vec<_> =
        decisions.iter().filter(|decision| decision.reason == Reason::Full).collect();
    assert_eq!(tried.len(), 1, "one more than then is free");
    for _ in 0..2 {
        let done = outcome(tried[0].address, 600 * SECOND, MS, None);
        policy.learn(&ActionOutcome { process: tried[0].process, ..done });
    }
    assert!(!policy.is_scarce());
}

#[test]
fn merged_regions_are_promoted_only_while_they_are_in_use() {
    let merged = |heat_percent| Region { merged_pages: 500, heat_percent, ..region(1, 512) };
    let reason = |heat| second_reason(Settings::default(), merged(heat), merged(heat));
    assert_eq!((reason(None), reason(Some(9))), (Reason::Merged, Reason::Merged));
    assert_eq!(reason(Some(10)), Reason::Full);
    let with_child = Region { shared_pages: 1, ..merged(Some(90)) };
    assert_eq!(second_reason(Settings::default(), with_child, with_child), Reason::Shared);

    // The copies take 2 MiB: 20 of them would leave less than the 5 % that stay available.
    let regions: Vec<_> =
        (1..21).map(|number| Region { address: number << 21, ..merged(Some(90)) }).collect();
    let looks = [process(1, regions)];
    let little = System { available_bytes: (16 << 30) / 100 * 5 + (11 << 20), ..plenty() };
    let mut policy = policy();
    policy.decide(&Look { system: little, ..look(0, &looks) });
    let decisions = policy.decide(&Look { system: little, ..look(SECOND, &looks) });
    let count = |reason| decisions.iter().filter(|decision| decision.reason == reason).count();
    assert_eq!((count(Reason::Full), count(Reason::MemoryLow)), (5, 15));
}

#[test]
fn what_is_merged_again_after_its_promotion_stays_so_for_a_while() {
    let merged = Region { merged_pages: 500, heat_percent: Some(90), ..region(1, 512) };
    let mut policy = policy();
    let reason = |policy: &mut Policy, seconds: u64, region| {
        policy.decide(&look(seconds * SECOND, &[process(1, vec![region])]))[0].reason
    };
    assert_eq!(reason(&mut policy, 0, merged), Reason::FirstLook);
    assert_eq!(reason(&mut policy, 1, merged), Reason::Full);
    policy.learn(&outcome(1 << 21, SECOND, MS, None));
    assert_eq!(reason(&mut policy, 2, huge(1, None)), Reason::Huge);
    assert_eq!(reason(&mut policy, 3, merged), Reason::RetryLater);
    assert_eq!(reason(&mut policy, 62, merged), Reason::RetryLater);
    assert_eq!(reason(&mut policy, 64, merged), Reason::Full);
}
