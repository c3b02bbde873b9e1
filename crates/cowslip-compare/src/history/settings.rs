//! Options of an analysis.

/// Options of an analysis.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// The metric; by default [`WALL`](crate::inputs::WALL), or the only one.
    pub metric: Option<String>,
    /// The share of series without a change that have a change point.
    pub alpha: f64,
    /// The number of newest entries in which a change counts as new.
    pub newest: usize,
    /// The change that matters, as a part of the old value: steps below it are added up.
    pub effect: f64,
    /// Facts of [`MACHINE`](super::MACHINE) by which entries are not separated.
    pub ignored: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        let (metric, ignored) = (None, Vec::new());
        Self { metric, alpha: 0.01, newest: 10, effect: 0.05, ignored }
    }
}
