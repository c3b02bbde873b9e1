//! Copy-on-write under huge pages: the writes of [Durg 2025], the pauses of [Lin 2022], and the huge pages that are
//! left afterwards. Forks are compared with forks, and views, which make no child, with views.
//!
//! [Durg 2025]: https://aneeshdurg.me/posts/2025/09/08-hugepages
//! [Lin 2022]: https://lore.kernel.org/all/20220927162957.270460-1-shiyn.lin@gmail.com/

mod coverage;
mod curve;
mod density;
mod instants;
mod pause;
mod promises;
mod recovery;
mod stall;
mod writes;

use clap::ValueEnum;
use cowslip::units::ByteCount;

use super::error::Result;
use super::host::warm;
use super::interrupt::Interrupt;
use super::memory::Memory;
use super::{Bench, GIB, MIB, Options, parts};

pub(crate) use promises::PROMISES;

/// A measurement that can be selected.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// How long a fork, or a view, pauses its caller, by size
    Pauses,
    /// Time of the first and the next write to 2 MiB afterwards
    Writes,
    /// One write in each huge page, or one in each of its pages (Durg 2025)
    Density,
    /// Huge mappings and random reads over ten snapshots
    Coverage,
    /// Time until all memory is on huge pages again
    Recovery,
    /// Stalls of a writer during a thaw
    Stalls,
    /// Cost of writes under a child, and the memory beside it, by the share of the pages that is written
    Curve,
    /// A second view while the first lives, and the way back
    Instants,
}

/// Runs the parts of `only`, or all, and adds their results to the report, even if it is interrupted.
///
/// # Errors
/// [`crate::Error::Interrupted`], or [`crate::Error::Denied`] without the privileges that every part needs. Any other
/// failure of a part is a note of the report.
pub fn run(options: &Options, only: &[Part], bench: &mut Bench<'_>) -> Result<()> {
    let measured = parts::weighed(bench, only, weight, |part, bench| match part {
        Part::Pauses => pause::measure(bench, options),
        Part::Writes => writes::measure(bench, options),
        Part::Density => density::measure(bench, options),
        Part::Coverage => coverage::measure(bench, options),
        Part::Recovery => recovery::measure(bench, options),
        Part::Stalls => stall::measure(bench, options),
        Part::Curve => curve::measure(bench, options),
        Part::Instants => instants::measure(bench, options),
    });
    density::push_published(bench.report);
    pause::push_published(bench.report);
    promises::push(bench.report, options.working_bytes() as u64);
    measured
}

/// The time of a part relative to the others.
fn weight(part: Part) -> f64 {
    match part {
        Part::Pauses => 10.0,
        Part::Curve => 6.0,
        Part::Writes | Part::Density | Part::Coverage => 3.0,
        Part::Recovery | Part::Stalls | Part::Instants => 2.0,
    }
}

/// Percentage of the pages that are written while a snapshot is held.
const WRITTEN_PERCENT: u64 = 12;

/// Writes a word of some pages all over `memory`, different ones each `round`.
fn write_some(memory: &Memory, round: u64, stop: &Interrupt) -> Result<()> {
    stop.check()?;
    warm(ByteCount((memory.bytes() / 100 * WRITTEN_PERCENT as usize) as u64), stop)?;
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
