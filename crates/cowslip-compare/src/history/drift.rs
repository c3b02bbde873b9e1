//! Slow changes: many steps, each below the change that matters.

use serde::Serialize;

use super::group::Level;
use super::settings::Settings;
use crate::stats::two_sided_p;

/// The newest entries that a drift is sought in. One that ended before is the level of today.
const WINDOW: usize = 120;
/// Fewer entries show no line.
const FEWEST: usize = 20;

/// A slow change in the newest entries.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Drift {
    /// The index of the first entry of it; it goes on to the newest.
    pub from: usize,
    /// The probability of a line as steep, or of a last level as far from the first, without a drift.
    pub p: f64,
    /// The values at its start and at the newest entry.
    pub means: (f64, f64),
    /// The second over the first, less one.
    pub change: f64,
}

impl Drift {
    /// The drift of values with these levels: a line that fits them better than the levels do, or levels that matter
    /// only together.
    pub(super) fn find(values: &[f64], levels: &[Level], settings: &Settings) -> Option<Self> {
        let from = values.len().saturating_sub(WINDOW);
        let matters =
            |drift: &Self| drift.p <= settings.alpha && drift.change.abs() >= settings.effect;
        let line = Line::fit(&values[from..])
            .filter(|line| line.fits_better(&values[from..], from, levels));
        let line = line.map(|line| line.drift(from)).filter(matters);
        line.or_else(|| staircase(values, from, levels, settings).filter(matters))
    }
}

/// The levels behind the last step that matters alone, if three or more go the same way.
fn staircase(values: &[f64], from: usize, levels: &[Level], settings: &Settings) -> Option<Drift> {
    let relative = |old: &Level, new: &Level| (new.mean - old.mean) / old.mean.abs();
    let big = levels.windows(2).rposition(|two| {
        relative(&two[0], &two[1]).abs() >= settings.effect || two[1].from <= from
    });
    let all = &levels[big.map_or(0, |place| place + 1)..];
    let goes_one_way = |grows: bool| all.windows(2).all(|two| (two[1].mean > two[0].mean) == grows);
    let [first, _, .., last] = all else { return None };
    if !(goes_one_way(true) || goes_one_way(false)) {
        return None;
    }
    let test =
        crate::stats::RankTest::new(&values[first.from..first.to], &values[last.from..last.to])
            .ok()?;
    let means = (first.mean, last.mean);
    Some(Drift { from: first.from, p: test.p, means, change: relative(first, last) })
}

/// A straight line through values, by least squares.
struct Line {
    count: f64,
    start: f64,
    slope: f64,
    /// The sum of the squares of its errors.
    missed: f64,
    /// The sum of the squares of the places' distances from their middle.
    spread: f64,
}

impl Line {
    fn fit(values: &[f64]) -> Option<Self> {
        let count = values.len() as f64;
        let middle = (count - 1.0) / 2.0;
        let mean = values.iter().sum::<f64>() / count;
        let places =
            || values.iter().enumerate().map(|(at, value)| (at as f64 - middle, value - mean));
        let spread: f64 = places().map(|(at, _)| at * at).sum();
        let slope = places().map(|(at, value)| at * value).sum::<f64>() / spread;
        let missed = places().map(|(at, value)| (value - slope * at).powi(2)).sum();
        let line = Self { count, start: mean - slope * middle, slope, missed, spread };
        (values.len() >= FEWEST && line.missed > 0.0 && line.start != 0.0).then_some(line)
    }

    /// Compares it with the levels by the Bayesian information criterion (Schwarz 1978).
    fn fits_better(&self, values: &[f64], from: usize, levels: &[Level]) -> bool {
        let (mut missed, mut parts) = (0.0, 0.0);
        for level in levels.iter().filter(|level| level.to > from) {
            let part = &values[level.from.max(from) - from..level.to - from];
            let mean = part.iter().sum::<f64>() / part.len() as f64;
            missed += part.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
            parts += 1.0;
        }
        let criterion = |missed: f64, parameters: f64| {
            self.count * (missed / self.count).ln() + parameters * self.count.ln()
        };
        // A level has a value, and each but the first a place.
        missed > 0.0 && criterion(self.missed, 2.0) < criterion(missed, 2.0 * parts - 1.0)
    }

    fn drift(&self, from: usize) -> Drift {
        let degrees = self.count - 2.0;
        let error = (self.missed / degrees / self.spread).sqrt();
        let end = self.start + self.slope * (self.count - 1.0);
        let change = (end - self.start) / self.start.abs();
        Drift {
            from,
            p: two_sided_p(self.slope / error, degrees),
            means: (self.start, end),
            change,
        }
    }
}
