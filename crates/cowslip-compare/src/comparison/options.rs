//! Options of a comparison.

/// Options of a comparison.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// The level of each test, and one minus the confidence of the intervals.
    pub alpha: f64,
    /// The accepted share of false ones among the metrics that are said to differ.
    pub fdr: f64,
    /// The metric that the comparison is about, and that is tested alone; by default [`WALL`](crate::inputs::WALL), if the runs have it.
    pub primary: Option<String>,
    /// The change that the advice on runs is about, as a part of the good mean.
    pub wanted_change: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self { alpha: 0.05, fdr: 0.05, primary: None, wanted_change: 0.05 }
    }
}
