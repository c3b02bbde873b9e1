//! Promotes until nothing is left to do, and has the kernel measure the result.

use std::time::{Duration, Instant};

use cowslip_sys::error::Result;

use super::{ProcessTally, Round, Session};
use crate::model::{Coverage, ProcessId};
use crate::policy::Reason;
use crate::promoter::Promoter;

/// After so many looks without actions, regions that come and go are not waited for.
const IDLE_LOOKS: u32 = 4;

impl Session {
    /// Looks and acts until nothing is left to do, the deadline is over, or the operator ends it. `progress`
    /// gets the number of a look's actions that are done, and their total. A dry run looks twice and does
    /// nothing.
    pub fn promote_until_done(
        &mut self,
        deadline: Instant,
        is_dry_run: bool,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<()> {
        let interval = Duration::from_millis(self.plan.settings.interval_ms);
        let splits = self.plan.settings.demote_below_percent > 0;
        let mut idle_looks = 0;
        let mut looks = 0;
        let mut put_off = 0;
        while !self.stops() {
            // Regions promoted here are not empty: content is read before that, once more in the end, and
            // again for splits that were put off.
            let looks_inside = splits && (looks < 2 || idle_looks == 1 || put_off > 0);
            let mut round = self.look(if looks_inside { u64::MAX } else { 0 })?;
            looks += 1;
            if is_dry_run && looks == 2 {
                break;
            }
            if !is_dry_run {
                self.act(&mut round, &mut progress)?;
            }
            put_off = if is_waiting(&round) { put_off.max(round.put_off) } else { round.put_off };
            idle_looks = if round.acts > 0 || put_off > 0 { 0 } else { idle_looks + 1 };
            if is_done(&round, idle_looks) || Instant::now() >= deadline {
                break;
            }
            self.wait(interval)?;
        }
        Ok(())
    }

    /// Has the kernel sum up huge pages before the first action.
    pub fn measure_before(&mut self) {
        self.measure(|tally, coverage| tally.before = Some(coverage));
    }

    /// Has the kernel sum up huge pages after the last action.
    pub fn measure_after(&mut self) {
        self.measure(|tally, coverage| tally.after = Some(coverage));
    }

    /// A target that ends before this has no sum.
    fn measure(&mut self, mut keep: impl FnMut(&mut ProcessTally, Coverage)) {
        for (process, name, coverage) in sums(&self.promoter) {
            let tally = self.tally.processes.entry(process).or_default();
            tally.name = name;
            match coverage {
                Some(coverage) => keep(tally, coverage),
                None => tally.has_ended = true,
            }
        }
    }
}

/// True while actions are put off.
fn is_waiting(round: &Round) -> bool {
    round.decisions.iter().any(|decision| decision.reason == Reason::BackingOff)
}

/// True if nothing that may still change is waited for.
fn is_done(round: &Round, idle_looks: u32) -> bool {
    let has = |wanted: &[Reason]| {
        round.decisions.iter().any(|decision| wanted.contains(&decision.reason))
    };
    let soon = [Reason::FirstLook, Reason::JustReleased, Reason::RetryLater, Reason::Filling];
    let later = [Reason::BackingOff, Reason::StallBudget, Reason::CpuBudget, Reason::Pressure];
    idle_looks > 0 && !has(&later) && (!has(&soon) || idle_looks >= IDLE_LOOKS)
}

fn sums(promoter: &Promoter) -> Vec<(ProcessId, String, Option<Coverage>)> {
    promoter
        .targets()
        .map(|target| (target.id(), target.name().to_owned(), target.coverage().ok()))
        .collect()
}
