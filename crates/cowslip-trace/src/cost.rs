//! The cost of faults: by their own latencies, or by calibration.

use std::fmt;

use cowslip_sys::fault_cost;
use serde::Serialize;

use crate::model::Header;
use crate::sums::Sums;

/// The cost of a fault that was not timed.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct FaultCost {
    /// A minor fault of a base page, in nanoseconds.
    pub base_ns: f64,
    /// A fault that brings a huge page, in nanoseconds.
    pub huge_ns: Option<f64>,
    /// The origin of the measurement.
    pub measured: Measured,
}

/// The origin of a measured cost.
///
/// Its text ends a sentence that begins with the measured value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measured {
    /// Each fault was timed.
    Faults,
    /// On the machine of the trace, when the trace was made.
    WithTrace,
    /// On this machine, now; the trace may be from another one.
    Here,
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Faults => "measured fault by fault",
            Self::WithTrace => "measured on the machine of the trace when it was made",
            Self::Here => "measured on this machine now, which may not be that of the trace",
        })
    }
}

/// The time that some faults took.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Cost {
    /// In nanoseconds, all threads together.
    pub ns: f64,
    /// The origin of the measurement.
    pub measured: Measured,
}

impl FaultCost {
    /// The cost recorded in the trace itself, if any.
    pub fn from_header(header: &Header) -> Option<Self> {
        let (huge_ns, measured) = (header.huge_fault_ns, Measured::WithTrace);
        header.base_fault_ns.map(|base_ns| Self { base_ns, huge_ns, measured })
    }

    /// Measures the cost on this machine now: maps memory and faults it in.
    ///
    /// # Errors
    /// If the memory cannot be mapped.
    pub fn measure() -> cowslip_sys::Result<Self> {
        let base_ns = fault_cost::base_page_ns()?;
        let huge_ns = fault_cost::huge_page_ns().ok();
        Ok(Self { base_ns, huge_ns, measured: Measured::Here })
    }
}

impl Cost {
    /// The time that the faults of `sums` took, each of which stands for `sampling_period`: by their own
    /// latencies, else by `cost`. `None` if neither is known.
    pub fn from_sums(sums: &Sums, cost: Option<&FaultCost>, sampling_period: u64) -> Option<Self> {
        let period = sampling_period as f64;
        if sums.timed > 0 {
            let mean = sums.latency_ns as f64 / sums.timed as f64;
            let ns = mean * sums.faults() as f64 * period;
            return Some(Self { ns, measured: Measured::Faults });
        }
        let cost = cost?;
        let huge = sums.huge as f64;
        let base = sums.faults() as f64 - huge;
        let ns = (base * cost.base_ns + huge * cost.huge_ns.unwrap_or(cost.base_ns)) * period;
        Some(Self { ns, measured: cost.measured })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::FaultKind;
    use crate::model::Fault;

    #[test]
    fn latencies_count_before_calibration() {
        let cost = FaultCost { base_ns: 500.0, huge_ns: Some(1e5), measured: Measured::WithTrace };
        let mut sums = Sums::default();
        assert_eq!(Cost::from_sums(&sums, None, 1), None);
        sums.add(&Fault::at(0, 0), FaultKind::FirstTouch);
        sums.add(&Fault { huge: Some(true), ..Fault::at(0, 0) }, FaultKind::FirstTouch);
        let ns = |sums: &Sums, period| Cost::from_sums(sums, Some(&cost), period).unwrap().ns;
        assert_eq!(ns(&sums, 1), 100_500.0);
        assert_eq!(ns(&sums, 10), 1_005_000.0);
        sums.add(&Fault { latency_ns: Some(700), ..Fault::at(0, 0) }, FaultKind::FirstTouch);
        assert_eq!(ns(&sums, 1), 2_100.0);
    }
}
