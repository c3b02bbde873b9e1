//! The energy statistic of E-divisive means (Matteson and James 2014): the place at which a sequence differs most.
//!
//! For the values x before a place and y after it, of numbers p and q, it is
//! pq / (p + q) · (2 mean |x − y| − mean |x − x'| − mean |y − y'|). It is zero for equal samples, never negative, and
//! an outlier adds to it by its distance, not by the square of that.

/// Fewer values are no level of their own: one or two may be outliers.
pub(super) const FEWEST: usize = 3;

/// The number of ends up to which places are looked for. A level that goes is then found in the rest.
const MOST_ENDS: usize = 200;

/// A place and its statistic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    /// The number of values before it.
    pub(super) at: usize,
    pub(super) energy: f64,
}

/// The best places in a sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Splits {
    /// Of all values before and after it.
    pub(super) whole: Split,
    /// Of the values up to a later one: finds a level that came and went.
    pub(super) part: Split,
}

/// Buffers of one length that each scan uses again.
#[derive(Clone, Debug)]
pub(super) struct Scanner {
    /// The sum of the distances of each value to those before it.
    before: Vec<f64>,
    /// The sum of the distances of each value to all values so far.
    all: Vec<f64>,
    /// 1 / n at n.
    inverse: Vec<f64>,
}

impl Scanner {
    pub(super) fn new(length: usize) -> Self {
        let inverse = (0..=length).map(|n| 1.0 / n as f64).collect();
        Self { before: vec![0.0; length], all: vec![0.0; length], inverse }
    }

    /// The best places in `values`, which have the scanner's length; `None` if they are too few.
    pub(super) fn splits(&mut self, values: &[f64]) -> Option<Splits> {
        if values.len() < 2 * FEWEST {
            return None;
        }
        let Self { before, all, inverse } = self;
        before.fill(0.0);
        for (at, value) in values.iter().enumerate() {
            for (sum, other) in before[at + 1..].iter_mut().zip(&values[at + 1..]) {
                *sum += (other - value).abs();
            }
        }
        let mut part = Split { at: 0, energy: f64::NEG_INFINITY };
        let mut whole = part;
        let mut total = 0.0;
        let step = values.len().div_ceil(MOST_ENDS);
        for (last, value) in values.iter().enumerate() {
            for (sum, other) in all.iter_mut().zip(&values[..last]) {
                *sum += (other - value).abs();
            }
            all[last] = before[last];
            total += before[last];
            let count = last + 1;
            let is_end = count == values.len() || count.is_multiple_of(step);
            if count >= 2 * FEWEST && is_end {
                whole = best(&before[..count], &all[..count], total, inverse);
                if whole.energy > part.energy {
                    part = whole;
                }
            }
        }
        Some(Splits { whole, part })
    }
}

/// The best place among values with these sums of distances.
fn best(before: &[f64], all: &[f64], total: f64, inverse: &[f64]) -> Split {
    let count = before.len();
    let mut best = Split { at: 0, energy: f64::NEG_INFINITY };
    let (mut within, mut between) = (0.0, 0.0);
    for at in 0..=count - FEWEST {
        if at >= FEWEST {
            let (p, q) = (at as f64, (count - at) as f64);
            let after = total - within - between;
            let energy = between - within * q * inverse[at] - after * p * inverse[count - at];
            if energy > best.energy {
                best = Split { at, energy };
            }
        }
        within += before[at];
        between += all[at] - 2.0 * before[at];
    }
    Split { energy: 2.0 * best.energy * inverse[count], ..best }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The statistic as it is defined.
    fn energy(values: &[f64], at: usize) -> f64 {
        let (x, y) = values.split_at(at);
        let mean = |one: &[f64], other: &[f64]| {
            let distances = one.iter().flat_map(|a| other.iter().map(move |b| (a - b).abs()));
            distances.sum::<f64>() / (one.len() * other.len()) as f64
        };
        let (p, q) = (x.len() as f64, y.len() as f64);
        p * q / (p + q) * (2.0 * mean(x, y) - mean(x, x) - mean(y, y))
    }

    #[test]
    fn the_best_places_are_those_of_the_definition() {
        let mut random = fastrand::Rng::with_seed(3);
        for length in [6, 7, 20, 41] {
            let values: Vec<f64> =
                (0..length).map(|at| random.f64() + f64::from(at % 20 > 12)).collect();
            let length = values.len();
            let splits = Scanner::new(length).splits(&values).unwrap();
            let best = |lengths: std::ops::RangeInclusive<usize>| {
                let places =
                    lengths.flat_map(|end| (FEWEST..=end - FEWEST).map(move |at| (at, end)));
                let all = places.map(|(at, end)| (at, energy(&values[..end], at)));
                all.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap()
            };
            for (found, wanted) in
                [(splits.whole, best(length..=length)), (splits.part, best(6..=length))]
            {
                assert_eq!(found.at, wanted.0);
                assert!((found.energy / wanted.1 - 1.0).abs() < 1e-9, "{found:?} {wanted:?}");
            }
        }
        assert!(Scanner::new(5).splits(&[0.0, 0.0, 0.0, 1.0, 1.0]).is_none());
    }
}
