//! Two modes within one sample, by the distance of two clusters (Engelman and Hartigan 1969).

use std::cmp::Ordering;

use serde::Serialize;

use super::{Moments, median};

/// Fewer values do not show two modes.
const FEWEST: usize = 8;
/// Least share of the values in a mode, and their least number: outliers are no mode.
const LEAST_SHARE: f64 = 0.15;
const LEAST: usize = 3;
/// Samples simulated of each kind.
const DRAWS: usize = 1_000;
/// Values beyond this many tell no more, and take long to simulate.
const MOST: usize = 2_000;

/// Two groups of values further apart than chance parts those of one mode.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Modes {
    /// The medians of the lower and of the upper group.
    pub near: (f64, f64),
    /// The numbers of values in them.
    pub counts: (usize, usize),
    /// The middle between the groups.
    pub between: f64,
    /// The share of samples with one mode that part as far.
    pub p: f64,
}

/// A sample cut in two where the groups are furthest apart.
struct Cut {
    /// The values below the cut.
    below: usize,
    /// Distance of the groups' means, over the greater of their standard deviations.
    distance: f64,
}

impl Modes {
    /// The modes of values in any order, if p is below `alpha`. `None` for fewer than eight values.
    ///
    /// p is the greatest of those among normal, uniform, exponential and lognormal samples (σ = 1), simulated with a
    /// fixed seed: groups of a skewed sample differ in their deviations, and the greater one counts.
    ///
    /// ```
    /// use cowslip_compare::stats::Modes;
    /// let modes = Modes::from_values(&[4.0, 4.1, 4.2, 4.1, 4.0, 9.1, 9.0, 9.2, 4.2, 9.1], 0.05).unwrap();
    /// assert_eq!((modes.counts, modes.near.1), ((6, 4), 9.1));
    /// ```
    pub fn from_values(values: &[f64], alpha: f64) -> Option<Self> {
        if !(FEWEST..=MOST).contains(&values.len())
            || Moments::from_values(values).ok()?.variance == 0.0
        {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let cut = Cut::from_sorted(&sorted)?;
        let p = p(sorted.len(), cut.distance, alpha)?;
        let (low, high) = sorted.split_at(cut.below);
        let near = (median(low.iter().copied())?, median(high.iter().copied())?);
        let between = low[low.len() - 1] + (high[0] - low[low.len() - 1]) / 2.0;
        Some(Self { near, counts: (low.len(), high.len()), between, p })
    }
}

impl Cut {
    fn from_sorted(sorted: &[f64]) -> Option<Self> {
        let count = sorted.len();
        let least = LEAST.max((LEAST_SHARE * count as f64).ceil() as usize);
        let (below, above) = (Spread::each(sorted.iter()), Spread::each(sorted.iter().rev()));
        let cuts = (least..=count.checked_sub(least)?).map(|at| {
            let (low, high) = (&below[at - 1], &above[count - at - 1]);
            let wide = low.deviation().max(high.deviation());
            let apart = high.mean - low.mean;
            let distance = if apart > 0.0 { apart / wide } else { 0.0 };
            Self { below: at, distance }
        });
        cuts.max_by(|a, b| a.distance.partial_cmp(&b.distance).unwrap_or(Ordering::Equal))
    }
}

/// Mean and squares of the first values (Welford 1962).
#[derive(Clone, Copy, Default)]
struct Spread {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Spread {
    fn each<'a>(values: impl Iterator<Item = &'a f64>) -> Vec<Self> {
        let next = |spread: &mut Self, value: &f64| {
            spread.count += 1.0;
            let residual = value - spread.mean;
            spread.mean += residual / spread.count;
            spread.squares += residual * (value - spread.mean);
            Some(*spread)
        };
        values.scan(Self::default(), next).collect()
    }

    fn deviation(&self) -> f64 {
        (self.squares / (self.count - 1.0)).sqrt()
    }
}

/// The greatest share of samples with one mode that can be cut as far apart; `None` once it is `alpha` or more.
fn p(count: usize, distance: f64, alpha: f64) -> Option<f64> {
    let kinds: [fn(&mut fastrand::Rng) -> f64; 4] = [
        |random| normal(random).exp(),
        |random| -(1.0 - random.f64()).ln(),
        |random| random.f64(),
        normal,
    ];
    let mut greatest = 0.0_f64;
    for kind in kinds {
        let mut random = fastrand::Rng::with_seed(1);
        let mut as_far = 1.0;
        for _ in 0..DRAWS {
            let mut sample: Vec<f64> = (0..count).map(|_| kind(&mut random)).collect();
            sample.sort_by(f64::total_cmp);
            if Cut::from_sorted(&sample).is_some_and(|cut| cut.distance >= distance) {
                as_far += 1.0;
            }
            let p = as_far / (1 + DRAWS) as f64;
            if p >= alpha {
                return None;
            }
            greatest = greatest.max(p);
        }
    }
    Some(greatest)
}

/// A normal value (Box and Muller 1958).
fn normal(random: &mut fastrand::Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.f64()).cos()
}
