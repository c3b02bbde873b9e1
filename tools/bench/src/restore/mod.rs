//! Restoring and saving: the table of [Vansa 2023], a working set, CRIU, `dd`.
//!
//! [Vansa 2023]: https://mail.openjdk.org/pipermail/crac-dev/2023-May/thread.html
//!
//! * `sample`: the saved content, and its files.
//! * `process`: a restore in a process of its own, which prints its results.
//! * `method`: the strategies and the other measured methods; `baselines`: how those work.

mod baselines;
mod criu;
mod method;
mod observed;
mod process;
mod promises;
mod read;
mod sample;
mod save;
mod state;
mod workers;
mod working_set;

use std::ops::ControlFlow;

use clap::ValueEnum;
use cowslip::units::ByteCount;

use super::error::{Error, Result};
use super::pool::Pool;
use super::{Bench, MIB, Options, parts};
use sample::Sample;

pub use process::{ProcessArgs, run as process};
pub(crate) use workers::{Worker, tell};
pub use workers::{WorkerArgs, run as worker};

pub(crate) use promises::PROMISES;

/// Memory to restore by default: as much as Vansa did.
pub const SIZE: ByteCount = ByteCount::mib(512);
const MOST_ROUNDS: u32 = 5;

/// A measurement that can be selected.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Vansa's table (2023): set up, read all in order; then the state after that, and a checkpoint again
    Read,
    /// Until the first touch, a tenth and all of a working set, recorded and not
    WorkingSet,
    /// A hundred processes that restore one image: until the last has it, and their memory
    Workers,
    /// Saving: beside dd and cp, incrementally, and its effect on a program that writes
    Save,
    /// CRIU, of a process of the same size
    Criu,
}

/// Runs the parts of `only`, or all, and adds their results to the report, even if it is interrupted.
///
/// # Errors
/// [`crate::Error::Interrupted`], or [`crate::Error::Denied`] without the privileges that every part needs. Any other
/// failure of a part is a note of the report.
pub fn run(options: &Options, only: &[Part], bench: &mut Bench<'_>) -> Result<()> {
    bench.progress.phase("restore: saving an image of random content");
    let sample = Sample::new(options.size, bench.stop)?;
    let rounds = options.runs.min(MOST_ROUNDS);
    // A process that gets no page of the pool reports that itself.
    let _pool = Pool::with_free_bytes(sample.bytes() as usize);
    let measured = parts::weighed(bench, only, weight, |part, bench| match part {
        Part::Read => read::measure(bench, &sample, rounds),
        Part::WorkingSet => working_set::measure(bench, &sample, rounds),
        Part::Workers => workers::measure(bench, &sample, rounds),
        Part::Save => save::measure(bench, &sample, rounds),
        Part::Criu => criu::measure(bench, &sample, rounds),
    });
    read::push_published(bench.report);
    promises::push(bench.report, sample.bytes());
    measured
}

/// The time of a part relative to the others.
fn weight(part: Part) -> f64 {
    match part {
        Part::Read => 10.0,
        Part::WorkingSet => 6.0,
        Part::Workers => 3.0,
        Part::Save => 5.0,
        Part::Criu => 1.0,
    }
}

/// For saves and restores without a display of progress.
fn proceed(_: cowslip::image::Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}
