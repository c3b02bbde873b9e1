//! The smallest step that a level would have shown.

use fastrand::Rng;

use super::energy::Scanner;
use crate::stats::{Moments, WANTED_POWER, quantile};

/// Sequences for each size of a step: the probability is known to some percent.
const TRIALS: usize = 100;
const HALVINGS: u32 = 7;
const SEED: u64 = 2;

/// The step, in the unit of the values, that is found with a probability of 80 % if `newer` values of a level follow it.
/// Found by trial: the values of the level in random order, with steps. `None` if none is seen, as with few values.
pub fn smallest_step(level: &[f64], newer: usize, alpha: f64) -> Option<f64> {
    let deviation = Moments::from_values(level)
        .ok()
        .map(|moments| moments.deviation())
        .filter(|deviation| *deviation > 0.0)?;
    let is_seen = |step: f64| power(level, newer, step, alpha) >= WANTED_POWER;
    let (mut low, mut high) = (0.0, deviation);
    while !is_seen(high) {
        (low, high) = (high, 2.0 * high);
        if high > 64.0 * deviation {
            return None;
        }
    }
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        *(if is_seen(middle) { &mut high } else { &mut low }) = middle;
    }
    Some(high)
}

/// The share of sequences with such a step whose energy is beyond that of almost all random orders of them.
fn power(level: &[f64], newer: usize, step: f64, alpha: f64) -> f64 {
    let mut random = Rng::with_seed(SEED);
    let mut scanner = Scanner::new(level.len());
    let mut energy =
        |values: &[f64]| scanner.splits(values).map_or(0.0, |splits| splits.whole.energy);
    let (mut stepped, mut null) = (Vec::new(), Vec::new());
    let mut values = level.to_vec();
    for _ in 0..TRIALS {
        values.copy_from_slice(level);
        random.shuffle(&mut values);
        values.iter_mut().rev().take(newer).for_each(|value| *value += step);
        stepped.push(energy(&values));
        for _ in 0..4 {
            random.shuffle(&mut values);
            null.push(energy(&values));
        }
    }
    null.sort_by(f64::total_cmp);
    let critical = quantile(&null, 1.0 - alpha / 2.0).unwrap_or(f64::INFINITY);
    let seen = stepped.iter().filter(|energy| **energy > critical).count();
    seen as f64 / TRIALS as f64
}
