//! One capability of a system.

use std::fmt;

/// The result of trying something here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It worked, with the right outcome.
    Available,
    /// This kernel cannot do it.
    Unsupported,
    /// The kernel could, but a privilege, a setting or a filter is in the way.
    Denied {
        /// The obstacle, and how to remove it.
        hint: String,
    },
    /// It failed for another reason.
    Unknown {
        /// The kernel's error number; 0 if every call succeeded but the outcome was wrong.
        errno: i32,
    },
}

impl Answer {
    /// Returns true for [`Answer::Available`].
    pub fn is_available(&self) -> bool {
        *self == Self::Available
    }

    /// One word for it, for programs to read.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::Unsupported => "unsupported",
            Self::Denied { .. } => "denied",
            Self::Unknown { .. } => "unknown",
        }
    }
}

/// The loss without a capability.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Need {
    /// Everything: nothing replaces it.
    Essential,
    /// Something that a user notices.
    Full,
    /// Huge pages in arenas, unless another capability of this kind is there.
    HugePages,
    /// Time or convenience, or reported because it explains the behaviour here.
    Extra,
}

/// The cost of something here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// The median of a few measurements on warm memory.
    pub ns: u64,
    /// The work done in that time, as in "20 ns a chunk".
    pub per: &'static str,
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.ns as f64;
        match self.ns {
            0..1_000 => write!(f, "{ns} ns")?,
            1_000..100_000 => write!(f, "{:.1} µs", ns / 1e3)?,
            100_000..1_000_000 => write!(f, "{:.0} µs", ns / 1e3)?,
            _ => write!(f, "{:.1} ms", ns / 1e6)?,
        }
        write!(f, " {}", self.per)
    }
}

/// One thing that was tried.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Capability {
    /// A name that does not change between versions.
    pub name: &'static str,
    /// The use that Cowslip makes of it.
    pub what_for: &'static str,
    /// The loss without it.
    pub need: Need,
    /// The result of trying it.
    pub answer: Answer,
    /// Its cost, if it works and can be measured.
    pub cost: Option<Cost>,
    /// The observation.
    pub detail: String,
    /// The command that makes it work, for root unless it says otherwise.
    pub fix: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_told_in_the_unit_that_fits() {
        let told = [7, 1_250, 123_456, 5_040_000].map(|ns| Cost { ns, per: "a chunk" }.to_string());
        assert_eq!(told, ["7 ns a chunk", "1.2 µs a chunk", "123 µs a chunk", "5.0 ms a chunk"]);
    }
}
