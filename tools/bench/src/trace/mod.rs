//! Tracing: its cost for each fault, beside perf; lost events; the time to make and show the picture.
//!
//! All of it is done by the commands that a user would give. Qumulo's engineers describe page faults that cost a
//! quarter of a storage system's throughput, found by tracing them (2019, <https://qumulo.com/blog/>).

mod lost;
mod overhead;
mod picture;
mod promises;
mod toucher;

use clap::ValueEnum;
use cowslip::units::ByteCount;

use super::error::Result;
use super::{Bench, Options, parts};
use toucher::Toucher;

pub(crate) use promises::PROMISES;

/// Memory that two threads touch, and room for the recording.
pub const SIZE: ByteCount = ByteCount::mib(256);

const COWSLIP: &str = "cowslip";
const PERF: &str = "perf";

/// A measurement that can be selected.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Time per fault: plain, under perf, under `cowslip trace`
    Overhead,
    /// Events lost at 500,000 faults a second, at full speed, and by force
    Lost,
    /// A million faults: seconds, bytes, and until a browser shows them
    Picture,
}

/// Runs the parts of `only`, or all, and adds their results to the report, even if it is interrupted.
///
/// # Errors
/// [`crate::Error::Interrupted`], or [`crate::Error::Denied`] without the privileges that every part needs. Any other
/// failure of a part is a note of the report.
pub fn run(options: &Options, only: &[Part], bench: &mut Bench<'_>) -> Result<()> {
    let toucher = Toucher::new(bench.stop)?;
    let measured = parts::each(bench, only, |part, bench| match part {
        Part::Overhead => overhead::measure(bench, &toucher, options.runs),
        Part::Lost => lost::measure(bench, &toucher),
        Part::Picture => picture::measure(bench, &toucher),
    });
    promises::push(bench.report);
    measured
}
