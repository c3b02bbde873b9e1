//! Tests whether two samples differ and by how much, and the power of such tests.
//!
//! Student's distribution, the tests and the intervals agree with SciPy to 1e-12 relative; where SciPy loses digits,
//! with mpmath (`tests/oracle.rs`). Each module names its source.

mod autocorrelation;
mod discovery;
mod effect;
mod gamma;
mod location;
mod max_t;
mod modes;
mod moments;
mod noncentral;
mod power;
mod quantile;
mod rank;
mod shift;
mod student;
mod sum;
mod welch;

use std::fmt;

pub use autocorrelation::Autocorrelation;
pub use discovery::adjusted;
pub(crate) use effect::difference;
pub use effect::{Estimate, hedges_g, relative_change};
pub use location::location;
pub use max_t::max_t;
pub use modes::Modes;
pub use moments::Moments;
pub use noncentral::noncentral_cdf;
pub use power::{WANTED_POWER, detectable_difference, power, runs_needed};
pub use quantile::{median, quantile};
pub use rank::RankTest;
pub use shift::shift;
pub use student::{two_sided_p, two_sided_quantile};
pub use welch::Welch;

/// Reasons why samples cannot be tested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unusable {
    /// A sample has fewer values than the test needs.
    TooFew,
    /// A value is NaN, infinite or beyond 1e150.
    NotFinite,
    /// Both samples are constant: there is no t.
    NoVariation,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooFew => "too few values",
            Self::NotFinite => "a value is not a finite number",
            Self::NoVariation => "both samples are constant",
        })
    }
}

impl std::error::Error for Unusable {}
