//! Room below the limits of control groups, and processor time: the resources that all promotions share.

use super::*;

const MIB: u64 = 1 << 20;

/// A process in a control group with a limit of 64 MiB, and with that much room left.
fn limited(pid: i32, regions: Vec<Region>, room_mib: u64) -> ProcessLook {
    let (group, limit_bytes) = ("/sys/fs/cgroup/memory/service".to_owned(), 64 * MIB);
    let limits = vec![Limit { group, limit_bytes, room_bytes: room_mib * MIB }];
    ProcessLook { limits, ..process(pid, regions) }
}

/// The reasons at the second look.
fn reasons(settings: Settings, processes: &[ProcessLook]) -> Vec<Reason> {
    let mut policy = Policy::new(settings).unwrap();
    policy.decide(&look(0, processes));
    policy.decide(&look(SECOND, processes)).iter().map(|decision| decision.reason).collect()
}

fn count(reasons: &[Reason], wanted: Reason) -> usize {
    reasons.iter().filter(|reason| **reason == wanted).count()
}

#[test]
fn pages_are_filled_while_that_leaves_room_below_the_limit() {
    let regions = |from: u64| (from..from + 8).map(|n| region(n, 480)).collect::<Vec<_>>();
    let of = |room_mib| reasons(Settings::default(), &[limited(1, regions(1), room_mib)]);
    assert_eq!(count(&of(17), Reason::Full), 8, "an eighth of a MiB each");
    assert_eq!(count(&of(15), Reason::LimitNear), 8);
    let two = [limited(1, regions(1), 17), limited(2, regions(1), 17)];
    let both = reasons(Settings { keep_below_limit_mib: 16, ..Settings::default() }, &two);
    assert_eq!((count(&both, Reason::Full), count(&both, Reason::LimitNear)), (8, 8), "together");
    let settings = Settings { keep_below_limit_mib: 0, ..Settings::default() };
    assert_eq!(count(&reasons(settings, &[limited(1, regions(1), 8)]), Reason::Full), 8);
}

#[test]
fn what_fills_no_pages_is_promoted_as_long_as_the_huge_page_can_be_charged() {
    let of = |room_mib| reasons(Settings::default(), &[limited(1, vec![region(1, 512)], room_mib)]);
    assert_eq!(of(4), [Reason::Full]);
    assert_eq!(of(3), [Reason::LimitNear]);
}

#[test]
fn who_waits_for_memory_in_its_control_group_is_left_alone() {
    let waits = ProcessLook { pressure_percent: 10.0, ..process(1, vec![region(1, 512)]) };
    let all = reasons(Settings::default(), &[waits, process(2, vec![region(1, 512)])]);
    assert_eq!(all, [Reason::Full, Reason::Pressure]);
}

#[test]
fn all_processes_together_take_no_more_processor_time_than_the_budget_says() {
    for promotion_cpu_percent in [1.0, 10.0, 50.0] {
        let settings =
            Settings { promotion_cpu_percent, stall_percent: 100.0, ..Settings::default() };
        let mut policy = Policy::new(settings).unwrap();
        let full = || (1..=300).map(|n| region(n, 512)).collect::<Vec<_>>();
        let processes: Vec<ProcessLook> = (1..=20).map(|pid| process(pid, full())).collect();
        let (mut now, mut used_ns, mut put_off) = (0, 0, 0);
        for _ in 0..60 {
            now += 5 * SECOND;
            for decision in policy.decide(&look(now, &processes)) {
                put_off += u64::from(decision.reason == Reason::CpuBudget);
                if decision.reason == Reason::Full {
                    used_ns += 3 * MS;
                    let done = outcome(decision.address, now, MS, None);
                    policy.learn(&ActionOutcome {
                        cpu_ns: 3 * MS,
                        process: decision.process,
                        ..done
                    });
                }
            }
        }
        let share = used_ns as f64 / (now as f64 * promotion_cpu_percent / 100.0);
        assert!((0.8..=1.1).contains(&share) && put_off > 0, "{promotion_cpu_percent} %: {share}");
    }
}
