//! Many tests at once: the false discovery rate (Benjamini and Hochberg 1995).

/// The smallest false discovery rate at which each test is a discovery, in the order of `p`. A NaN stays NaN, and does
/// not count as a test.
///
/// ```
/// let adjusted = cowslip_compare::stats::adjusted(&[0.01, 0.04, 0.03, f64::NAN]);
/// assert_eq!(adjusted[..3], [0.03, 0.04, 0.04]);
/// ```
pub fn adjusted(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).filter(|at| !p[*at].is_nan()).collect();
    order.sort_by(|a, b| p[*b].total_cmp(&p[*a]));
    let tests = order.len() as f64;
    let mut adjusted = vec![f64::NAN; p.len()];
    let mut least = 1.0_f64;
    for (from_last, at) in order.iter().enumerate() {
        least = least.min(p[*at] * (tests / (tests - from_last as f64)));
        adjusted[*at] = least;
    }
    adjusted
}
