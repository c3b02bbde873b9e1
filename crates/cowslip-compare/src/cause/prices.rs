//! The time that the kernel's commonest events take.

use serde::{Deserialize, Serialize};

use crate::inputs::Run;

/// Seconds of one event each, as measured on a machine.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Prices {
    /// A minor fault of a base page, in the kernel.
    pub fault: f64,
    /// A fault of a huge page.
    pub huge_fault: f64,
    /// A wait for another thread, and its wake-up.
    pub switch: f64,
    /// A short system call.
    pub call: f64,
}

impl Prices {
    /// Those of a virtual machine, for runs that do not have them.
    pub const USUAL: Self = Self { fault: 0.5e-6, huge_fault: 100e-6, switch: 10e-6, call: 0.3e-6 };

    /// The means of those that runs have; `None` if none has them.
    pub(crate) fn from_runs(good: &[Run], bad: &[Run]) -> Option<Self> {
        let known: Vec<Self> = good.iter().chain(bad).filter_map(|run| run.prices).collect();
        let mean = |of: fn(&Self) -> f64| known.iter().map(of).sum::<f64>() / known.len() as f64;
        (!known.is_empty()).then(|| Self {
            fault: mean(|prices| prices.fault),
            huge_fault: mean(|prices| prices.huge_fault),
            switch: mean(|prices| prices.switch),
            call: mean(|prices| prices.call),
        })
    }

    /// Returns true for times, as opposed to the numbers of a damaged file.
    pub(crate) fn is_plausible(&self) -> bool {
        [self.fault, self.huge_fault, self.switch, self.call]
            .iter()
            .all(|price| *price > 0.0 && *price < 1.0)
    }
}
