//! The division of time, for runs with known parts.

use cowslip_compare::inputs::{Run, parse};
use cowslip_compare::{Entry, FaultKind, PartOfTime, TimePart, TimeSplit};

/// The times of a run in seconds, and its bytes to and from a disk.
#[derive(Clone, Copy)]
struct Took {
    user: f64,
    system: f64,
    processor_wait: f64,
    disk_wait: f64,
    asleep: f64,
    disk_bytes: f64,
    wake_ups: f64,
}

const QUIET: Took = Took {
    user: 0.5,
    system: 0.1,
    processor_wait: 0.0,
    disk_wait: 0.0,
    asleep: 0.1,
    disk_bytes: 0.0,
    wake_ups: 10.0,
};

impl Took {
    fn run(self, factor: f64) -> Run {
        let all = [self.user, self.system, self.processor_wait, self.disk_wait, self.asleep];
        let [user, system, wait, disk, _] = all.map(|seconds| seconds * factor);
        let wall: f64 = all.iter().sum::<f64>() * factor;
        let text = format!(
            r#"{{"start": {{"schema": "cowslip.recording/1", "created_unix_ns": 1, "facts": {{}}}}}}
{{"metrics": [{{"name": "process.schedstat.wait_seconds", "kind": "counter"}}, {{"name": "disk.a.read_wait_seconds", "kind": "counter"}}, {{"name": "process.disk_read_bytes", "kind": "counter"}}]}}
{{"sample": {{"at_ns": 0, "values": [0.0, 0.0, 0.0]}}}}
{{"sample": {{"at_ns": 1000000000, "values": [{wait}, {disk}, {}]}}}}
{{"totals": {{"wall_seconds": {wall}, "rusage.user_seconds": {user}, "rusage.system_seconds": {system}, "rusage.voluntary_switches": {}}}}}
"#,
            self.disk_bytes, self.wake_ups
        );
        parse(&text, "run", None).unwrap().remove(0)
    }

    /// Runs with some noise.
    fn runs(self) -> Vec<Run> {
        [1.0, 0.99, 1.01, 1.005, 0.995].into_iter().map(|factor| self.run(factor)).collect()
    }
}

fn split(good: Took, bad: Took) -> TimeSplit {
    TimeSplit::from_runs(&good.runs(), &bad.runs(), 0.05).unwrap()
}

/// The part that carries most of the added time.
fn most(split: &TimeSplit) -> TimePart {
    let carried = |part: &&PartOfTime| part.carried;
    split.parts.iter().max_by(|a, b| carried(a).total_cmp(&carried(b))).unwrap().part
}

#[test]
fn what_was_added_is_found_and_all_parts_are_all_of_it() {
    for (bad, part) in [
        (Took { user: 1.0, ..QUIET }, TimePart::User),
        (Took { system: 0.6, ..QUIET }, TimePart::System),
        (Took { processor_wait: 0.5, ..QUIET }, TimePart::ProcessorWait),
        (Took { disk_wait: 0.5, disk_bytes: 1e6, ..QUIET }, TimePart::DiskWait),
        (Took { asleep: 0.6, ..QUIET }, TimePart::Asleep),
        // The disk is busy with the writes of others.
        (Took { disk_wait: 0.5, ..QUIET }, TimePart::Asleep),
    ] {
        let split = split(QUIET, bad);
        assert_eq!(most(&split), part);
        let found = split.parts.iter().find(|entry| entry.part == part).unwrap();
        assert!((found.added() - 0.5).abs() < 1e-9 && found.differs(0.05), "{found:?}");
        let added = split.means.1 - split.means.0;
        for sum in [
            split.parts.iter().map(PartOfTime::added).sum::<f64>(),
            split.parts.iter().map(|part| part.carried).sum(),
        ] {
            assert!((sum - added).abs() < 1e-9, "{sum} of {added}");
        }
    }
}

/// A run with looks at its threads: seconds in which all slept, all waited for locks, and threads overlapped; each is
/// of nine tenths of the wall time.
struct Looked {
    wall: f64,
    user: f64,
    asleep: f64,
    locked: f64,
    overlap: f64,
}

impl Looked {
    fn run(&self, factor: f64) -> Run {
        let Self { wall, user, asleep, locked, overlap } = self;
        let seen = [*wall, *asleep, *locked, *overlap].map(|seconds| 0.9 * seconds * factor);
        let [seen, asleep, locked, overlap] = seen;
        let text = format!(
            r#"{{"start": {{"schema": "cowslip.recording/1", "created_unix_ns": 1, "facts": {{}}}}}}
{{"metrics": [{{"name": "process.schedstat.wait_seconds", "kind": "counter"}}, {{"name": "process.seen_seconds", "kind": "counter"}}, {{"name": "process.asleep_seconds", "kind": "counter"}}, {{"name": "process.locked_seconds", "kind": "counter"}}, {{"name": "process.overlap_seconds", "kind": "counter"}}]}}
{{"sample": {{"at_ns": 0, "values": [0, 0, 0, 0, 0]}}}}
{{"sample": {{"at_ns": 1000000000, "values": [0, {seen}, {asleep}, {locked}, {overlap}]}}}}
{{"totals": {{"wall_seconds": {}, "rusage.user_seconds": {}, "rusage.system_seconds": 0.1, "rusage.minor_faults": {}}}}}
"#,
            wall * factor,
            user * factor,
            (1_000.0 * factor).round()
        );
        parse(&text, "run", None).unwrap().remove(0)
    }

    fn runs(&self) -> Vec<Run> {
        [1.0, 0.99, 1.01, 1.005, 0.995].into_iter().map(|factor| self.run(factor)).collect()
    }
}

#[test]
fn the_ledger_adds_up_and_time_of_threads_at_once_is_taken_back() {
    let good = Looked { wall: 1.0, user: 1.7, asleep: 0.0, locked: 0.0, overlap: 0.8 };
    let bad = Looked { wall: 2.0, user: 1.7, asleep: 0.25, locked: 0.05, overlap: 0.15 };
    let split = TimeSplit::from_runs(&good.runs(), &bad.runs(), 0.05).unwrap();
    let added = |part| split.ledger.iter().find(|entry| entry.part == part).unwrap().added;
    for (part, wanted) in [
        (TimePart::User, 0.0),
        (TimePart::System, 0.0),
        (TimePart::ProcessorWait, 0.0),
        (TimePart::LockWait, 0.05),
        (TimePart::Asleep, 0.2),
        (TimePart::Overlap, 0.65),
        (TimePart::Unexplained, 0.1),
    ] {
        assert!((added(part).value - wanted).abs() < 1e-9, "{part:?}: {:?}", added(part));
        if let Some((low, high)) = added(part).interval {
            assert!(low < wanted + 1e-9 && wanted < high + 1e-9, "{part:?}: {low} {high}");
        }
    }
    let sum = |of: &dyn Fn(&Entry) -> f64| split.ledger.iter().map(of).sum::<f64>();
    assert!((sum(&|entry| entry.added.value) - split.wall.added.value).abs() < 1e-9);
    assert!(
        (sum(&|entry| entry.means.0) - 1.0).abs() < 1e-9
            && (sum(&|entry| entry.means.1) - 2.0).abs() < 1e-9
    );
    // Without looks the remainder stays one entry.
    let split = self::split(QUIET, Took { asleep: 0.6, ..QUIET });
    let parts: Vec<TimePart> = split.ledger.iter().map(|entry| entry.part).collect();
    assert_eq!(parts, split.parts.iter().map(|part| part.part).collect::<Vec<_>>());
}

#[test]
fn a_fault_has_a_cost_if_runs_of_one_side_show_it() {
    let run = |faults: f64, each: f64, noise: f64| {
        let run = Run::new("run").with("wall_seconds", 1.0).with("rusage.user_seconds", 0.5);
        let system = 0.1 + faults * each + noise;
        run.with("rusage.system_seconds", system).with("rusage.minor_faults", faults)
    };
    let split = |each: f64, noise: f64| {
        let side = |faults: f64| -> Vec<Run> {
            let run = |index: u32| {
                let odd = if index.is_multiple_of(2) { noise } else { -noise };
                run(faults * (1.0 + 0.05 * f64::from(index / 2)), each, odd)
            };
            (0..10).map(run).collect()
        };
        TimeSplit::from_runs(&side(100_000.0), &side(300_000.0), 0.05).unwrap()
    };
    let faults = split(1e-6, 1e-3).faults;
    assert_eq!((faults.len(), faults[0].kind), (1, FaultKind::Minor));
    assert!((faults[0].added.value - 220_000.0).abs() < 1e-6, "{faults:?}");
    let seconds = faults[0].seconds.unwrap();
    let (low, high) = seconds.interval.unwrap();
    assert!((seconds.value - 0.22).abs() < 0.02 && low < 0.22 && 0.22 < high, "{seconds:?}");
    // Without a cost, or with much else, there are counts only.
    assert!(split(0.0, 1e-3).faults[0].seconds.is_none());
    assert!(split(1e-6, 0.1).faults[0].seconds.is_none());
}

#[test]
fn on_a_busy_machine_the_waiting_belongs_to_what_it_comes_with() {
    let busy = Took { processor_wait: 1.2, ..QUIET };
    // Twice the work waits twice.
    let bad = Took { user: 1.0, system: 0.2, processor_wait: 2.4, ..busy };
    assert_eq!(most(&split(busy, bad)), TimePart::User);
    // A hundred times as many waits for a disk are followed by as many for a processor.
    let bad =
        Took { wake_ups: 1_000.0, disk_wait: 0.3, disk_bytes: 4e6, processor_wait: 8.0, ..busy };
    assert_eq!(most(&split(busy, bad)), TimePart::DiskWait);
    // More neighbours: nothing else is different.
    let bad = Took { processor_wait: 2.4, ..busy };
    assert_eq!(most(&split(busy, bad)), TimePart::ProcessorWait);
}

#[test]
fn little_processor_time_is_not_divided_and_unknown_waiting_is_said_to_be_that() {
    let short = Took { user: 0.004, system: 0.004, asleep: 0.0, ..QUIET };
    let parts = split(short, Took { system: 0.02, ..short }).parts;
    assert_eq!(parts[0].part, TimePart::Running);
    let run = |wall: f64| {
        let run = Run::new("run").with("wall_seconds", wall);
        run.with("rusage.user_seconds", 0.5).with("rusage.system_seconds", 0.0)
    };
    let (good, bad) = ([run(1.0), run(1.1)], [run(2.0), run(2.1)]);
    assert_eq!(most(&TimeSplit::from_runs(&good, &bad, 0.05).unwrap()), TimePart::NotRunning);
    assert!(TimeSplit::from_runs(&good, &[Run::new("other"), run(1.0)], 0.05).is_none());
}
