//! A hundred clones of one guest: the time to make them, and their memory.

use std::fs;
use std::time::Instant;

use cowslip::units::ByteCount;
use cowslip_sys::procfs::field_bytes;
use cowslip_vm::GuestRam;

use super::guest::{FIRST, Guest, PAGE, write_page, wrong_in};
use super::{COWSLIP, PATIENCE};
use crate::bench::Bench;
use crate::error::{Error, Result, during};
use crate::host::warm;
use crate::report::{Latencies, Row};

const CLONES: usize = 100;
/// Time to make all of them.
pub(super) const ALL: &str = "hundred_clones";
/// Time to make one.
const ONE: &str = "clone";
/// Time to make one with a machine and a processor, until that has written its first stretch.
const MACHINE: &str = "clone_first_stretch";
/// Pages of a clone's own, and its page tables.
pub(super) const MEMORY: &str = "clone_memory";
pub(super) const AT_FIRST: &str = "at first";
const WRITTEN: &str = "1 % written";
/// Clones that run, one after the other.
const RUNNING: usize = 20;

pub(super) fn measure(bench: &mut Bench<'_>, bytes: u64) -> Result<()> {
    bench.progress.phase("clones of a guest");
    let ram = super::ram(bytes)?;
    let mut guest = Guest::new(ram.memory())?;
    guest.pass()?;
    guest.stretch()?;
    let registers = guest.registers()?;
    warm(ByteCount(2 * bytes), bench.stop)?;
    let template = ram.snapshot(PATIENCE)?.into_template()?;

    let before = own_bytes(std::process::id())?;
    let (mut clones, mut one) = (Vec::new(), Latencies::new());
    let began = Instant::now();
    for _ in 0..CLONES {
        let began = Instant::now();
        clones.push(GuestRam::clone_of(&template)?);
        one.record(began.elapsed());
    }
    let row = Row::new(COWSLIP, ALL, "value", began.elapsed().as_nanos() as f64, "ns");
    bench.report.row(row.size_bytes(bytes));
    one.push(bench.report, COWSLIP, ONE, Some(bytes), None);
    push_memory(bench, bytes, before, AT_FIRST)?;

    for clone in &clones {
        bench.stop.check()?;
        let memory = clone.memory();
        let step = 100 * PAGE as usize;
        (FIRST..bytes).step_by(step).for_each(|at| write_page(&memory, at));
    }
    push_memory(bench, bytes, before, WRITTEN)?;

    let mut machines = Latencies::new();
    drop(clones);
    for _ in 0..RUNNING {
        bench.stop.check()?;
        let began = Instant::now();
        let clone = GuestRam::clone_of(&template)?;
        let mut copy = Guest::on(clone.memory())?;
        copy.set(&registers)?;
        copy.stretch()?;
        machines.record(began.elapsed());
        copy.pass()?;
        if wrong_in(&copy.ram)? > 0 {
            return Err(Error::Failed("a clone is not of one instant".to_owned()));
        }
    }
    machines.push(bench.report, COWSLIP, MACHINE, Some(bytes), None);
    Ok(())
}

fn push_memory(bench: &mut Bench<'_>, bytes: u64, before: u64, variant: &str) -> Result<()> {
    let each = (own_bytes(std::process::id())? - before) as f64 / CLONES as f64;
    let row = Row::new(COWSLIP, MEMORY, "mean", each, "bytes").size_bytes(bytes);
    bench.report.row(row.variant(variant).n(CLONES as u64));
    Ok(())
}

/// Pages that are a process' alone, and its page tables.
pub(super) fn own_bytes(pid: u32) -> Result<u64> {
    let read = |name: &str| {
        let path = format!("/proc/{pid}/{name}");
        fs::read_to_string(&path).map_err(during(path))
    };
    let (status, memory) = (read("status")?, read("smaps_rollup")?);
    let all = [field_bytes(&status, "VmPTE"), field_bytes(&memory, "Anonymous")];
    Ok(all.into_iter().flatten().sum())
}
