//! The part of a process' dense memory that a measurement makes huge and splits in turns.

use std::time::{Duration, Instant};

use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::target::Refusal;
use cowslip_sys::units::CHUNK_BYTES;
use cowslip_sys::{Errno, process};

use crate::model::{
    Action, ActionOutcome, Effect, ProcessId, REGION_PAGES, Settings, Unclear, added_bytes,
};
use crate::policy::{Decision, Reason};
use crate::session::{Session, check_permitted};

/// The part of the sample that has to be in the wanted state.
const MOSTLY_PERCENT: usize = 90;
/// A child that shares the memory may end in this time.
const PATIENCE: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(200);

/// Regions of a process.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) process: ProcessId,
    regions: Vec<Place>,
    /// Fewer pages in use than this are not made huge.
    least_pages: u16,
    lacked_room: bool,
}

#[derive(Debug)]
struct Place {
    address: u64,
    /// Its pages in use at first.
    pages: u16,
    /// By the last action.
    is_huge: bool,
}

impl Sample {
    /// These regions, which are of one process and on base pages, in an order by chance.
    pub(super) fn from_regions(mut wanted: Vec<Decision>, settings: &Settings) -> Self {
        fastrand::shuffle(&mut wanted);
        let percent = u32::from(settings.threshold_percent);
        let place = |decision: &Decision| Place {
            address: decision.address,
            pages: decision.pages,
            is_huge: false,
        };
        Self {
            process: wanted[0].process,
            regions: wanted.iter().map(place).collect(),
            least_pages: (u32::from(REGION_PAGES) * percent).div_ceil(100) as u16,
            lacked_room: false,
        }
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = u64> {
        self.regions.iter().map(|place| place.address)
    }

    pub(super) fn bytes(&self) -> u64 {
        (self.regions.len() * CHUNK_BYTES) as u64
    }

    /// Memory that its huge pages fill in.
    pub(super) fn added_bytes(&self) -> u64 {
        self.regions.iter().map(|place| added_bytes(place.pages)).sum()
    }

    /// Memory that is still to be filled in.
    pub(super) fn missing_bytes(&self) -> u64 {
        let small = self.regions.iter().filter(|place| !place.is_huge);
        small.map(|place| added_bytes(place.pages)).sum()
    }

    /// An error unless most of it is in the wanted state, with `huge` regions huge.
    pub(super) fn is_as_wanted(&self, is_huge: bool, huge: usize) -> Result<(), Unclear> {
        let all = self.regions.len();
        let right = if is_huge { huge } else { all - huge };
        match () {
            () if right * 100 >= all * MOSTLY_PERCENT => Ok(()),
            () if self.lacked_room => Err(Unclear::NoRoom),
            () => Err(Unclear::Disturbed),
        }
    }
}

impl Session {
    /// Makes the sample huge or splits it, no faster than the process bears; returns the number of actions. A region
    /// that has changed meanwhile, or that the kernel refuses, stays. Making it huge ends when the operator wants that;
    /// splitting it then does not rest any more.
    pub(super) fn turn(&mut self, sample: &mut Sample, is_huge: bool) -> Result<usize> {
        self.turn_until(sample, is_huge, None)
    }

    /// Makes as many regions huge as this time and the free huge pages allow: those are the sample from here on, unless
    /// too few are free. The change of the cost grows with the sample, and so does the time for each of its turns.
    pub(super) fn turn_some(
        &mut self,
        sample: &mut Sample,
        within: Duration,
        least: usize,
    ) -> Result<()> {
        let deadline = Instant::now() + within;
        self.turn_until(sample, true, Some(deadline))?;
        let huge = sample.regions.iter().filter(|place| place.is_huge).count();
        let is_scarce = sample.lacked_room && huge >= least;
        if is_scarce || (Instant::now() >= deadline && huge > 0) {
            sample.regions.retain(|place| place.is_huge);
            sample.lacked_room = false;
        }
        sample.regions.sort_by_key(|place| place.address);
        Ok(())
    }

    fn turn_until(
        &mut self,
        sample: &mut Sample,
        is_huge: bool,
        deadline: Option<Instant>,
    ) -> Result<usize> {
        let mut acts = 0;
        for index in 0..sample.regions.len() {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                break;
            }
            let Place { address, is_huge: was_huge, .. } = sample.regions[index];
            if was_huge == is_huge {
                continue;
            }
            let ready_ns = self.ready_ns.get(&sample.process).copied().unwrap_or(0);
            self.rest_until(ready_ns.max(self.rested_ns))?;
            if is_huge && self.stops() {
                break;
            }
            let (reason, pages) =
                if is_huge { (Reason::Full, sample.least_pages) } else { (Reason::Sparse, 0) };
            let decision = Decision { process: sample.process, address, pages, reason };
            let Some(outcome) = self.promoter.perform(&decision) else {
                sample.lacked_room = true;
                break;
            };
            check_alive(&outcome)?;
            self.did(&outcome)?;
            let is_refused = outcome.effect.lacks_huge_page();
            sample.lacked_room |= is_refused;
            if is_refused {
                break;
            }
            // A region that is not huge any more needs no split.
            let is_gone = outcome.effect == Effect::Overtaken && outcome.action == Action::Demote;
            if outcome.effect == Effect::Done || is_gone {
                sample.regions[index].is_huge = is_huge;
                acts += 1;
            }
        }
        Ok(acts)
    }

    /// Splits the sample again. While a child shares it, the kernel splits nothing: this waits for a while.
    pub(super) fn split_again(&mut self, sample: &mut Sample) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.turn(sample, false)?;
            let left = self.promoter.target(sample.process)?.huge_among(sample.addresses())?;
            if left.is_empty() || self.stops() || Instant::now() >= deadline {
                return Ok(());
            }
            for place in &mut sample.regions {
                place.is_huge = left.contains(&place.address);
            }
            self.rest_until(process::now_ns() + RETRY.as_nanos() as u64)?;
        }
    }

    /// Accounts for an action: the next one waits.
    fn did(&mut self, outcome: &ActionOutcome) -> Result<()> {
        self.tally.did(outcome);
        self.rest_after(outcome);
        check_permitted(outcome)
    }
}

fn check_alive(outcome: &ActionOutcome) -> Result<()> {
    match outcome.effect {
        Effect::Refused(errno)
            if Refusal::from_errno(Errno::from_raw_os_error(errno)) == Refusal::Vanished =>
        {
            Err(Error::new(ErrorKind::Vanished, "measure the process").because("it has ended"))
        }
        _ => Ok(()),
    }
}
