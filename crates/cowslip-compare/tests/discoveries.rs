//! Metrics that do not differ are hardly ever discoveries; those that do differ are found.

use cowslip_compare::stats::{Moments, Welch, adjusted};
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
