//! Freezes of a guest that writes, beside write protection of the same memory.

use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use cowslip::units::ByteCount;
use cowslip_vm::{GuestRam, Snapshot};
use vm_memory::GuestAddress;

use super::guest::{Guest, wrong_words};
use super::running::{Running, while_running};
use super::{COWSLIP, PATIENCE, wait_live};
use crate::bench::Bench;
use crate::error::{Error, Result, during};
use crate::host::warm;
use crate::mechanisms::{Mechanism, UffdWp};
use crate::memory::Anonymous;
use crate::report::{Latencies, Row};
use crate::rows::push_durations;
use crate::smaps;

pub(super) const WRITE_PROTECTION: &str = "uffd-wp";
/// Time for which the processor stands still: its registers are read, and the RAM is frozen.
pub(super) const HELD: &str = "processor_held";
/// Time for which a processor that is not stopped waits, if it touches RAM.
const STEP: &str = "freeze_step";
/// While memory thaws of the freeze before, once the snapshot is prepared.
const IN_THAW: &str = "in a thaw";
/// Time to make a template of a snapshot while the guest runs.
pub(super) const TEMPLATE: &str = "template_of_running";
pub(super) const WRONG: &str = "wrong_views";
/// The share of the RAM on huge mappings after [`TEN`] snapshots.
pub(super) const HUGE: &str = "huge_share_after_ten";
const TEN: u64 = 10;
const LEAST: u32 = 20;
const MOST: u32 = 100;
const MOST_TEMPLATES: u32 = 40;
/// Written between two freezes, and between a freeze and its template.
const WRITTEN: u64 = 64 << 20;

pub(super) fn measure(bench: &mut Bench<'_>, bytes: u64) -> Result<()> {
    warm(ByteCount(2 * bytes), bench.stop)?;
    frozen(bench, bytes)?;
    protected(bench, bytes)
}

fn frozen(bench: &mut Bench<'_>, bytes: u64) -> Result<()> {
    bench.progress.phase("freezes of a guest that writes");
    let ram = super::ram(bytes)?;
    let mut guest = Guest::new(ram.memory())?;
    guest.pass()?;
    let (send, taken) = mpsc::channel();
    let mut take = || {
        let snapshot = ram.snapshot(PATIENCE)?;
        send.send(snapshot).map_err(during("hand a snapshot over"))
    };
    let stop = bench.stop;
    while_running(&mut guest, &mut take, stop, |running| {
        let subject = Subject { ram: &ram, running, taken: &taken, bytes };
        subject.freezes(bench)?;
        subject.templates(bench)
    })
}

/// A guest that runs, and its snapshots.
struct Subject<'a> {
    ram: &'a GuestRam,
    running: &'a Running<'a>,
    taken: &'a Receiver<Snapshot>,
    bytes: u64,
}

impl Subject<'_> {
    fn freeze(&self) -> Result<(Duration, Snapshot)> {
        let held = self.running.hold()?;
        let snapshot = self.taken.recv().map_err(during("get a snapshot"))?;
        Ok((held, snapshot))
    }

    fn freezes(&self, bench: &mut Bench<'_>) -> Result<()> {
        let (mut views, mut wrong) = (0, 0);
        for (variant, share) in [(None, 0.4), (Some(IN_THAW), 0.4)] {
            let (mut held, mut step) = (Latencies::new(), Latencies::new());
            for round in bench.clock.rounds(share, LEAST, MOST) {
                bench.progress.set(u64::from(round), u64::from(MOST));
                self.running.write(WRITTEN)?;
                if variant.is_some() {
                    self.ram.prepare_snapshot()?;
                }
                let (time, snapshot) = self.freeze()?;
                held.record(time);
                step.record_ns(self.ram.arena().metrics().last_freeze_ns);
                self.running.write(WRITTEN)?;
                wrong += u64::from(wrong_in_view(&snapshot, self.bytes)? > 0);
                views += 1;
                drop(snapshot);
                if variant.is_none() {
                    wait_live(self.ram)?;
                }
                if views == TEN {
                    self.push_huge(bench)?;
                }
            }
            held.push(bench.report, COWSLIP, HELD, Some(self.bytes), variant);
            step.push(bench.report, COWSLIP, STEP, Some(self.bytes), variant);
            wait_live(self.ram)?;
        }
        let row = Row::new(COWSLIP, WRONG, "value", wrong as f64, "count");
        bench.report.row(row.size_bytes(self.bytes).n(views));
        Ok(())
    }

    /// All RAM is live.
    fn push_huge(&self, bench: &mut Bench<'_>) -> Result<()> {
        let range = self.ram.regions()[0].host;
        // The guest maps what it writes.
        self.running.write(self.bytes)?;
        let share = smaps::huge_mapped_bytes(range)? as f64 / range.len as f64;
        bench.report.row(Row::new(COWSLIP, HUGE, "value", share, "ratio").size_bytes(self.bytes));
        Ok(())
    }

    fn templates(&self, bench: &mut Bench<'_>) -> Result<()> {
        bench.progress.phase("templates of a guest that writes");
        let mut took = Vec::new();
        for _ in bench.clock.rounds(0.8, LEAST, MOST_TEMPLATES) {
            let (_, snapshot) = self.freeze()?;
            self.running.write(WRITTEN)?;
            let began = Instant::now();
            let template = snapshot.into_template()?;
            took.push(began.elapsed().as_nanos() as f64);
            drop(template);
            wait_live(self.ram)?;
        }
        let row = Row::new(COWSLIP, TEMPLATE, "", 0.0, "ns").size_bytes(self.bytes);
        push_durations(bench.report, &row, &took);
        Ok(())
    }
}

fn wrong_in_view(snapshot: &Snapshot, bytes: u64) -> Result<u64> {
    wrong_words(bytes, |at| {
        let mut word = [0; 4];
        snapshot.read(&mut word, GuestAddress(at))?;
        Ok(u32::from_le_bytes(word))
    })
}

/// Write protection of all pages, which a thread ends page by page as they are written.
fn protected(bench: &mut Bench<'_>, bytes: u64) -> Result<()> {
    bench.progress.phase("write protection of a guest that writes");
    let mut mechanism = match UffdWp::new(bytes as usize, Anonymous::Base) {
        Ok(made) => made,
        Err(Error::Failed(why)) => {
            bench.report.row(Row::skipped(WRITE_PROTECTION, HELD, why).size_bytes(bytes));
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let memory = mechanism.shared_memory();
    let mut guest = Guest::new(&*memory)?;
    guest.pass()?;
    let mut protect = || mechanism.snapshot().map(drop);
    let stop = bench.stop;
    while_running(&mut guest, &mut protect, stop, |running| {
        let mut held = Latencies::new();
        for round in bench.clock.rounds(0.9, LEAST, MOST) {
            bench.progress.set(u64::from(round), u64::from(MOST));
            held.record(running.hold()?);
            running.write(WRITTEN)?;
        }
        held.push(bench.report, WRITE_PROTECTION, HELD, Some(bytes), None);
        Ok(())
    })
}
