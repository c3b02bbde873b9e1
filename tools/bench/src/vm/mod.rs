//! Guest memory: the RAM of a virtual machine, frozen while it runs, cloned, rolled back and restored lazily.
//!
//! The guest is a processor of KVM that writes all of its pages in order, or a thread that does the same where there is
//! no KVM; the parameter `guest` says which. The rival of a freeze is userfaultfd's write protection of the same memory
//! on base pages, as monitors that branch a running machine do it; that of a lazy restore is a mapping of a tmpfs.

mod clones;
mod fleet;
mod freeze;
mod guest;
mod lazy;
mod promises;
mod roll_back;
mod running;

use std::time::Duration;

use clap::ValueEnum;
use cowslip::units::ByteCount;
use cowslip_vm::GuestRam;
use vm_memory::GuestAddress;

use super::error::{Error, Result};
use super::{Bench, Options, parts};

pub use fleet::{MonitorArgs, monitor};
pub(crate) use promises::PROMISES;

/// RAM of the guest.
pub const SIZE: ByteCount = ByteCount::gib(1);
/// Longer than anything that works.
const PATIENCE: Duration = Duration::from_secs(60);

const COWSLIP: &str = "cowslip";

/// A measurement that can be selected.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Time that a processor is held by freezes, beside write protection; views, templates, and huge pages after ten
    Freeze,
    /// A hundred clones: the time to make them, their memory at first and once each wrote 1 %
    Clones,
    /// Roll backs of a tenth of the RAM
    RollBack,
    /// Restores from an image, from a server of it, and by a handler of page faults: the first page, and all, beside a
    /// mapping of a tmpfs
    Lazy,
    /// A hundred monitors with a machine each: the time of a start, the memory of each at first and once it wrote 1 %
    Fleet,
}

/// Runs the parts of `only`, or all, and adds their results to the report, even if it is interrupted.
///
/// # Errors
/// [`crate::Error::Interrupted`]. Any other failure of a part is a note of the report.
pub fn run(options: &Options, only: &[Part], bench: &mut Bench<'_>) -> Result<()> {
    let kind = if guest::has_kvm() { "a processor of KVM" } else { "a thread" };
    bench.report.params.insert("guest".to_owned(), kind.into());
    let bytes = options.working_bytes() as u64;
    let measured = parts::weighed(bench, only, weight, |part, bench| match part {
        Part::Freeze => freeze::measure(bench, bytes),
        Part::Clones => clones::measure(bench, bytes),
        Part::RollBack => roll_back::measure(bench, bytes, options.runs),
        Part::Lazy => lazy::measure(bench, bytes, options.runs),
        Part::Fleet => fleet::measure(bench, bytes),
    });
    promises::push(bench.report, bytes);
    measured
}

/// The time of a part relative to the others.
fn weight(part: Part) -> f64 {
    if part == Part::Freeze { 4.0 } else { 1.0 }
}

/// Zeroed RAM of a guest.
fn ram(bytes: u64) -> Result<GuestRam> {
    Ok(GuestRam::new(&[(GuestAddress(0), bytes)])?)
}

/// Waits until all RAM is live.
fn wait_live(ram: &GuestRam) -> Result<()> {
    if ram.arena().wait_live(PATIENCE) {
        return Ok(());
    }
    let frozen = ram.arena().metrics().frozen_chunks;
    Err(Error::Failed(format!("{frozen} chunks were not thawed within {PATIENCE:?}")))
}
