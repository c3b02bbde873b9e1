//! Independence of samples that follow each other in time.

use super::Moments;

/// Similarity of neighbours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Autocorrelation {
    /// Correlation of each value with the one after it.
    pub lag_one: f64,
    /// The number of independent values with as much information about the mean, if the samples are autoregressive of
    /// first order: n (1 − r) / (1 + r), at most n.
    pub effective_size: f64,
}

impl Autocorrelation {
    /// For values in the order of time; `None` for fewer than four, or if they do not vary.
    ///
    /// ```
    /// use cowslip_compare::stats::Autocorrelation;
    /// let drifting: Vec<f64> = (0..100).map(f64::from).collect();
    /// assert!(Autocorrelation::from_values(&drifting).unwrap().effective_size < 4.0);
    /// ```
    pub fn from_values(values: &[f64]) -> Option<Self> {
        let moments = Moments::from_values(values).ok().filter(|moments| moments.variance > 0.0)?;
        if values.len() < 4 {
            return None;
        }
        let mean = moments.mean();
        let products: f64 = values.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
        let lag_one = products / (moments.variance * (moments.count - 1.0));
        let factor = ((1.0 - lag_one) / (1.0 + lag_one)).clamp(0.0, 1.0);
        Some(Self { lag_one, effective_size: (moments.count * factor).max(1.0) })
    }

    /// Returns true if independent values would hardly be so alike: beyond 2 / √n (Bartlett 1946).
    pub fn is_dependent(&self, count: usize) -> bool {
        self.lag_one > 2.0 / (count as f64).sqrt()
    }
}
