//! Memory held but not used, slow faults, stalls, unfairness: the table of Ingens (Kwon 2016), for the ways of the
//! kernel and `cowslip promote`.
//!
//! * `settings`: the system's settings, which each policy changes and which are put back.
//! * `policy`: the ways to give huge pages to a program.
//! * `daemon`: `cowslip promote` as a process of its own.
//! * `process`, `target`: a process that obeys commands, and its other end.
//! * `store`: a real Redis.
//! * `job`: a program that runs to its end.
//! * `group`: memory held by a process, including memory that no page table shows.

mod collapse;
mod coverage;
mod daemon;
mod fairness;
mod fault;
mod fragment;
mod graph;
mod group;
mod job;
mod line_protocol;
mod overhead;
mod pinned;
mod policy;
mod process;
mod programs;
mod promises;
mod redis;
mod requests;
mod rocksdb;
mod scarce;
mod settings;
mod sources;
mod sqlite;
mod store;
mod svm;
mod target;
mod web;

use clap::ValueEnum;
use cowslip::units::ByteCount;

use super::error::Result;
use super::{Bench, GIB, MIB, Options, parts};
use settings::{Settings, System};

pub use process::run as process;
pub(crate) use promises::PROMISES;

/// Memory to work on by default.
pub const DEFAULT_SIZE: ByteCount = ByteCount::mib(512);
/// Bytes of a target that differ from its writes.
const BYTES_CHANGED: &str = "bytes_changed";

/// A measurement that can be asked for by itself.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Redis: memory after 70 % were deleted, and GETs
    Redis,
    /// SQLite in memory, in the pattern of a document store: insert, delete, read
    Sqlite,
    /// The first touch of each page on fragmented memory
    Fault,
    /// Requests to a server while it is promoted
    Requests,
    /// Two equal processes started apart, and scarce huge pages
    Fairness,
    /// Two and eight busy programs with weights of one and nine, where the kernel can make no more huge pages
    Scarce,
    /// The daemon's processor time, and its effect on a busy process
    Overhead,
    /// Time until a process on base pages is on huge pages
    Coverage,
    /// Memory of programs under `cowslip run`, used sparsely or given back, beside the same natively
    Run,
    /// A web site on fragmented memory: nginx, PHP and MariaDB
    Web,
    /// LIBLINEAR trains a support vector machine
    Svm,
    /// igraph ranks and searches a Kronecker graph
    Graph,
    /// RocksDB reads at random from its cache
    Rocksdb,
    /// The daemon's overhead for a build of a part of Linux
    Build,
    /// The daemon's overhead for greps over the sources of Linux
    Grep,
}

/// Parts that a short run leaves out.
const SLOW: [Part; 8] = [
    Part::Scarce,
    Part::Sqlite,
    Part::Web,
    Part::Svm,
    Part::Graph,
    Part::Rocksdb,
    Part::Build,
    Part::Grep,
];

/// Runs the parts of `only`, or all, and adds their results to the report, even if it is interrupted.
///
/// # Errors
/// [`crate::Error::Interrupted`], or [`crate::Error::Denied`] without the privileges that every part needs. Any other
/// failure of a part is a note of the report.
pub fn run(options: &Options, only: &[Part], bench: &mut Bench<'_>) -> Result<()> {
    let system = System::hold()?;
    system.set(&Settings::NEVER)?;
    // The promised measurements fit the time.
    let all_that_fits = Part::value_variants().iter().filter(|part| !SLOW.contains(part));
    let all_that_fits: Vec<_> = all_that_fits.copied().collect();
    let is_short = only.is_empty() && !bench.clock.is_full();
    let only = if is_short { &all_that_fits } else { only };
    let measured = parts::weighed(bench, only, weight, |part, bench| match part {
        Part::Redis => redis::measure(bench, options, &system),
        Part::Sqlite => sqlite::measure(bench, options, &system),
        Part::Fault => fault::measure(bench, options, &system),
        Part::Requests => requests::measure(bench, options, &system),
        Part::Fairness => fairness::measure(bench, options, &system),
        Part::Scarce => scarce::measure(bench, options, &system),
        Part::Overhead => overhead::measure(bench, options, &system),
        Part::Coverage => coverage::measure(bench, options, &system),
        Part::Run => programs::measure(bench, options, &system),
        Part::Web => web::measure(bench, options, &system),
        Part::Svm => svm::measure(bench, options, &system),
        Part::Graph => graph::measure(bench, options, &system),
        Part::Rocksdb => rocksdb::measure(bench, options, &system),
        Part::Build => sources::measure(bench, &sources::BUILD, &system),
        Part::Grep => sources::measure(bench, &sources::GREP, &system),
    });
    if is_short {
        bench
            .report
            .notes
            .push("the paper's other programs, and more of the rest: with --full".to_owned());
    }
    promises::push(bench.report, options.working_bytes() as u64);
    measured
}

/// The time of a part relative to the others, roughly in seconds.
fn weight(part: Part) -> f64 {
    match part {
        Part::Redis => 105.0,
        Part::Sqlite | Part::Web | Part::Coverage => 60.0,
        Part::Svm | Part::Graph | Part::Rocksdb | Part::Build => 60.0,
        Part::Fault | Part::Requests | Part::Overhead | Part::Run | Part::Grep => 30.0,
        Part::Fairness => 22.0,
        Part::Scarce => 240.0,
    }
}
