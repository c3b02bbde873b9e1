//! Counters and system calls that explain a difference, at the prices of the machine.

use cowslip_compare::calls::{CallDifference, Called, CalledRun};
use cowslip_compare::inputs::Run;
use cowslip_compare::{Cause, Certainty, Options, Prices, TimePart, TimeSplit, compare};

/// A good and a bad side with this system time and these minor faults.
fn sides(system: [f64; 2], faults: [f64; 2], prices: Option<Prices>) -> [Vec<Run>; 2] {
    [0, 1].map(|side| {
        let run = |index: u32| {
            let system = system[side] + f64::from(index * 7 % 5) / 1e3;
            let run = Run::new("a run")
                .with("wall_seconds", 0.5 + system)
                .with("rusage.user_seconds", 0.5)
                .with("rusage.system_seconds", system)
                .with("rusage.minor_faults", faults[side]);
            Run { prices, ..run }
        };
        (0..6).map(run).collect()
    })
}

fn causes([good, bad]: &[Vec<Run>; 2], calls: Option<&CallDifference>) -> Vec<Cause> {
    let comparison = compare(good, bad, &Options::default()).unwrap();
    let split = TimeSplit::from_runs(good, bad, 0.05).unwrap();
    Cause::find(&comparison, &split, calls, 0.05)
}

#[test]
fn a_fault_costs_what_it_costs_on_the_machine() {
    let causes_with =
        |prices| causes(&sides([0.1, 0.226], [12_900.0, 36_600.0], prices), None).remove(0);
    let usual = causes_with(None);
    assert_eq!((&*usual.counter, usual.certainty), ("rusage.minor_faults", Certainty::Little));
    assert!((usual.seconds - 0.0119).abs() < 1e-3, "{usual:?}");
    let dear = causes_with(Some(Prices { fault: 5e-6, ..Prices::USUAL }));
    assert_eq!((&*dear.counter, dear.certainty), ("rusage.minor_faults", Certainty::Certain));
    assert!(dear.share > 0.9 && dear.share <= 1.0, "{dear:?}");
}

#[test]
fn the_ledger_has_the_price_of_a_fault_unless_runs_show_one() {
    let prices = Some(Prices { fault: 2e-6, ..Prices::USUAL });
    let [good, bad] = sides([0.1, 0.2], [1e3, 5e4], prices);
    let split = TimeSplit::from_runs(&good, &bad, 0.05).unwrap();
    let seconds = split.faults[0].seconds.unwrap().value;
    assert!((seconds - 0.098).abs() < 1e-9, "{seconds}");
}

#[test]
fn a_call_explains_system_time_by_its_processor_time_and_waits_only_where_it_is_a_wait() {
    let run = |stats: f64, waited: f64| {
        let stat = Called { count: stats, elapsed: stats * 0.5e-6, processor: stats * 0.5e-6 };
        let wait4 = Called { count: 1.0, elapsed: waited, processor: 0.0 };
        CalledRun { calls: [("newfstatat".into(), stat), ("wait4".into(), wait4)].into() }
    };
    let good = [run(2e3, 0.6), run(2e3, 0.6)];
    let bad = [run(4e5, 0.8), run(4e5, 0.8)];
    let calls = CallDifference::new(&good, &bad, 0.05).unwrap();
    let names: Vec<&str> = calls.calls.iter().map(|row| &*row.name).collect();
    assert_eq!(names, ["newfstatat"]);
    let sides = sides([0.1, 0.3], [1e3, 2e3], None);
    let found = causes(&sides, Some(&calls));
    assert_eq!((&*found[0].counter, found[0].means), ("calls.newfstatat", (2e3, 4e5)));
    assert_eq!((found[0].part, found[0].certainty), (TimePart::System, Certainty::Certain));
    assert_eq!(causes(&sides, None)[0].certainty, Certainty::Little);
}
