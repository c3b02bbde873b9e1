//! The measurements of `cowslip bench` and the saves of `cowslip demo`: Cowslip beside the best baselines, all in one run.
//!
//! * [`cow`], [`fork`], [`save`], [`restore`], [`bloat`], [`trace`]: what `cowslip bench` of that name measures, in parts that can
//!   be asked for by themselves.
//! * [`host`]: what the host of a virtual machine does to all of them.
//! * [`demo`]: an unmodified Redis and a store of our own, saved under write load.
//!
//! Everything adds rows to a [`cowslip_report::Report`]. A baseline that fails leaves with a skipped row, a part that
//! fails leaves a note, and the others go on.
//!
//! The program that calls this must be the `cowslip` command: to measure other processes a bench starts its own
//! program again, as `cowslip run`, `status`, `promote`, `trace`, `bench restore-process` ([`restore::process`]) and
//! `bench bloat-process` ([`bloat::process`]).
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use cowslip::units::ByteCount;
//! use cowslip_bench::{Bench, Clock, Interrupt, Options, cow};
//! use cowslip_report::{Progress, Report, table};
//!
//! let options = Options { size: ByteCount::gib(1), budget: ByteCount::gib(4), runs: 9 };
//! let mut report = Report::new("cow", serde_json::Map::new());
//! let mut bench = Bench {
//!     report: &mut report,
//!     progress: &mut Progress::new(),
//!     stop: &Interrupt::default(),
//!     libraries: &Err("not looked for".to_owned()),
//!     clock: Clock::new(Some(Duration::from_secs(240))),
//! };
//! cow::run(&options, &[cow::Part::Pauses], &mut bench)?;
//! table::print(&report)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The options are plain structs. What names a part on the command line derives clap's `ValueEnum`: its documentation
//! is the help of the command, and there is no second list.

// What the benches share:
// * `memory`: memory of each kind, written and read through atomic words.
// * `mechanisms`: the ways to snapshot, behind one trait.
// * `interleaved`: several mechanisms measured in turns.
// * `host`: what the host does meanwhile; memory is warmed just before each measurement.
// * `clock`: how long each part may take.
// * `promise`: what is promised of the figures.
// * `parts`: what can be asked for by itself.
// * `program`: programs that know nothing of Cowslip, run in several ways.

pub mod bloat;
pub mod cow;
pub mod demo;
pub mod fork;
pub mod host;
pub mod restore;
pub mod save;
pub mod trace;

mod bench;
mod child;
mod clock;
mod error;
mod interleaved;
mod interrupt;
mod mechanisms;
mod memory;
mod parts;
mod pool;
mod program;
mod promise;
mod rows;
mod settings;
mod smaps;
mod uffd_messages;

use cowslip::units::{ByteCount, CHUNK_BYTES};

pub use bench::Bench;
pub use clock::Clock;
pub use error::Error;
pub use interrupt::Interrupt;
pub use program::Libraries;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The largest memory to freeze.
    pub size: ByteCount,
    /// Memory that all mechanisms together may use.
    pub budget: ByteCount,
    /// Repetitions of each measurement of a pause.
    pub runs: u32,
}

impl Options {
    /// The memory of the measurements that are not about size: 1 GiB, if that much may be frozen.
    fn working_bytes(&self) -> usize {
        let bytes = self.size.0.min(GIB) as usize;
        (bytes - bytes % CHUNK_BYTES).max(CHUNK_BYTES)
    }
}
