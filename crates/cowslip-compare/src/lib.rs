//! Finds the differences between good and bad runs of a program.
//!
//! * [`recorder`] samples the kernel's counters beside a program, into a [`recording`].
//! * [`inputs`] reads runs: recordings, and files of sysstat, perf, benchmarks' tools and spreadsheets.
//! * [`compare`] tests every metric of them, and ranks those that differ. [`TimeSplit`] divides the time,
//!   and [`Cause`] has the counters that explain it.
//! * [`stats`] has the tests.
//! * [`history`] keeps the results of commits, and finds those that changed them.
//!
//! ```
//! use cowslip_compare::inputs::Run;
//! use cowslip_compare::{Options, compare};
//!
//! let run = |faults| Run::new("a run").with("faults", faults);
//! let good: Vec<Run> = [101.0, 99.0, 100.0, 102.0].map(run).into();
//! let bad: Vec<Run> = [201.0, 205.0, 199.0, 202.0].map(run).into();
//! let comparison = compare(&good, &bad, &Options::default())?;
//! assert!(comparison.differs() && comparison.rows[0].p < 1e-5);
//! # Ok::<(), cowslip_compare::Error>(())
//! ```
//!
//! `cowslip compare` is its command; `docs/compare.md` describes it.
#![forbid(unsafe_code)]

pub mod calls;
mod cause;
mod comparison;
mod error;
pub mod history;
pub mod inputs;
pub mod profile;
pub mod recorder;
pub mod recording;
pub mod stats;

pub use cause::{Cause, Certainty, Prices, costly, is_consequence};
pub use comparison::{
    Comparison, Counters, Entry, FactDifference, FaultKind, Faults, Measure, Options, PartOfTime,
    Row, TimePart, TimeSplit, Unit, Verdict, compare,
};
pub use error::{Error, ErrorKind, Result};
