//! Benches and the demo: Cowslip beside the best baselines, all in one run.
//!
//! * [`cow`], [`fork`], [`save`], [`restore`], [`bloat`], [`trace`], [`process`]: the measurements of the command's bench of that
//!   name, in parts that can be selected.
//! * [`host`]: effects of a virtual machine's host on all of them.
//! * [`report`]: the results, as a table, a document or a page.
//! * [`demo`]: an unmodified Redis, saved under write load.
//!
//! All of them add rows to a [`report::Report`]. A baseline that fails leaves with a skipped row, a part that
//! fails leaves a note, and the others go on.
//!
//! Beside the program that calls this lie `cowslip` and its libraries. To measure other processes a bench starts its own
//! program again, as `restore-process` ([`restore::process`]), `restore-worker` or `bloat-process` ([`bloat::process`]).
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use cowslip::units::ByteCount;
//! use cowslip_bench::report::{Report, table};
//! use cowslip_bench::{Bench, Clock, Interrupt, Options, cow};
//! use cowslip_report::Progress;
//!
//! let options = Options { size: ByteCount::gib(1), budget: ByteCount::gib(4), runs: 9 };
//! let mut report = Report::new("cow", serde_json::Map::new());
//! let mut bench = Bench {
//!     report: &mut report,
//!     progress: &mut Progress::new(),
//!     stop: &Interrupt::default(),
//!     clock: Clock::new(Some(Duration::from_secs(240))),
//! };
//! cow::run(&options, &[cow::Part::Pauses], &mut bench)?;
//! table::print(&report)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The options are plain structs. Types that name a part on the command line derive clap's `ValueEnum`: their
//! documentation is the help of the command, and there is no second list.

// Modules that the benches share:
// * `memory`: memory of each kind, written and read through atomic words.
// * `mechanisms`: the ways to snapshot, behind one trait.
// * `interleaved`: several mechanisms measured in turns.
// * `host`: the host's state meanwhile; memory is warmed just before each measurement.
// * `clock`: the time that each part may take.
// * `promise`: the promised bounds of the figures.
// * `parts`: the parts of a bench that can be selected.
// * `program`: programs that know nothing of Cowslip, run in several ways.

pub mod bloat;
pub mod cow;
pub mod demo;
pub mod fork;
pub mod host;
pub mod process;
pub mod report;
pub mod restore;
pub mod save;
pub mod trace;
pub mod vm;

mod bench;
mod child;
mod clock;
mod criu;
mod error;
mod interleaved;
mod interrupt;
mod mechanisms;
mod memory;
mod parts;
mod pool;
mod program;
mod promise;
mod promises;
mod rows;
mod settings;
mod smaps;
mod uffd_messages;

use cowslip::units::{ByteCount, CHUNK_BYTES};

pub use bench::Bench;
pub use clock::Clock;
pub use error::Error;
pub use interrupt::Interrupt;
pub use program::cowslip;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Options of a run.
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
    /// Memory of the measurements that do not vary its size: 1 GiB, or less if only less may be frozen.
    fn working_bytes(&self) -> usize {
        let bytes = self.size.0.min(GIB) as usize;
        (bytes - bytes % CHUNK_BYTES).max(CHUNK_BYTES)
    }
}
