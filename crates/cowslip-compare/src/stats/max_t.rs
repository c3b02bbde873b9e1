//! Many tests of few runs at once: the step-down maximum of t over rearranged runs (Westfall and Young 1993, in the form of
//! Ge, Dudoit and Speed 2003, box 2).
//!
//! Where nothing differs it does not matter on which side a run is. All metrics of a run move together, so that those that
//! go up and down together count about once. Nothing is assumed about the distribution of a metric.

/// Arrangements are drawn where there are more.
const MOST_EXACT: usize = 20_000;
/// Arrangements that are drawn, besides that of the runs.
const DRAWN: usize = 9_999;
/// Values a side: with fewer no metric could be certain, with more there is no need.
const FEW: std::ops::RangeInclusive<usize> = 6..=20;
/// Values of all metrics, which bound the time.
const MOST_VALUES: usize = 40_000;
/// Sums in another order are equal within this part.
const ROUNDING: f64 = 1e-9;

/// The smallest probability of any false discovery at which each metric is one, by the good and bad values of each in the
/// order of the runs. `None` unless all have as many values, 6 to 20 a side, all of them finite.
///
/// ```
/// # use cowslip_compare::stats::max_t;
/// let good = [10.0, 11.0, 10.5, 10.2, 10.8, 10.4];
/// let slower = [15.0, 15.5, 15.1, 16.0, 15.2, 15.8];
/// let same = [10.9, 10.1, 10.6, 10.3, 10.7, 11.1];
/// // One of 462 arrangements, each of which stands for its mirror image.
/// assert_eq!(max_t(&[(&good, &slower), (&good, &same)]).unwrap()[0], 1.0 / 462.0);
/// ```
pub fn max_t(metrics: &[(&[f64], &[f64])]) -> Option<Vec<f64>> {
    let (good, bad) = metrics.first()?;
    let sides = (good.len(), bad.len());
    let is_like_first = |(a, b): &(&[f64], &[f64])| {
        (a.len(), b.len()) == sides && a.iter().chain(*b).all(|value| value.is_finite())
    };
    let fits = FEW.contains(&sides.0) && FEW.contains(&sides.1);
    let is_bounded = metrics.len() <= MOST_VALUES / (sides.0 + sides.1).max(1);
    if !fits || !is_bounded || !metrics.iter().all(is_like_first) {
        return None;
    }
    let metrics: Vec<Metric> = metrics.iter().map(|(good, bad)| Metric::new(good, bad)).collect();
    let seen: Vec<f64> = metrics.iter().map(|metric| metric.t(&in_order(sides))).collect();
    let mut order: Vec<usize> = (0..metrics.len()).collect();
    order.sort_by(|a, b| seen[*b].total_cmp(&seen[*a]));
    let mut at_least = vec![0_usize; metrics.len()];
    let all = arrangements(sides);
    for arrangement in &all {
        let mut largest = 0.0_f64;
        for at in order.iter().rev() {
            largest = largest.max(metrics[*at].t(arrangement));
            at_least[*at] += usize::from(largest >= seen[*at] * (1.0 - ROUNDING));
        }
    }
    let mut adjusted = vec![0.0; metrics.len()];
    let mut most = 0.0_f64;
    for at in order {
        most = most.max(at_least[at] as f64 / all.len() as f64);
        adjusted[at] = most;
    }
    Some(adjusted)
}

/// The runs of the first side, by their numbers.
type Arrangement = Vec<usize>;

fn in_order(sides: (usize, usize)) -> Arrangement {
    (0..sides.0).collect()
}

/// That of the runs, and all others or some that are drawn: always the same.
fn arrangements(sides: (usize, usize)) -> Vec<Arrangement> {
    let runs = sides.0 + sides.1;
    let count = (1..=sides.0).fold(1, |count, i| count * (sides.1 + i) / i);
    if count > MOST_EXACT {
        let mut random = fastrand::Rng::with_seed(count as u64);
        let drawn = |_| {
            let mut all: Vec<usize> = (0..runs).collect();
            random.shuffle(&mut all);
            all.truncate(sides.0);
            all
        };
        return std::iter::once(in_order(sides)).chain((0..DRAWN).map(drawn)).collect();
    }
    let mut all = Vec::new();
    let mut now = in_order(sides);
    loop {
        all.push(now.clone());
        // The next one in the order of words.
        let Some(at) = (0..sides.0).rev().find(|at| now[*at] < sides.1 + at) else { break };
        let from = now[at] + 1;
        (at..sides.0).for_each(|i| now[i] = from + i - at);
    }
    if sides.0 == sides.1 {
        // The mirror images have the same t without its sign.
        all.retain(|arrangement| arrangement[0] == 0);
    }
    all
}

/// One metric, less its mean.
struct Metric {
    values: Vec<f64>,
    sum: f64,
    squares: f64,
}

impl Metric {
    fn new(good: &[f64], bad: &[f64]) -> Self {
        let runs = (good.len() + bad.len()) as f64;
        let mean = good.iter().chain(bad).map(|value| value / runs).sum::<f64>();
        let values: Vec<f64> = good.iter().chain(bad).map(|value| value - mean).collect();
        let largest = values.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
        let scale = if largest > 0.0 { largest } else { 1.0 };
        let values: Vec<f64> = values.iter().map(|value| value / scale).collect();
        let squares = values.iter().map(|value| value * value).sum();
        Self { sum: values.iter().sum(), values, squares }
    }

    /// Welch's t without its sign.
    fn t(&self, first: &[usize]) -> f64 {
        let (mut sum, mut squares) = (0.0, 0.0);
        for run in first {
            sum += self.values[*run];
            squares += self.values[*run] * self.values[*run];
        }
        let (a, b) = (first.len() as f64, (self.values.len() - first.len()) as f64);
        let (mean, other) = (sum / a, (self.sum - sum) / b);
        let spread = |count: f64, mean: f64, squares: f64| {
            let spread = squares - count * mean * mean;
            // Rounding alone is left of equal values.
            if spread < ROUNDING * self.squares { 0.0 } else { spread / (count - 1.0) / count }
        };
        let variance = spread(a, mean, squares) + spread(b, other, self.squares - squares);
        match (mean - other).abs() {
            difference if variance > 0.0 => difference / variance.sqrt(),
            difference if difference > ROUNDING => f64::INFINITY,
            _ => 0.0,
        }
    }
}
