//! Memory of programs under `cowslip run`, beside the same natively: memory that is used sparsely, and a Redis with
//! most of its values deleted.

use std::time::Duration;

use crate::report::Row;

use super::group::Group;
use super::line_protocol::LineProtocol;
use super::settings::{Settings, System};
use super::store::Store;
use super::target::sleep;
use super::{BYTES_CHANGED, Bench, MIB, Options, Result};
use crate::demo::redis::setup::ServerSetup;
use crate::error::during;
use crate::program::{self, Folder, Launch};

pub(super) const NATIVE: &str = "native";
pub(super) const RUN: &str = "cowslip-run";
/// Memory that a program's control group is charged with, without the page cache.
pub(super) const MEMORY: &str = "program_memory";
pub(super) const SPARSE: &str = "a page in each 2 MiB";
pub(super) const DELETED: &str = "Redis, 70 % deleted";

/// Bytes of address space for each byte of memory to work on.
const SPARSENESS: u64 = 8;
const VALUE_BYTES: usize = 8000;
const DELETED_PERCENT: u64 = 70;
/// Memory that was given back may leave a little later.
const SETTLING: Duration = Duration::from_secs(7);

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options, system: &System) -> Result<()> {
    // Huge pages on request: natively neither program requests any.
    system.set(&Settings::ON_REQUEST)?;
    let bytes = options.working_bytes() as u64;
    let folder = Folder::new("bench-programs")?;
    let program = folder.compile(
        "sparse",
        include_str!("sparse.c"),
        &[],
        "apt-get install gcc",
        bench.stop,
    )?;
    for (name, launch) in [(NATIVE, Launch::Stock), (RUN, Launch::Cowslip)] {
        bench.progress.phase(&format!("{SPARSE}: {name}"));
        let mut command = launch.command(&program)?;
        command.arg((bytes * SPARSENESS / MIB).to_string());
        let mut running = LineProtocol::start(&mut command)?;
        let group = Group::new()?;
        group.add(running.pid())?;
        running.ask("begin")?;
        let answer = running.answer(bench.stop)?;
        let wrong = answer.parse::<f64>().map_err(during("read an answer"))?;
        sleep(SETTLING / 2, bench.stop)?;
        push(bench, name, SPARSE, bytes, &group, wrong)?;
    }
    let command = program::cowslip()?;
    for (name, setup) in [(NATIVE, ServerSetup::stock_4k()), (RUN, ServerSetup::cowslip(&command))]
    {
        bench.progress.phase(&format!("{DELETED}: {name}"));
        let mut store = Store::new(&setup, VALUE_BYTES, bench.stop)?;
        let group = Group::new()?;
        group.add(store.pid())?;
        store.fill(bytes as usize / 2 / VALUE_BYTES, bench.stop)?;
        store.delete(DELETED_PERCENT, bench.stop)?;
        store.purge()?;
        sleep(SETTLING, bench.stop)?;
        let changed = store.changed_bytes(bench.stop)? as f64;
        push(bench, name, DELETED, bytes, &group, changed)?;
    }
    system.set(&Settings::NEVER)
}

fn push(
    bench: &mut Bench<'_>,
    name: &str,
    variant: &str,
    bytes: u64,
    group: &Group,
    changed_bytes: f64,
) -> Result<()> {
    let held = group.bytes_without_files()? as f64;
    for (metric, value) in [(MEMORY, held), (BYTES_CHANGED, changed_bytes)] {
        let row = Row::new(name, metric, "value", value, "bytes");
        bench.report.row(row.size_bytes(bytes).variant(variant));
    }
    Ok(())
}
