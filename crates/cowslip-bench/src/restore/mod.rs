//! Restoring and saving: seed 004's table, a working set, CRIU, `dd`.
//!
//! * `sample`: what is saved, and where.
//! * `process`: a restore in a process of its own, which says what it saw.
//! * `rival`: the strategies and who else is measured.

mod criu;
mod process;
mod ratios;
mod read;
mod rival;
mod sample;
mod save;
mod state;
mod working_set;

use std::ops::ControlFlow;

use clap::ValueEnum;
use cowslip::units::ByteCount;

use super::error::{Error, Result};
use super::{Bench, MIB, Options, parts};
use sample::Sample;

pub use process::{ProcessArgs, run as process};

/// What is restored if nothing else is asked for: the seed's 512 MB.
pub const SEED_SIZE: ByteCount = ByteCount::mib(512);
const MOST_ROUNDS: u32 = 5;

/// A measurement that can be asked for by itself.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Seed 004's table: set up, read all in order; then what is left, and a checkpoint again
    Read,
    /// Until the first touch, a tenth and all of a working set, recorded and not
    WorkingSet,
    /// Saving: beside dd and cp, incrementally, and what a program that writes sees of it
    Save,
    /// CRIU, of a process of the same size
    Criu,
}

/// Runs the parts of `only`, or everything, and adds what came of it to the report; on an interruption what there is.
///
/// # Errors
/// [`crate::Error::Interrupted`], or [`crate::Error::Denied`] without the privileges that every part needs. Any other
/// failure of a part is a note of the report.
pub fn run(options: &Options, only: &[Part], bench: &mut Bench<'_>) -> Result<()> {
    bench.progress.phase("restore: saving an image of random content");
    let sample = Sample::new(options.size, bench.stop)?;
    let rounds = options.runs.min(MOST_ROUNDS);
    let measured = parts::each(bench, only, |part, bench| match part {
        Part::Read => read::measure(bench, &sample, rounds),
        Part::WorkingSet => working_set::measure(bench, &sample, rounds),
        Part::Save => save::measure(bench, &sample, rounds),
        Part::Criu => criu::measure(bench, &sample, rounds),
    });
    read::push_published(bench.report);
    ratios::push(bench.report, sample.bytes());
    measured
}

/// For saves and restores whose progress nobody watches.
fn proceed(_: cowslip::image::Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}
