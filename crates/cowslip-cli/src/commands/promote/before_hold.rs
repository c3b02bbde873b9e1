//! `--promote` of the commands that hold a program: a fork takes longest for memory on small pages.

use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};

use cowslip_process::{Lack, look};
use cowslip_promote::percent;
use cowslip_promote::session::Session;
use cowslip_report::{Progress, units};
use cowslip_sys::procfs::{Policy, Thp};

use super::operator::Log;
use super::plan;
use crate::exit::{Failure, NO};

/// A fork does not need every region.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes the memory of a process huge, as `cowslip promote --once` does, and says how far that came.
pub(crate) fn before_hold(pid: i32) {
    // The command says why one cannot be held.
    if look(pid).map_or(true, |plan| plan.lacks().iter().any(Lack::is_fatal)) {
        return;
    }
    // A session makes its thread the least urgent one: the hold is for another.
    let promoted = thread::scope(|scope| scope.spawn(|| promote(pid)).join());
    match promoted.unwrap_or_else(|panic| resume_unwind(panic)) {
        Ok(summary) => errln!("cowslip: {summary}"),
        Err(failure) => errln!("cowslip: not promoted: {failure}"),
    }
}

fn promote(pid: i32) -> Result<String, Failure> {
    let began = Instant::now();
    let mut session = Session::start(plan::before_hold(pid)?, Box::new(Log))?;
    let mut progress = Progress::new();
    progress.phase(&format!("promoting process {pid}"));
    session.promote_until_done(began + PATIENCE, false, |done, all| {
        progress.set(done as u64, all as u64);
    })?;
    progress.finish();
    session.measure_after();
    let tally = session.tally();
    let after = tally.coverage(|process| process.after);
    let promotions: u64 = tally.processes.values().map(|process| process.promotions).sum();
    let is_off = || Thp::read().map_or(true, |thp| thp.enabled == Policy::Never);
    let fitting = after.fitting_ratio();
    if promotions == 0 && fitting.is_none_or(|ratio| ratio == 0.0) {
        let why = match fitting {
            Some(_) if is_off() => {
                "huge pages are off (/sys/kernel/mm/transparent_hugepage/enabled)"
            }
            Some(_) => "none of its memory could be made huge",
            None => "none of its memory has room for a huge page",
        };
        return Err(Failure::new(NO, why));
    }
    let stall = tally.processes.values().map(|process| process.longest_stall_ns).max();
    Ok(format!(
        "promoted process {pid} in {:.1} s: {after} of its anonymous memory is huge, {} of the memory that fits; longest stall {}",
        began.elapsed().as_secs_f64(),
        percent(fitting),
        units::human(stall.unwrap_or(0) as f64, "ns"),
    ))
}
