//! The rank test of Mann and Whitney: whether the values of one sample tend to be greater.

use serde::Serialize;

use super::Unusable;

/// The distribution is counted exactly up to this many values in the smaller sample, if there are no ties.
const SMALL: usize = 8;

/// The outcome of the test, like SciPy's `mannwhitneyu` with `method="auto"`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RankTest {
    /// Pairs in which the first sample's value is greater; ties count half.
    pub u: f64,
    /// Two-sided.
    pub p: f64,
    /// True if `p` was counted exactly; else it is from the normal distribution with corrections for ties and
    /// continuity.
    pub is_exact: bool,
}

impl RankTest {
    /// Compares two samples of one value or more each.
    ///
    /// ```
    /// use cowslip_compare::stats::RankTest;
    /// let test = RankTest::new(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]).unwrap();
    /// assert_eq!((test.u, test.is_exact), (0.0, true));
    /// assert!((test.p - 0.1).abs() < 1e-15);
    /// ```
    pub fn new(first: &[f64], second: &[f64]) -> Result<Self, Unusable> {
        if first.is_empty() || second.is_empty() {
            return Err(Unusable::TooFew);
        }
        if first.iter().chain(second).any(|value| value.is_nan()) {
            return Err(Unusable::NotFinite);
        }
        let (rank_sum, ties) = rank_sum(first, second);
        let (n1, n2) = (first.len() as f64, second.len() as f64);
        let u = rank_sum - n1 * (n1 + 1.0) / 2.0;
        let greater = u.max(n1 * n2 - u);
        let (fewer, more) = (first.len().min(second.len()), first.len().max(second.len()));
        let counted =
            if ties == 0.0 { exact(fewer, more, (n1 * n2 - greater) as usize) } else { None };
        let p = counted.unwrap_or_else(|| asymptotic(n1, n2, greater, ties));
        Ok(Self { u, p: p.min(1.0), is_exact: counted.is_some() })
    }
}

/// The sum of the first sample's ranks, and Σ (t³ − t) over the groups of t equal values.
fn rank_sum(first: &[f64], second: &[f64]) -> (f64, f64) {
    let mut all: Vec<(f64, bool)> = first.iter().map(|value| (*value, true)).collect();
    all.extend(second.iter().map(|value| (*value, false)));
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut sum, mut ties, mut below) = (0.0, 0.0, 0.0);
    for equal in all.chunk_by(|a, b| a.0 == b.0) {
        let count = equal.len() as f64;
        let of_first = equal.iter().filter(|(_, is_first)| *is_first).count() as f64;
        sum += of_first * (below + (count + 1.0) / 2.0);
        ties += count * count * count - count;
        below += count;
    }
    (sum, ties)
}

fn asymptotic(n1: f64, n2: f64, greater: f64, ties: f64) -> f64 {
    let n = n1 + n2;
    let variance = n1 * n2 / 12.0 * ((n + 1.0) - ties / (n * (n - 1.0)));
    if variance <= 0.0 {
        return 1.0;
    }
    let z = (greater - n1 * n2 / 2.0 - 0.5) / variance.sqrt();
    libm::erfc(z / std::f64::consts::SQRT_2)
}

/// The smallest U of samples of these sizes, without ties, with a p of `alpha` or more.
pub(super) fn smallest_unsurprising(n1: usize, n2: usize, alpha: f64) -> usize {
    let (mut low, mut high) = (0, n1 * n2 / 2 + 1);
    while low < high {
        let u = low + (high - low) / 2;
        let p = exact(n1.min(n2), n1.max(n2), u)
            .unwrap_or_else(|| asymptotic(n1 as f64, n2 as f64, (n1 * n2 - u) as f64, 0.0));
        if p < alpha { low = u + 1 } else { high = u }
    }
    low
}

/// Twice the share of orders with a U of at most `least`; `None` if they are too many to count.
///
/// The counts are the coefficients of the Gaussian binomial Π (1 − xⁿ²⁺ⁱ) / (1 − xⁱ).
fn exact(fewer: usize, more: usize, least: usize) -> Option<f64> {
    if fewer > SMALL {
        return None;
    }
    let mut orders = 1_i128;
    for i in 1..=fewer {
        orders = orders.checked_mul((more + i) as i128)? / i as i128;
    }
    let mut ways = vec![0_i128; least + 1];
    ways[0] = 1;
    for i in 1..=fewer {
        for at in (more + i..ways.len()).rev() {
            ways[at] -= ways[at - more - i];
        }
        for at in i..ways.len() {
            ways[at] += ways[at - i];
        }
    }
    let extreme: i128 = ways.iter().sum();
    Some(2.0 * (extreme as f64 / orders as f64))
}
