//! The end of a session by the precision of its result.

use std::path::Path;

use cowslip_compare::compare;
use cowslip_compare::inputs::{Run, WALL};

use super::folders::Side;
use crate::commands::compare::result::{Settings, read, trouble};
use crate::exit::Failure;

/// Fewer runs do not show how much they vary.
const FEWEST: usize = 10;

/// The finished runs with the primary metric alone, and the wanted precision.
pub(super) struct Until<'a> {
    settings: &'a Settings,
    /// The widest interval of the relative change.
    wanted: f64,
    good: Vec<Run>,
    bad: Vec<Run>,
}

impl<'a> Until<'a> {
    pub(super) fn new(percent: f64, settings: &'a Settings) -> Self {
        Self { settings, wanted: percent / 100.0, good: Vec::new(), bad: Vec::new() }
    }

    /// Adds a recording.
    pub(super) fn add(&mut self, side: Side, file: &Path) -> Result<(), Failure> {
        let mut runs = read(file, &[])?;
        let wanted = self.settings.primary.as_deref().unwrap_or(WALL);
        let wanted = wanted.strip_suffix("/s").unwrap_or(wanted);
        runs.iter_mut().for_each(|run| run.metrics.retain(|name, _| name == wanted));
        let to = if side == Side::Good { &mut self.good } else { &mut self.bad };
        to.extend(runs);
        Ok(())
    }

    /// The width of the interval of the primary metric's relative change, once both sides have enough runs.
    pub(super) fn width(&self) -> Result<Option<f64>, Failure> {
        if self.good.len() != self.bad.len() || self.good.len() < FEWEST {
            return Ok(None);
        }
        let comparison =
            compare(&self.good, &self.bad, &self.settings.options()).map_err(trouble)?;
        // A metric that is the same in all runs is known exactly.
        let Some(row) = comparison.primary_row() else { return Ok(Some(0.0)) };
        let interval = row.change.and_then(|change| change.interval);
        Ok(Some(interval.map_or(f64::INFINITY, |(low, high)| high - low)))
    }

    pub(super) fn is_reached(&self, width: Option<f64>) -> bool {
        width.is_some_and(|width| width < self.wanted)
    }

    pub(super) fn runs(&self) -> usize {
        self.good.len()
    }
}
