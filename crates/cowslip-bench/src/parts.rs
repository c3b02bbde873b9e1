//! The parts of a bench, each of which can be asked for by itself.

use std::fmt::Debug;

use clap::ValueEnum;

use super::error::{Error, Result};
use super::field::Bench;

/// Measures the parts that were asked for, or all. A measurement that fails as a whole leaves a note; the
/// others go on.
pub(super) fn each<P: ValueEnum + Debug + Copy>(
    bench: &mut Bench<'_>,
    only: &[P],
    measure: impl Fn(P, &mut Bench<'_>) -> Result<()>,
) -> Result<()> {
    let parts = if only.is_empty() { P::value_variants() } else { only };
    for &part in parts {
        match measure(part, bench) {
            Err(Error::Failed(why)) => bench.report.notes.push(format!("{part:?}: {why}")),
            done => done?,
        }
    }
    Ok(())
}
