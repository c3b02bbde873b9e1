//! Metrics that do not differ are hardly ever discoveries; those that do differ are found.

use cowslip_compare::stats::{Moments, Welch, adjusted, max_t};
use fastrand::Rng;

const METRICS: usize = 1_000;
const TRIALS: u64 = 200;
const RUNS: usize = 10;
const RATE: f64 = 0.05;

/// A normal variate (Box and Muller 1958).
fn normal(random: &mut Rng) -> f64 {
    let (radius, angle) = (1.0 - random.f64(), random.f64());
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

/// The adjusted p of every metric, the bad side of the first `changed` being `shift` greater.
fn trial(seed: u64, changed: usize, shift: f64) -> Vec<f64> {
    let mut random = Rng::with_seed(seed);
    let mut sample = |shift: f64| {
        let values: Vec<f64> = (0..RUNS).map(|_| normal(&mut random) + shift).collect();
        Moments::from_values(&values).unwrap()
    };
    let p = (0..METRICS).map(|metric| {
        let good = sample(0.0);
        let bad = sample(if metric < changed { shift } else { 0.0 });
        Welch::new(&good, &bad, 0.05).unwrap().p
    });
    adjusted(&p.collect::<Vec<_>>())
}

fn discoveries(adjusted: &[f64]) -> usize {
    adjusted.iter().filter(|p| **p <= RATE).count()
}

/// The expectation is 5 % at most: 10 of 200, with a standard deviation of 3.
#[test]
fn any_discovery_among_a_thousand_null_metrics_in_at_most_six_of_a_hundred_trials() {
    let with = (0..TRIALS).filter(|seed| discoveries(&trial(*seed, 0, 0.0)) > 0).count();
    println!("any discovery in {with} of {TRIALS} trials");
    assert!(with <= 12, "{with}");
    assert!(with > 0, "a test that finds nothing is none");
}

#[test]
fn of_the_discoveries_hardly_any_is_false() {
    let (changed, trials) = (100, 40);
    let (mut found, mut wrong) = (0, 0);
    for seed in 0..trials {
        let adjusted = trial(1_000 + seed, changed, 2.5);
        found += discoveries(&adjusted[..changed]);
        wrong += discoveries(&adjusted[changed..]);
    }
    let share = wrong as f64 / (found + wrong) as f64;
    println!("{found} found, {wrong} of them wrongly");
    assert!(found as f64 > 0.9 * (changed * trials as usize) as f64, "{found}");
    assert!(share < 0.06, "{share}");
}

/// Metrics of 6 + 6 runs with long tails, which move together by what three things do; the bad side of the first is greater.
fn together(seed: u64, metrics: usize, shift: f64) -> Vec<(Vec<f64>, Vec<f64>)> {
    let mut random = Rng::with_seed(seed);
    let things: Vec<[f64; 3]> =
        (0..12).map(|_| std::array::from_fn(|_| normal(&mut random))).collect();
    let mut metric = |at: usize| {
        let shares: [f64; 3] = std::array::from_fn(|_| normal(&mut random) / 2.0);
        let value = |(run, things): (usize, &[f64; 3])| {
            let common: f64 = things.iter().zip(shares).map(|(thing, share)| thing * share).sum();
            let is_shifted = at == 0 && run >= 6;
            (common + normal(&mut random) / 2.0).exp() + if is_shifted { shift } else { 0.0 }
        };
        let values: Vec<f64> = things.iter().enumerate().map(value).collect();
        (values[..6].to_vec(), values[6..].to_vec())
    };
    (0..metrics).map(&mut metric).collect()
}

fn by_max_t(metrics: &[(Vec<f64>, Vec<f64>)]) -> Vec<f64> {
    let sides = metrics.iter().map(|(good, bad)| (&good[..], &bad[..]));
    max_t(&sides.collect::<Vec<_>>()).unwrap()
}

fn welch(good: &[f64], bad: &[f64]) -> Welch {
    let moments = |values: &[f64]| Moments::from_values(values).unwrap();
    Welch::new(&moments(good), &moments(bad), 0.05).unwrap()
}

/// By its definition: every subset of the runs, each metric's t among those that are not larger.
#[test]
fn the_maximum_of_t_is_that_of_all_arrangements() {
    for seed in 0..5 {
        let metrics = together(seed, 6, 1.0);
        let t = |first: u32| -> Vec<f64> {
            let side = |all: &[f64], is_first: bool| -> Vec<f64> {
                let runs = (0..12).filter(|run| (first >> run & 1 == 1) == is_first);
                runs.map(|run| all[run]).collect()
            };
            let of_metric = |(good, bad): &(Vec<f64>, Vec<f64>)| {
                let all = [&good[..], bad].concat();
                welch(&side(&all, true), &side(&all, false)).t.abs()
            };
            metrics.iter().map(of_metric).collect()
        };
        let seen = t(0b11_1111);
        let all: Vec<_> = (0..1 << 12).filter(|set: &u32| set.count_ones() == 6).map(t).collect();
        assert_eq!(all.len(), 924);
        let share = |metric: usize| {
            let rest: Vec<_> = (0..6).filter(|other| seen[*other] <= seen[metric]).collect();
            let is_reached =
                |t: &&Vec<f64>| rest.iter().any(|other| t[*other] >= seen[metric] - 1e-9);
            all.iter().filter(is_reached).count() as f64 / 924.0
        };
        for (metric, p) in by_max_t(&metrics).into_iter().enumerate() {
            let larger = (0..6).filter(|other| seen[*other] >= seen[metric]);
            let wanted = larger.map(share).fold(0.0, f64::max);
            assert!((p - wanted).abs() < 1e-12, "seed {seed}, metric {metric}: {p}, {wanted}");
        }
    }
}

/// The expectation is 5 %: 10 of 200, with a standard deviation of 3.
#[test]
fn few_runs_of_metrics_that_move_together_are_rarely_told_apart_by_chance() {
    let is_alarm = |seed: &u64| discoveries(&by_max_t(&together(*seed, 150, 0.0))) > 0;
    let alarms = (0..TRIALS).filter(is_alarm).count();
    println!("any discovery in {alarms} of {TRIALS} trials");
    assert!((2..=19).contains(&alarms), "{alarms}");
}

/// The case of six collections of sar a side.
#[test]
fn one_metric_of_many_is_found_in_few_runs() {
    let trials = 100;
    let (mut found, mut by_rate) = (0, 0);
    for seed in 0..trials {
        let metrics = together(1_000 + seed, 150, 5.0);
        let p: Vec<f64> = metrics.iter().map(|(good, bad)| welch(good, bad).p).collect();
        found += discoveries(&by_max_t(&metrics)[..1]);
        by_rate += discoveries(&adjusted(&p)[..1]);
    }
    println!("found in {found} of {trials} trials, by the false discovery rate in {by_rate}");
    assert!(found >= by_rate + 10, "{found}, {by_rate}");
}

#[test]
fn too_few_runs_and_uneven_ones_are_not_arranged_anew() {
    let (five, six, seven) = (vec![1.0; 5], vec![1.0; 6], vec![2.0; 7]);
    assert_eq!(max_t(&[(&five, &six)]), None);
    assert_eq!(max_t(&[(&six, &six), (&six, &seven)]), None);
    assert_eq!(max_t(&[(&six, &[f64::NAN; 6])]), None);
    assert_eq!(max_t(&[]), None);
    // Constant on both sides: one of 1,716 arrangements of 6 + 7.
    assert_eq!(max_t(&[(&six, &seven)]), Some(vec![1.0 / 1716.0]));
    // Some arrangements of 20 + 20 runs are drawn.
    assert_eq!(max_t(&[(&[1.0; 20], &[2.0; 20])]), Some(vec![1.0 / 10_000.0]));
}
