//! Comparisons of runs with known differences.

use std::slice::from_ref;
use std::sync::Arc;

use cowslip_compare::inputs::{Metric, Run};
use cowslip_compare::stats::{Moments, Welch};
use cowslip_compare::{ErrorKind, Options, Unit, Verdict, compare};

/// Runs with a metric that grew by half, one that fell, one of noise, and odd ones.
fn runs(is_bad: bool) -> Vec<Run> {
    let noise = [0.3, -1.2, 0.8, 1.1, -0.4, -0.6];
    let other = [-0.5, 0.9, -1.0, 0.2, 1.3, -0.8];
    let side = f64::from(u8::from(is_bad));
    let run = |index: usize| {
        let noise = if is_bad { other[index] } else { noise[index] };
        let mut run = Run::new("run")
            .with("grew", 100.0 + 50.0 * side + noise)
            .with("fell", 100.0 - 60.0 * side + noise)
            .with("noise", 100.0 + noise)
            .with("constant", 7.0)
            .with("switched", 4.0 + side);
        if !is_bad {
            run = run.with("only good", noise);
        } else if index == 0 {
            run = run.with("only bad", noise);
        }
        let facts = [("thp", if is_bad { "madvise" } else { "always" }), ("kernel", "6")];
        run.facts = Arc::new(facts.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        run
    };
    (0..6).map(run).collect()
}

#[test]
fn what_grew_comes_first_and_all_others_have_their_list() {
    let comparison = compare(&runs(false), &runs(true), &Options::default()).unwrap();
    assert_eq!(comparison.unit, Unit::Run);
    let rows: Vec<_> = comparison.rows.iter().map(|row| (&*row.metric, row.verdict)).collect();
    let (differs, unproven) = (Verdict::Differs, Verdict::Unproven);
    let wanted = [("switched", differs), ("grew", differs), ("noise", unproven), ("fell", differs)];
    assert_eq!(rows, wanted);
    assert_eq!(comparison.constant, ["constant"]);
    assert_eq!(
        (&comparison.only_good[..], &comparison.only_bad[..]),
        (&["only good".to_owned()][..], &["only bad".to_owned()][..])
    );
    let facts: Vec<_> = comparison.facts.iter().map(|fact| &*fact.name).collect();
    assert_eq!(facts, ["thp"]);

    let grew = &comparison.rows[1];
    let welch = grew.welch.unwrap();
    assert!(welch.t < -50.0 && welch.interval.1 < 0.0);
    let (low, high) = grew.change.unwrap().interval.unwrap();
    assert!(low < 0.5 && 0.5 < high && high - low < 0.05, "{low} to {high}");
    let effect = grew.effect.unwrap();
    let (low, high) = effect.interval.unwrap();
    assert!(0.0 < low && low < effect.value && effect.value < high);
    assert_eq!(grew.runs_for_this, Some(2));
    let noise = &comparison.rows[2];
    assert!(noise.detectable.unwrap() > 1.0 && noise.runs_for_this.unwrap() > 6);
    let switched = &comparison.rows[0];
    assert!(switched.welch.is_none() && switched.p == switched.rank.p);

    let swapped = compare(&runs(true), &runs(false), &Options::default()).unwrap();
    assert_eq!(swapped.rows[0].metric, "fell");
}

#[test]
fn as_many_runs_as_advised_have_the_promised_power() {
    let comparison = compare(&runs(false), &runs(true), &Options::default()).unwrap();
    let noise = &comparison.rows[2];
    let spread = |values: &[f64]| {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / 5.0).sqrt()
    };
    let (good, bad) = (spread(&noise.good), spread(&noise.bad));
    let mut random = fastrand::Rng::with_seed(7);
    let mut normal = || {
        let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
        radius * (std::f64::consts::TAU * random.f64()).cos()
    };
    let options = Options { wanted_change: 0.01, ..Options::default() };
    let advised = compare(&runs(false), &runs(true), &options).unwrap().rows[2].runs_for_wanted;
    let runs = advised.unwrap() as usize;
    let trials = 4_000;
    let found = (0..trials).filter(|_| {
        let mut side = |mean: f64, deviation: f64| -> Vec<f64> {
            (0..runs).map(|_| mean + deviation * normal()).collect()
        };
        let good = Moments::from_values(&side(100.0, good)).unwrap();
        let bad = Moments::from_values(&side(100.0 + noise.means.0 / 100.0, bad)).unwrap();
        Welch::new(&good, &bad, 0.05).unwrap().p < 0.05
    });
    let power = found.count() as f64 / f64::from(trials);
    println!("{runs} runs: power {power}");
    assert!((0.78..0.87).contains(&power), "{runs} runs: {power}");
}

#[test]
fn one_run_a_side_is_compared_by_its_samples_with_a_warning() {
    let run = |start: f64| {
        let text: String = (0..50)
            .map(|row| format!("{},{}\n", start + f64::from(row / 10 % 3), row * 7919 % 13))
            .collect();
        cowslip_compare::inputs::parse(&format!("drift,even\n{text}"), "a", None).unwrap().remove(0)
    };
    let (good, bad) = (run(5.0), run(4.0));
    let text = (good.metrics["drift"].samples(), bad.metrics["drift"].samples());
    assert_eq!((text.0.len(), text.1.len()), (50, 50));
    let comparison = compare(from_ref(&good), from_ref(&bad), &Options::default()).unwrap();
    assert_eq!(comparison.unit, Unit::Sample);
    assert!(comparison.notes[0].contains("depend on the ones before"), "{:?}", comparison.notes);
}

#[test]
fn unequal_numbers_of_runs_are_warned_of() {
    let (good, bad) = (runs(false), runs(true));
    let comparison = compare(&good[..3], &bad, &Options::default()).unwrap();
    assert!(comparison.notes.iter().any(|note| note.contains("as many runs on both sides")));
    let comparison = compare(&good, &bad, &Options::default()).unwrap();
    assert!(comparison.notes.is_empty(), "{:?}", comparison.notes);
}

/// Runs with a time that is a tenth more in bad ones, beside many metrics that do not differ.
fn timed(is_bad: bool) -> Vec<Run> {
    let mut random = fastrand::Rng::with_seed(3 + u64::from(is_bad));
    let wall = [1.00, 1.05, 0.95, 1.10, 0.93, 1.02, 0.98, 1.04, 0.96, 1.07];
    let run = |index: usize| {
        let wall = wall[if is_bad { 9 - index } else { index }];
        let run = Run::new("run").with("wall_seconds", wall * if is_bad { 1.06 } else { 1.0 });
        (0..200).fold(run, |run, metric| run.with(&format!("m{metric}"), random.f64()))
    };
    (0..10).map(run).collect()
}

#[test]
fn the_metric_that_it_is_about_does_not_pay_for_the_others() {
    let (good, bad) = (timed(false), timed(true));
    let comparison = compare(&good, &bad, &Options::default()).unwrap();
    assert_eq!(comparison.primary.as_deref(), Some("wall_seconds"));
    let wall = comparison.primary_row().unwrap();
    assert!((0.001..0.05).contains(&wall.p), "{}", wall.p);
    assert_eq!((wall.verdict, wall.adjusted_p), (Verdict::Differs, wall.p));
    // It is not shown as one of many, and the others are unchanged.
    let options = Options { primary: Some("m0".to_owned()), ..Options::default() };
    let other = compare(&good, &bad, &options).unwrap();
    assert_eq!(other.primary.as_deref(), Some("m0"));
    let wall = other.rows.iter().find(|row| row.metric == "wall_seconds").unwrap();
    assert_eq!(wall.verdict, Verdict::Perhaps);
    let options = Options { primary: Some("none".to_owned()), ..Options::default() };
    let error = compare(&good, &bad, &options).unwrap_err();
    assert!(error.kind() == ErrorKind::Usage && error.to_string().contains("none"), "{error}");
}

#[test]
fn what_two_sources_say_of_one_thing_counts_once() {
    let side = |is_bad: bool| -> Vec<Run> {
        let faults = |index: usize| 100.0 + f64::from(u8::from(is_bad)) + (index % 3) as f64;
        let run = |index| {
            let run = Run::new("run").with("process.minor_faults", faults(index));
            run.with("rusage.minor_faults", faults(index))
                .with("process.major_faults", faults(index))
        };
        (0..6).map(run).collect()
    };
    let comparison = compare(&side(false), &side(true), &Options::default()).unwrap();
    let mut names: Vec<_> = comparison.rows.iter().map(|row| &*row.metric).collect();
    names.sort_unstable();
    assert_eq!(names, ["process.major_faults", "rusage.minor_faults"]);
}

#[test]
fn shares_of_a_few_ticks_are_not_compared() {
    let run = |milliseconds: u64, ticks: f64| {
        let text = format!(
            r#"{{"start": {{"schema": "cowslip.recording/1", "created_unix_ns": 1, "facts": {{}}}}}}
{{"metrics": [{{"name": "cpu.idle_share", "kind": "share"}}]}}
{{"sample": {{"at_ns": 0, "values": [0.0]}}}}
{{"sample": {{"at_ns": {}, "values": [{ticks}]}}}}
"#,
            milliseconds * 1_000_000
        );
        cowslip_compare::inputs::parse(&text, "a", None).unwrap().remove(0)
    };
    let side = |milliseconds, ticks: f64| -> Vec<Run> {
        (0..4).map(|index| run(milliseconds, ticks + f64::from(index % 2) / 100.0)).collect()
    };
    let options = Options::default();
    let short = compare(&side(6, 0.0), &side(350, 0.3), &options).unwrap();
    assert_eq!((short.rows.len(), &*short.too_coarse), (0, &["cpu.idle_share".to_owned()][..]));
    let long = compare(&side(300, 0.1), &side(350, 0.3), &options).unwrap();
    assert_eq!((long.rows.len(), long.too_coarse.len()), (1, 0));
}

#[test]
fn metrics_with_few_values_are_named() {
    let side = |shift: f64| -> Vec<Run> {
        let run = |index: u32| {
            let run = Run::new("run").with("many", shift + f64::from(index % 4));
            if index < 3 { run.with("few", shift + f64::from(index)) } else { run }
        };
        (0..8).map(run).collect()
    };
    let notes = compare(&side(0.0), &side(9.0), &Options::default()).unwrap().notes;
    assert!(
        notes.iter().any(|note| note.contains("fewer than 4 values of few on a side")),
        "{notes:?}"
    );
    let notes = compare(&side(0.0)[..3], &side(9.0)[..3], &Options::default()).unwrap().notes;
    assert!(notes.iter().any(|note| note.contains("fewer than 4 values on a side")), "{notes:?}");
}

/// A size in kB and in percent is one metric; two that only differ between the sides are two.
#[test]
fn copies_are_one_test_and_a_difference_makes_none() {
    let mut random = fastrand::Rng::with_seed(5);
    let mut run = |level: f64| {
        let kb = level * (1.0 + 0.05 * random.f64());
        Run::new("a run")
            .with("memory.kb", kb)
            .with("memory.percent", 100.0 - kb / 7.0)
            .with("other", level * (1.0 + 0.05 * random.f64()))
    };
    let good: Vec<Run> = (0..6).map(|_| run(100.0)).collect();
    let bad: Vec<Run> = (0..6).map(|_| run(130.0)).collect();
    let comparison = compare(&good, &bad, &Options::default()).unwrap();
    let find = |name: &str| comparison.rows.iter().find(|row| row.metric == name).unwrap();
    assert_eq!(find("memory.percent").copy_of.as_deref(), Some("memory.kb"));
    assert_eq!((&find("memory.kb").copy_of, &find("other").copy_of), (&None, &None));
    assert_eq!(find("memory.percent").adjusted_p, find("memory.kb").adjusted_p);
}

/// One follows the other, and is a tenth more on one side: of many values a small part of their noise.
#[test]
fn a_small_difference_of_many_values_makes_no_copies() {
    let mut random = fastrand::Rng::with_seed(6);
    let mut side = |more: f64| {
        let loads: Vec<f64> = (0..600).map(|_| 100.0 + 60.0 * random.f64()).collect();
        let follows = loads.iter().map(|load| load * more).collect();
        let (active, segments) = (Metric::levels(loads), Metric::levels(follows));
        let mut run = Run::new("a run");
        run.metrics.extend(
            [("active", active), ("segments", segments)]
                .map(|(name, metric)| (name.to_owned(), metric.unwrap())),
        );
        vec![run]
    };
    let comparison = compare(&side(1.0), &side(1.1), &Options::default()).unwrap();
    let find = |name: &str| comparison.rows.iter().find(|row| row.metric == name).unwrap();
    assert_eq!((find("segments").verdict, &find("segments").copy_of), (Verdict::Differs, &None));
}

/// A moment in which the machine stood still is in both metrics, and nearly all of one.
#[test]
fn one_value_far_from_the_others_makes_no_copies() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut run = |seconds: f64, stall: f64| {
        let mut noise = || 0.01 * random.f64();
        Run::new("a run")
            .with("disk.waits", stall + noise())
            .with("wall_seconds", seconds + stall + noise())
    };
    let stall = |number: usize| if number == 0 { 1.0 } else { 0.0 };
    let good: Vec<Run> = (0..6).map(|_| run(0.5, 0.0)).collect();
    let bad: Vec<Run> = (0..6).map(|number| run(9.0, stall(number))).collect();
    let comparison = compare(&good, &bad, &Options::default()).unwrap();
    let wall = comparison.rows.iter().find(|row| row.metric == "wall_seconds").unwrap();
    assert_eq!((wall.verdict, &wall.copy_of), (Verdict::Differs, &None));
}
