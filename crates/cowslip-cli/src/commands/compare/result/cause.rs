//! The sentence that a comparison begins with: by how much, where the time went, and which counter explains it.

use cowslip_compare::inputs::WALL;
use cowslip_compare::{Cause, Comparison, Row, TimeSplit, Verdict, costly, is_consequence};

use super::explanation::explanation;
use super::format;
use super::words::{MOST, change, listed, name};

/// The first line names no more of those that are not certain.
const LIKELIEST: usize = 3;

/// A ratio of means beyond this one is not a larger change.
const LARGEST_RATIO: f64 = 1000.0;

/// A |t| beyond this one is not surer.
const SUREST: f64 = 50.0;

/// Describes the change of the primary metric and its cause; without one, the rise and the fall of the largest weight. A
/// change by less than `effect` (a part of the good mean) does not matter.
pub(super) fn sentence(
    comparison: &Comparison,
    split: Option<&TimeSplit>,
    causes: &[Cause],
    alpha: f64,
    effect: f64,
) -> String {
    let Some(primary) = &comparison.primary else {
        return without_primary(comparison, effect);
    };
    let Some(row) = comparison.primary_row() else {
        let rest = beside(comparison, split, effect);
        return format!("{} is the same in all runs; {rest}", name(primary));
    };
    let outcome = outcome(row, alpha);
    if row.verdict == Verdict::Unproven {
        return format!("{outcome}; {}", beside(comparison, split, effect));
    }
    match split.filter(|_| row.metric == WALL) {
        Some(split) if row.matters(effect) => {
            format!("{outcome}; {}", explanation(split, causes, alpha))
        }
        _ => format!("{outcome}; {}", beside(comparison, split, effect)),
    }
}

/// Describes the size of the change, both values, and the certainty.
fn outcome(row: &Row, alpha: f64) -> String {
    let (good, bad) = row.means;
    let values = [good, bad].map(|value| format::value(&row.metric, value));
    let mut sure = format!("{} to {}", values[0], values[1]);
    if let Some((low, high)) = row.change.and_then(|change| change.interval) {
        let level = format::level(alpha);
        let [low, high] = [low, high].map(format::percent);
        sure += &format!(", {level} % interval {low} to {high}");
    }
    sure += &format!(", p {}", format::p(row.p));
    let name = name(&row.metric);
    let verb = if bad > good { "rose" } else { "fell" };
    match row.change.map(|change| format::percent(change.value)) {
        _ if row.verdict == Verdict::Unproven => format!("{name} is not shown to differ ({sure})"),
        Some(by) => format!("{name} {verb} by {} ({sure})", by.trim_start_matches(['+', '-'])),
        None => format!("{name} {verb} ({sure})"),
    }
}

/// Other differences that are known to cost time, or are not known to be consequences of something else.
fn beside(comparison: &Comparison, split: Option<&TimeSplit>, effect: f64) -> String {
    let mut rows = match split {
        Some(split) => costly(comparison, split, effect),
        None => Vec::new(),
    };
    if rows.is_empty() {
        rows = largest(comparison, effect, |row| !is_consequence(row));
    }
    if rows.is_empty() {
        return match comparison.rows.iter().any(|row| is_difference(comparison, row)) {
            true => "no other difference is known to matter".to_owned(),
            false => format!("nothing else is shown to differ{}", likeliest(comparison, effect)),
        };
    }
    let changes: Vec<String> = rows.into_iter().take(MOST).map(change).collect();
    format!("what else differs: {}", listed(&changes))
}

fn without_primary(comparison: &Comparison, effect: f64) -> String {
    let mut rows = largest(comparison, effect, |row| !is_consequence(row));
    if rows.is_empty() {
        // A file of a machine has nothing but those.
        rows = largest(comparison, effect, |_| true);
    }
    let by = format::percent(effect);
    let by = by.trim_start_matches('+');
    match comparison.differs() {
        false => format!("nothing is shown to differ{}", likeliest(comparison, effect)),
        true if rows.is_empty() => {
            format!("nothing differs by more than {by} that is known to matter")
        }
        true => {
            let changes: Vec<String> = rows.into_iter().map(change).collect();
            format!("what differs most: {}", changes.join("; "))
        }
    }
}

/// The metrics that would differ if each was the only one, the surest first.
fn likeliest(comparison: &Comparison, effect: f64) -> String {
    let is_likely = |row: &&Row| {
        row.verdict == Verdict::Perhaps
            && row.copy_of.is_none()
            && row.matters(effect)
            && !is_consequence(row)
    };
    let mut rows: Vec<&Row> = comparison.rows.iter().filter(is_likely).collect();
    rows.sort_by(|one, other| one.p.total_cmp(&other.p));
    let changes: Vec<String> = rows
        .into_iter()
        .take(LIKELIEST)
        .map(|row| format!("{} (p {})", change(row), format::p(row.p)))
        .collect();
    match changes.is_empty() {
        true => String::new(),
        false => format!(" for certain; likeliest: {}", changes.join("; ")),
    }
}

fn is_difference(comparison: &Comparison, row: &Row) -> bool {
    row.verdict == Verdict::Differs && Some(&row.metric) != comparison.primary.as_ref()
}

/// The wanted metrics with the rise and the fall of the largest weight, the larger weight first.
fn largest(comparison: &Comparison, effect: f64, is_wanted: fn(&Row) -> bool) -> Vec<&Row> {
    let matters =
        |row: &&Row| is_difference(comparison, row) && row.matters(effect) && is_wanted(row);
    let of = |is_rise: bool| {
        let rows = comparison.rows.iter().filter(matters);
        let rows = rows.filter(|row| (row.means.1 > row.means.0) == is_rise);
        rows.max_by(|a, b| weight(a).total_cmp(&weight(b)))
    };
    let mut rows: Vec<&Row> = [true, false].into_iter().filter_map(of).collect();
    rows.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    rows
}

/// The change times its certainty: the logarithm of the means' ratio by |t|. By the ratio alone a rare event, such as one
/// interrupt in half of the runs, would lead: from or to zero it is infinite.
fn weight(row: &Row) -> f64 {
    let (good, bad) = row.means;
    let [less, more] = if good.abs() < bad.abs() { [good, bad] } else { [bad, good] };
    let ratio = if less * more > 0.0 { more / less } else { LARGEST_RATIO };
    ratio.min(LARGEST_RATIO).ln() * row.t_or_sign().abs().min(SUREST)
}

#[cfg(test)]
mod tests {
    use cowslip_compare::inputs::{Run, parse};
    use cowslip_compare::{Options, compare};

    use super::*;

    fn compared(good: &[Run], bad: &[Run]) -> String {
        let comparison = compare(good, bad, &Options::default()).unwrap();
        let split = TimeSplit::from_runs(good, bad, 0.05);
        let causes = split.as_ref().map(|split| Cause::find(&comparison, split, None, 0.05));
        sentence(&comparison, split.as_ref(), &causes.unwrap_or_default(), 0.05, 0.05)
    }

    fn sentence_for(metrics: &[(&str, [f64; 2])]) -> String {
        let runs = |side: usize| -> Vec<Run> {
            let run = |index: u32| {
                metrics.iter().fold(Run::new("run"), |run, (name, means)| {
                    let mean = means[side];
                    run.with(name, mean * (1.0 + f64::from(index * 7 % 5) / 1000.0))
                })
            };
            (0..8).map(run).collect()
        };
        compared(&runs(0), &runs(1))
    }

    /// Runs of a command with all its time in these parts.
    fn of_command(user: [f64; 2], system: [f64; 2], more: &[(&str, [f64; 2])]) -> String {
        let mut all = vec![
            ("wall_seconds", [0, 1].map(|side| user[side] + system[side])),
            ("rusage.user_seconds", user),
            ("rusage.system_seconds", system),
        ];
        all.extend(more);
        sentence_for(&all)
    }

    #[test]
    fn the_time_comes_first_then_where_it_went_and_then_the_counter_that_explains_it() {
        let sentence = of_command(
            [0.9, 0.9],
            [0.1, 0.6],
            &[
                ("rusage.minor_faults", [1_000.0, 1_000_000.0]),
                ("vmstat.thp_fault_alloc", [80.0, 0.0]),
                ("vmstat.numa_local", [10.0, 100_000.0]),
                ("rusage.voluntary_switches", [1.0, 2.0]),
            ],
        );
        let wanted =
            "wall time rose by 50.0 % (1.00 s to 1.50 s, 95 % interval +49.7 % to +50.3 %, p ";
        assert!(sentence.starts_with(wanted), "{sentence}");
        let wanted = "; the time went to system time (+501 ms); as minor faults rose from 1.00k to 1.00M and \
            thp_fault_alloc fell to 0 (from 80.2)";
        assert!(sentence.ends_with(wanted), "{sentence}");
        // The other way round it is faster.
        let sentence =
            of_command([0.9, 0.9], [0.6, 0.1], &[("rusage.minor_faults", [1_000_000.0, 1_000.0])]);
        assert!(sentence.starts_with("wall time fell by 33.3 % ("), "{sentence}");
        let wanted =
            "; the time was saved in system time (-501 ms); as minor faults fell by 99.9 %";
        assert!(sentence.ends_with(wanted), "{sentence}");
    }

    #[test]
    fn a_counter_that_cannot_have_taken_the_time_does_not_explain_it() {
        let few = [("rusage.minor_faults", [1_000.0, 3_000.0]), ("vmstat.pgfree", [1.0, 9.0])];
        let sentence = of_command([0.9, 1.8], [0.1, 0.1], &few);
        let wanted = "the time went to user time (+902 ms); minor faults rose by 200 %, which is about 501 µs of it: the \
            program itself computes more";
        assert!(sentence.ends_with(wanted), "{sentence}");
        let sentence = of_command([0.9, 0.9], [0.1, 0.6], &few);
        assert!(
            sentence.ends_with("; minor faults rose by 200 %, which is about 1.00 ms of it"),
            "{sentence}"
        );
        let sentence = of_command([0.9, 1.8], [0.1, 0.1], &few[1..]);
        let wanted = "no counter of the kernel explains it: the program itself computes more";
        assert!(sentence.ends_with(wanted), "{sentence}");
    }

    #[test]
    fn threads_that_wait_for_a_lock_spend_system_time_by_their_waits() {
        let waits = [("rusage.voluntary_switches", [7.0, 15_800.0])];
        let sentence = of_command([1.0, 1.0], [0.1, 0.7], &waits);
        let wanted =
            "the time went to system time (+601 ms); as voluntary switches rose from 7.01 to 15.8k";
        assert!(sentence.ends_with(wanted), "{sentence}");
        // 158 ms of two seconds are not the cause.
        let sentence = of_command([1.0, 1.0], [0.1, 2.1], &waits);
        let wanted = "; voluntary switches rose from 7.01 to 15.8k, which is about 158 ms of it";
        assert!(sentence.ends_with(wanted), "{sentence}");
    }

    /// Recordings of a command, by its wall time, its user time and its other metrics, which have a kind.
    fn of_recordings(wall: [f64; 2], user: [f64; 2], more: &[(&str, &str, [f64; 2])]) -> String {
        let runs = |side: usize| -> Vec<Run> {
            let run = |index: u32| {
                let longer = f64::from(index * 7 % 5) / 1000.0;
                let (wall, user) = (wall[side] + longer, user[side]);
                let names: Vec<String> = more
                    .iter()
                    .map(|(name, kind, _)| format!(r#"{{"name": "{name}", "kind": "{kind}"}}"#))
                    .collect();
                let values: Vec<String> = more
                    .iter()
                    .map(|(_, _, both)| (both[side] * (1.0 + longer)).to_string())
                    .collect();
                let text = format!(
                    r#"{{"start": {{"schema": "cowslip.recording/1", "created_unix_ns": 1, "facts": {{}}}}}}
{{"metrics": [{}]}}
{{"sample": {{"at_ns": 0, "values": [{}]}}}}
{{"sample": {{"at_ns": {}, "values": [{}]}}}}
{{"totals": {{"wall_seconds": {wall}, "rusage.user_seconds": {user}, "rusage.system_seconds": 0.01}}}}
"#,
                    names.join(","),
                    vec!["0.0"; more.len()].join(","),
                    (wall * 1e9) as u64,
                    values.join(",")
                );
                parse(&text, "run", None).unwrap().remove(0)
            };
            (0..8).map(run).collect()
        };
        compared(&runs(0), &runs(1))
    }

    const WAIT: &str = "process.schedstat.wait_seconds";

    #[test]
    fn waiting_comes_first_where_running_more_does_not_explain_it() {
        let of = |waited: f64| {
            of_recordings([0.3, 0.9], [0.6, 0.95], &[(WAIT, "counter", [0.001, waited])])
        };
        assert!(of(0.9).contains("; the time went to waiting for a processor (+"), "{}", of(0.9));
        assert!(of(0.4).contains("; the time went to user time (+"), "{}", of(0.4));
    }

    #[test]
    fn waits_for_locks_explain_fewer_threads_at_once_unless_they_only_last_as_long_as_the_run() {
        let of = |overlap: [f64; 2], locks: [f64; 2]| {
            let seen = ("process.seen_seconds", "counter", [0.3, 0.6]);
            let asleep = (
                "process.asleep_seconds",
                "counter",
                [0.0, if overlap[0] > 0.0 { 0.0 } else { 0.3 }],
            );
            let overlap = ("process.overlap_seconds", "counter", overlap);
            let locks = ("process.lock_wait_seconds", "counter", locks);
            let wait = (WAIT, "counter", [0.001, 0.001]);
            let user = if overlap.2[0] > 0.0 { [0.58, 0.58] } else { [0.29, 0.29] };
            of_recordings([0.3, 0.6], user, &[seen, asleep, overlap, locks, wait])
        };
        let sentence = of([0.3, 0.001], [0.01, 0.6]);
        assert!(sentence.contains("; the time went to fewer threads at once (+"), "{sentence}");
        assert!(
            sentence.contains("; as the command's lock wait time rose by 5900 %"),
            "{sentence}"
        );
        // Two idle workers beside a program that sleeps longer.
        let sentence = of([0.0, 0.0], [0.6, 1.2]);
        assert!(sentence.contains("; the time went to being asleep (+"), "{sentence}");
        assert!(!sentence.contains("lock wait"), "{sentence}");
    }

    #[test]
    fn waiting_for_a_processor_has_its_reason_in_other_processes_or_in_a_limit() {
        let of = |others: [f64; 2], throttled: [f64; 2]| {
            let wait = (WAIT, "counter", [0.001, 0.301]);
            let others = ("others.cpu_share", "share", others);
            let throttled = ("process.throttled_seconds", "counter", throttled);
            let switches = ("rusage.involuntary_switches", "counter", [2.0, 90.0]);
            of_recordings([0.3, 0.6], [0.28, 0.28], &[wait, others, throttled, switches])
        };
        // Seconds of other processes, in runs of 0.3 and 0.6 s.
        let sentence = of([0.03, 0.36], [0.0, 0.0]);
        assert!(sentence.contains("; the time went to waiting for a processor (+"), "{sentence}");
        assert!(
            sentence.ends_with("; as other processes' cpu time rose from 9.95 % to 59.92 %"),
            "{sentence}"
        );
        let sentence = of([0.03, 0.06], [0.0, 0.3]);
        assert!(
            sentence.contains("; as the command's throttled time a second rose from 0 to 0.499"),
            "{sentence}"
        );
        // The command's own threads, unless there is a reason why they run.
        let threads = |faults: f64| {
            let wait = (WAIT, "counter", [0.001, 0.601]);
            let overlap = ("process.overlap_seconds", "counter", [0.001, 1.2]);
            let faults = ("rusage.minor_faults", "counter", [1_000.0, faults]);
            of_recordings([0.3, 0.6], [0.29, 0.79], &[wait, overlap, faults])
        };
        let sentence = threads(1_000.0);
        let wanted = "; as the command's time of threads beside each other";
        assert!(sentence.contains(wanted), "{sentence}");
        let sentence = threads(1_000_000.0);
        assert!(sentence.contains("; as minor faults rose from"), "{sentence}");
        // Others use the processors that a command leaves.
        let wait = (WAIT, "counter", [0.001, 0.301]);
        let others = ("others.cpu_share", "share", [0.03, 0.36]);
        let mask = ("process.forbidden_processors", "gauge", [0.0, 1.0]);
        let sentence = of_recordings([0.3, 0.6], [0.28, 0.28], &[wait, others, mask]);
        let wanted = "; as the command's forbidden processors rose from 0 to ";
        assert!(sentence.contains(wanted), "{sentence}");
        // They use the processors as before, and the run takes longer.
        let sentence = of([0.03, 0.06], [0.0, 0.0]);
        assert!(sentence.contains("; as involuntary switches rose by 4400 %"), "{sentence}");
    }

    #[test]
    fn processor_time_of_a_few_ticks_is_not_divided() {
        let sentence = of_command([0.001, 0.001], [0.001, 0.002], &[]);
        assert!(sentence.contains("the time went to processor time (+1.00 ms); no"), "{sentence}");
    }

    #[test]
    fn where_the_time_is_the_same_what_else_differs_is_what_would_cost_some() {
        let more = [
            ("rusage.minor_faults", [10_000.0, 100_000.0]),
            ("process.read_calls", [1.0, 3.0]),
            ("vmstat.numa_local", [10.0, 100_000.0]),
            ("loadavg.one_minute", [1.0, 1.2]),
        ];
        let sentence = of_command([0.9, 0.9], [0.1, 0.1], &more);
        assert!(
            sentence.starts_with("wall time is not shown to differ (1.00 s to 1.00 s"),
            "{sentence}"
        );
        assert!(
            sentence.ends_with("; what else differs: minor faults rose by 900 %"),
            "{sentence}"
        );
        let sentence = of_command([0.9, 0.9], [0.1, 0.1], &more[2..]);
        assert!(sentence.ends_with("no other difference is known to matter"), "{sentence}");
        let sentence = of_command([0.9, 0.9], [0.1, 0.1], &[]);
        assert!(sentence.ends_with("; nothing else is shown to differ"), "{sentence}");
    }

    #[test]
    fn without_a_time_it_is_what_rose_and_fell_by_most_and_surest() {
        let all = [
            ("latency", [1.0, 1.5]),
            ("errors", [0.0, 1.0]),
            ("requests", [10.0, 5.0]),
            ("vmstat.numa_local", [10.0, 100_000.0]),
            ("loadavg.one_minute", [1.0, 1.02]),
        ];
        let wanted = "what differs most: errors rose from 0 to 1.00; requests fell by 50.0 %";
        assert_eq!(sentence_for(&all), wanted);
        assert_eq!(
            sentence_for(&all[4..]),
            "nothing differs by more than 5.00 % that is known to matter"
        );
        assert_eq!(sentence_for(&[("a", [1.0, 1.0])]), "nothing is shown to differ");
    }
}
