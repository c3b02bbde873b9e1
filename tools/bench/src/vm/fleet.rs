//! A fleet: a hundred monitors, each a process with a machine of its own, whose RAM is a clone of one image that a server
//! has in memory.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use cowslip::image::Image;
use cowslip::units::ByteCount;
use cowslip_vm::{GuestRam, GuestTemplate};

use super::COWSLIP;
use super::clones::own_bytes;
use super::guest::{FIRST, Guest, PAGE, write_page};
use super::lazy::{Server, save};
use crate::bench::Bench;
use crate::error::Result;
use crate::host::warm;
use crate::program::{self, Folder};
use crate::report::{Latencies, Row};
use crate::restore::{Worker, tell};

const MACHINES: usize = 100;
/// Time from the start of a monitor to a processor that may run.
const START: &str = "fleet_start";
/// Time in which that writes its first stretch.
const STRETCH: &str = "fleet_first_stretch";
/// Memory of a monitor's own.
const MEMORY: &str = "fleet_memory";
/// One page in so many is written.
const WRITTEN: u64 = 100;

/// The image of the machine.
#[derive(clap::Args, Debug)]
pub struct MonitorArgs {
    image: PathBuf,
    /// The server that has it in memory
    socket: PathBuf,
}

/// `cowslip-bench fleet-monitor`: reports each step, and does the next when it is told to.
///
/// # Errors
/// [`crate::Error::Failed`] if there is no such server, or KVM fails.
pub fn monitor(args: &MonitorArgs) -> Result<()> {
    let template = GuestTemplate::via(&args.socket, &Image::open(&args.image)?)?;
    let clone = GuestRam::clone_of(&template)?;
    let mut guest = Guest::new(clone.memory())?;
    tell("made")?;
    guest.stretch()?;
    tell("ran")?;
    let bytes = guest.ram_bytes();
    let step = (WRITTEN * PAGE) as usize;
    (FIRST..bytes).step_by(step).for_each(|at| write_page(&guest.ram, at));
    tell("wrote")
}

pub(super) fn measure(bench: &mut Bench<'_>, bytes: u64) -> Result<()> {
    bench.progress.phase("a fleet of machines");
    let folder = Folder::new("fleet")?;
    let path = folder.path().join("guest.cowslip");
    save(bytes, &path)?;
    let server = Server::start(&folder, &path, &Image::open(&path)?)?;
    // Memory that the machines write, and as much for their monitors.
    warm(ByteCount(MACHINES as u64 * (64 << 20)), bench.stop)?;

    let (mut machines, mut starts) = (Vec::new(), Latencies::new());
    for number in 0..MACHINES {
        bench.stop.check()?;
        bench.progress.set(number as u64, MACHINES as u64);
        let began = Instant::now();
        let mut command = Command::new(program::this()?);
        command.arg("fleet-monitor").arg(&path).arg(&server.socket);
        let mut machine = Worker::start(&mut command)?;
        machine.expect("made")?;
        starts.record(began.elapsed());
        machines.push(machine);
    }
    starts.push(bench.report, COWSLIP, START, Some(bytes), None);
    push_memory(bench, bytes, &machines, "at first")?;

    let mut stretches = Latencies::new();
    for machine in &mut machines {
        let began = Instant::now();
        machine.go_on()?;
        machine.expect("ran")?;
        stretches.record(began.elapsed());
    }
    stretches.push(bench.report, COWSLIP, STRETCH, Some(bytes), None);
    push_memory(bench, bytes, &machines, "a stretch written")?;
    for machine in &mut machines {
        machine.go_on()?;
        machine.expect("wrote")?;
    }
    push_memory(bench, bytes, &machines, "a stretch and 1 % written")
}

/// Pages that are the monitors' alone, and their page tables. Those that KVM has for the processors are not counted.
fn push_memory(
    bench: &mut Bench<'_>,
    bytes: u64,
    machines: &[Worker],
    variant: &str,
) -> Result<()> {
    let own = machines.iter().map(|machine| own_bytes(machine.pid()));
    let each = own.sum::<Result<u64>>()? as f64 / MACHINES as f64;
    let row = Row::new(COWSLIP, MEMORY, "mean", each, "bytes").size_bytes(bytes);
    bench.report.row(row.variant(variant).n(MACHINES as u64));
    Ok(())
}
