//! The division of time, for runs with known parts.

use cowslip_compare::inputs::{Run, parse};
use cowslip_compare::{PartOfTime, TimePart, TimeSplit};

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
    TimeSplit::of(&good.runs(), &bad.runs(), 0.05).unwrap()
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
        let found = split.parts.iter().find(|it| it.part == part).unwrap();
        assert!((found.added() - 0.5).abs() < 1e-9 && found.differs(0.05), "{found:?}");
        let added = split.means.1 - split.means.0;
        for sum in [
            split.parts.iter().map(PartOfTime::added).sum::<f64>(),
            split.parts.iter().map(|it| it.carried).sum(),
        ] {
            assert!((sum - added).abs() < 1e-9, "{sum} of {added}");
        }
    }
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
    assert_eq!(most(&TimeSplit::of(&good, &bad, 0.05).unwrap()), TimePart::NotRunning);
    assert!(TimeSplit::of(&good, &[Run::new("other"), run(1.0)], 0.05).is_none());
}
