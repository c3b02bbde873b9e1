//! Forking from a big process: the tables of [Lin 2022].
//!
//! [Lin 2022]: https://lore.kernel.org/all/20220927162957.270460-1-shiyn.lin@gmail.com/

mod afl;
mod latency;
mod library;
mod overhead;
mod promises;
mod sqlite;
mod template;
mod touch;
mod weight;
mod writes;

use clap::ValueEnum;

use super::error::Result;
use super::{Bench, GIB, MIB, Options, parts};

pub(crate) use promises::PROMISES;

/// A measurement that can be selected.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// How long fork holds a small program up, by size, since its start, the first time, again and in a row, and its
    /// child's page tables; natively, with the bundled malloc and under `cowslip run`
    Latency,
    /// The same within this process, by the library's own fork, and mechanisms that are no program
    Library,
    /// Cost of writes after it: to every page of 512 MiB, and a million at random
    Writes,
    /// Until a child has read 1 %, 10 % and all of the memory
    Touch,
    /// Children a second of a fork server over an SQLite database in memory
    Sqlite,
    /// Clones of a template: resets a second, and what children weigh
    Template,
    /// Test cases a second of AFL++ on such a database, and whether they take the same edges: with --full
    Afl,
    /// Overhead of `cowslip run` for a program that never forks: a malloc benchmark, Redis answering GETs
    Overhead,
    /// Page tables and memory of a parent and of 1, 10 and 100 children
    Weight,
}

/// Runs the parts of `only`, or all, and adds their results to the report, even if it is interrupted.
///
/// # Errors
/// [`crate::Error::Interrupted`], or [`crate::Error::Denied`] without the privileges that every part needs. Any other
/// failure of a part is a note of the report.
pub fn run(options: &Options, only: &[Part], bench: &mut Bench<'_>) -> Result<()> {
    let measured = parts::weighed(bench, only, weight, |part, bench| match part {
        Part::Latency => latency::measure(bench, options),
        Part::Library => library::measure(bench, options),
        Part::Writes => writes::measure(bench, options),
        Part::Touch => touch::measure(bench, options),
        Part::Sqlite => sqlite::measure(bench, options),
        Part::Template => template::measure(bench, options),
        Part::Afl => afl::measure(bench, options),
        Part::Overhead => overhead::measure(bench, options),
        Part::Weight => weight::measure(bench, options),
    });
    latency::push_published(bench.report);
    writes::push_published(bench.report);
    promises::push(bench.report, options);
    measured
}

/// The time of a part relative to the others.
fn weight(part: Part) -> f64 {
    match part {
        Part::Latency => 12.0,
        Part::Overhead => 8.0,
        Part::Library | Part::Sqlite => 5.0,
        Part::Template => 3.0,
        Part::Writes | Part::Touch | Part::Weight => 2.0,
        // It runs only with `--full`, which ignores the weights.
        Part::Afl => 0.1,
    }
}
