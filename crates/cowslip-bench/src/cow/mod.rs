//! Copy-on-write under huge pages: seed 000's experiment, seed 002's pauses, and what is left of the
//! huge pages afterwards.

mod coverage;
mod pause;
mod ratios;
mod recovery;
mod seed000;
mod stall;
mod writes;

use clap::ValueEnum;

use super::error::Result;
use super::interrupt::Interrupt;
use super::memory::{Memory, warm_free};
use super::{Bench, GIB, MIB, Options, parts};

/// A measurement that can be asked for by itself.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// How long each mechanism pauses its caller, by size
    Pauses,
    /// What the first and the next write to 2 MiB cost afterwards
    Writes,
    /// Seed 000's table
    Seed000,
    /// Huge mappings and random reads over ten snapshots
    Coverage,
    /// Until all memory is on huge pages again
    Recovery,
    /// What a writer sees of a thaw
    Stalls,
}

/// Runs the parts of `only`, or everything, and adds what came of it to the report; on an interruption what there is.
///
/// # Errors
/// [`crate::Error::Interrupted`], or [`crate::Error::Denied`] without the privileges that every part needs. Any other
/// failure of a part is a note of the report.
pub fn run(options: &Options, only: &[Part], bench: &mut Bench<'_>) -> Result<()> {
    let measured = parts::each(bench, only, |part, bench| match part {
        Part::Pauses => pause::measure(bench, options),
        Part::Writes => writes::measure(bench, options),
        Part::Seed000 => seed000::measure(bench, options),
        Part::Coverage => coverage::measure(bench, options),
        Part::Recovery => recovery::measure(bench, options),
        Part::Stalls => stall::measure(bench, options),
    });
    seed000::push_published(bench.report);
    pause::push_published(bench.report);
    ratios::push(bench.report, options.working_bytes() as u64);
    measured
}

/// Pages written while a snapshot is held, of a hundred.
const WRITTEN_PERCENT: u64 = 12;

/// Writes a word of some pages all over `memory`, others each `round`.
fn write_some(memory: &Memory, round: u64, stop: &Interrupt) -> Result<()> {
    stop.check()?;
    warm_free(memory.bytes() / 100 * WRITTEN_PERCENT as usize, stop)?;
    for page in 0..memory.pages() {
        if mix(page as u64 ^ round << 40) % 100 < WRITTEN_PERCENT {
            memory.page(page).store(round, std::sync::atomic::Ordering::Relaxed);
        }
    }
    Ok(())
}

/// The finaliser of SplitMix64.
fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}
