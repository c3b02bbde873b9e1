//! Decides whether a counter is compared by its count in a run, or in a second.
//!
//! A program that does the same work counts the same, however long it takes; a program that serves, or idles, counts
//! the more the longer it is watched. The first has rates that a longer run dilutes, the second counts that a longer
//! run swells: either differs where nothing but the time does. The choice is made from runs of the same side, some of
//! which took longer than others.

use serde::Serialize;

use crate::inputs::{Growth, Run};
use crate::stats::two_sided_quantile;

/// The meaning of a metric's values.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// The value that was read: a level, a share, a value of the run as a whole.
    Value,
    /// A counter's count in the run.
    Count,
    /// A counter's count in a second.
    Rate,
}

/// The way that counters were compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Counters {
    /// The default for counters with inconclusive runs.
    pub by_default: Measure,
    /// The number of counters compared by their counts in a run.
    pub counts: usize,
    /// The number of counters compared by their counts in a second.
    pub rates: usize,
}

/// The level at which the slope must be on one side of a half.
const SURE: f64 = 0.01;
/// Runs with a smaller difference of their lengths were ended by the clock.
const EQUALLY_LONG: f64 = 1.01;

impl Measure {
    /// The default for counters with inconclusive runs: counts if each run is a command that ended by itself, and they
    /// did not all end after the same time.
    pub(super) fn by_default(good: &[Run], bad: &[Run]) -> Self {
        let runs = || good.iter().chain(bad);
        let (shortest, longest) = runs()
            .filter_map(length)
            .fold((f64::INFINITY, 0.0_f64), |(low, high), time| (low.min(time), high.max(time)));
        let is_work = runs().all(|run| run.ended_by_itself) && longest > EQUALLY_LONG * shortest;
        if is_work { Self::Count } else { Self::Rate }
    }
}

/// The longest time of any counter.
fn length(run: &Run) -> Option<f64> {
    let times = run.metrics.values().filter_map(|metric| Some(metric.growth()?.seconds));
    times.max_by(f64::total_cmp)
}

/// Fits the counts of runs of the same side to their times, both relative to that side's means: with a slope of zero
/// they do not change, with a slope of one they grow with the time. `None` if the slope may be below and above a half.
pub(super) fn seen(sides: [&[Growth]; 2]) -> Option<Measure> {
    let (mut times, mut both, mut counts, mut values, mut means) = (0.0, 0.0, 0.0, 0.0, 1.0);
    for side in sides {
        let n = side.len() as f64;
        let mean_seconds = side.iter().map(|growth| growth.seconds).sum::<f64>() / n;
        let mean_count = side.iter().map(|growth| growth.count).sum::<f64>() / n;
        if mean_count > 0.0 {
            for growth in side {
                let (time, count) =
                    (growth.seconds / mean_seconds - 1.0, growth.count / mean_count - 1.0);
                times += time * time;
                both += time * count;
                counts += count * count;
            }
            values += n;
            means += 1.0;
        }
    }
    let degrees = values - means;
    if degrees < 1.0 {
        return None;
    }
    let slope = both / times;
    let residual = (counts - slope * both).max(0.0);
    let margin = two_sided_quantile(SURE, degrees) * (residual / degrees / times).sqrt();
    match slope {
        slope if slope + margin < 0.5 => Some(Measure::Count),
        slope if slope - margin > 0.5 => Some(Measure::Rate),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn growths(runs: &[(f64, f64)]) -> Vec<Growth> {
        runs.iter().map(|&(seconds, count)| Growth { count, seconds }).collect()
    }

    #[test]
    fn work_does_not_change_with_the_time_and_service_does() {
        let bad = growths(&[(3.0, 900.0), (3.1, 901.0), (3.3, 899.0), (2.9, 900.0)]);
        let good = growths(&[(1.0, 300.0), (1.1, 301.0), (1.2, 299.0), (0.9, 300.0)]);
        assert_eq!(seen([&good, &bad]), Some(Measure::Count), "whatever differs between the sides");
        let served = growths(&[(1.0, 300.0), (1.1, 331.0), (1.2, 359.0), (0.9, 270.0)]);
        assert_eq!(seen([&served, &served]), Some(Measure::Rate));
        let noise = growths(&[(1.0, 300.0), (1.1, 200.0), (1.2, 400.0), (0.9, 320.0)]);
        assert_eq!(seen([&noise, &noise]), None);
        let none = growths(&[(1.0, 0.0), (2.0, 0.0)]);
        assert_eq!(seen([&none, &none]), None);
        let constant = growths(&[(1.0, 7.0), (1.2, 7.0), (1.1, 7.0)]);
        assert_eq!(seen([&constant, &none]), Some(Measure::Count));
        let at_once = growths(&[(1.0, 7.0), (1.0, 9.0), (1.0, 8.0)]);
        assert_eq!(seen([&at_once, &at_once]), None, "as long as each other");
        assert_eq!(seen([&at_once[..1], &at_once[..1]]), None);
    }
}
