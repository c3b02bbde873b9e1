//! The whole cycle of a save: its effect on the clients of an unmodified Redis or Valkey, and its cost to the server,
//! from before the fork until memory is as it was.
//!
//! ```text
//!   load      ──────────────────────────────────────────────────────────────────────▸
//!   server             BGSAVE ├── child saves ──┤
//!   phases    ├── before ─────┼──── during ─────┼─ 0-1 s ─┼──────── 1-5 s ─────────┤
//! ```
//! The ways to run a server take turns in random order. Each turn saves once to warm up, and once to measure. Clients
//! and server share the processors, because a machine for clients alone is not available everywhere.

mod cycle;
mod fleet;
mod pages;
mod promises;
mod rows;
mod workload;

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use cowslip::units::ByteCount;
use cowslip_sys::process;

use super::demo::redis;
use super::demo::redis::value::Random;
use super::error::{Error, Result};
use super::{Bench, GIB, Options, parts};
use crate::program;
use fleet::{Fleet, Kind};
use pages::System;

pub(crate) use promises::PROMISES;
pub use workload::Part;

/// The default of `redis-benchmark`.
const CLIENTS: usize = 50;
/// The servers to run, and the prefixes of their rows. Valkey up to 9.1 saves by a fork; the forkless save, a rival, comes
/// with 9.2 (`default-bgsave-method`).
const PROGRAMS: [(&str, &str); 2] = [("redis-server", ""), ("valkey-server", "valkey ")];
const MOST_ROUNDS: u32 = 5;

/// The largest server by default.
pub fn default_size(full: bool) -> ByteCount {
    ByteCount(if full { 4 * GIB } else { GIB })
}

/// Runs the parts of `only`, or all, and adds their results to the report, even if it is interrupted.
///
/// # Errors
/// [`Error::Interrupted`], or [`Error::Failed`] if there is no server to run. Any other failure of a part is a note of
/// the report.
pub fn run(options: &Options, only: &[Part], bench: &mut Bench<'_>) -> Result<()> {
    let full = bench.clock.is_full();
    let programs = programs(full, bench)?;
    let sizes = match full && options.size.0 > GIB {
        true => vec![GIB, options.size.0],
        false => vec![options.size.0],
    };
    let cowslip = program::cowslip()?;
    let seed = process::now_ns();
    for (name, value) in [
        ("clients", CLIENTS as u64),
        ("paced_per_second", workload::PACED.into()),
        ("order_seed", seed),
    ] {
        bench.report.params.insert(name.to_owned(), value.into());
    }
    let system = System::hold();
    let order = Random(seed);
    let fleet = RefCell::new(Fleet::new(cowslip, &system, order));
    let is_short = only.is_empty() && !full;
    let only = if is_short { &Part::SHORT[..] } else { only };
    let measured = parts::each(bench, only, |part, bench| {
        let mut fleet = fleet.borrow_mut();
        for (i, &(program, prefix)) in programs.iter().enumerate() {
            for &size in &sizes {
                let share = 1.0 / (programs.len() - i) as f64;
                let kind =
                    Kind { program: Path::new(program), size, value_bytes: part.value_bytes() };
                fleet.measure(
                    &kind,
                    (part, prefix),
                    share,
                    options.runs.min(MOST_ROUNDS),
                    bench,
                )?;
            }
        }
        Ok(())
    });
    if is_short {
        let note = "small values, Zipf's law, what the service thread takes, 4 GiB and Valkey: with --full";
        bench.report.notes.push(note.to_owned());
    }
    promises::push(bench.report);
    measured
}

/// The servers that are installed. Adds a row for each that is not.
fn programs(full: bool, bench: &mut Bench<'_>) -> Result<Vec<(&'static str, &'static str)>> {
    let mut found = Vec::new();
    let mut why = String::new();
    for (program, prefix) in PROGRAMS.into_iter().take(if full { 2 } else { 1 }) {
        match redis::version(&PathBuf::from(program)) {
            Ok(version) => {
                let name = format!("{}_version", program.trim_end_matches("-server"));
                bench.report.params.insert(name, version.into());
                found.push((program, prefix));
            }
            Err(error) => {
                why = error.to_string();
                bench.report.skip(program, rows::REQUESTS, why.as_str());
            }
        }
    }
    if found.is_empty() { Err(Error::Failed(why)) } else { Ok(found) }
}
