//! Looking, deciding and acting at a pace that the targets bear.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use cowslip::ErrorKind;
use cowslip::sys::scheduling::Scheduling;
use cowslip::sys::target::Refusal;
use cowslip::sys::{Errno, process};
use cowslip_promote::{
    Action, Decision, Effect, Event, Look, Outcome, ProcessId, Promoter, Recorder, Settings,
};

use super::config::Plan;
use super::heat::Heat;
use super::select::{self, Found};
use super::signals::Signals;
use super::tally::Tally;
use crate::exit::{self, DENIED, Failure};

const THIS_THREAD: i32 = 0;

/// A run of the promoter.
pub(super) struct Session {
    pub(super) plan: Plan,
    pub(super) promoter: Promoter,
    pub(super) tally: Tally,
    pub(super) signals: Signals,
    pub(super) heat: Heat,
    recorder: Option<Recorder<File>>,
    /// When each process may be held up again.
    ready_ns: BTreeMap<ProcessId, u64>,
    /// When the budget of processor time allows the next action.
    rested_ns: u64,
}

/// One look and what came of it.
pub(super) struct Round {
    pub(super) look: Look,
    pub(super) decisions: Vec<Decision>,
    pub(super) acts: usize,
    /// Actions that were put off, as one before them was slow or failed.
    pub(super) put_off: usize,
}

impl Session {
    pub(super) fn start(plan: Plan, record: Option<&Path>) -> Result<Self, Failure> {
        let mut promoter = Promoter::new(plan.settings.clone())?;
        let heat = Heat::choose(plan.heat);
        promoter.watch_heat(heat.source);
        select::named(&plan.rules)?.into_iter().for_each(|target| promoter.add(target));
        // Whoever wakes up on the processor that it looks from goes first. A refusal costs no more than that.
        let _ = Scheduling::of(THIS_THREAD).and_then(|it| it.patient().assign(THIS_THREAD));
        let signals = Signals::listen().map_err(exit::io("listen for signals"))?;
        let recorder = match record {
            Some(path) => {
                let file = File::create(path)
                    .map_err(exit::io(format_args!("create {}", path.display())))?;
                Some(Recorder::start(file, &plan.settings)?)
            }
            None => None,
        };
        let (tally, ready_ns) = (Tally::default(), BTreeMap::new());
        Ok(Self { plan, promoter, tally, signals, heat, recorder, ready_ns, rested_ns: 0 })
    }

    /// Looks for targets that were not asked for by number.
    pub(super) fn search(&mut self) -> Result<Found, Failure> {
        select::search(&self.plan.rules, &mut self.promoter)
    }

    /// Goes on with another plan, or as before if that is an error.
    pub(super) fn reload(&mut self, plan: Plan) -> Result<(), Failure> {
        let named = select::named(&plan.rules)?;
        self.promoter.set(plan.settings.clone())?;
        if plan.heat != self.plan.heat {
            self.heat = Heat::choose(plan.heat);
            self.promoter.watch_heat(self.heat.source);
        }
        self.promoter.clear();
        named.into_iter().for_each(|target| self.promoter.add(target));
        self.write(&Event::start(&plan.settings))?;
        self.plan = plan;
        Ok(())
    }

    /// Looks and decides; up to `content_ns` a target go into looking into huge pages.
    pub(super) fn look(&mut self, content_ns: u64) -> Result<Round, Failure> {
        let round = self.look_last(content_ns)?;
        self.write(&Event::Look(round.look.clone()))?;
        Ok(round)
    }

    /// The same after all is done: a record, where decisions are acted on, does without it.
    pub(super) fn look_last(&mut self, content_ns: u64) -> Result<Round, Failure> {
        let (look, gone) = self.promoter.look(content_ns)?;
        self.heat.follow(self.promoter.heat());
        for removed in gone {
            self.tally.end(removed.process);
            self.ready_ns.remove(&removed.process);
            if removed.error.kind() != ErrorKind::Vanished {
                let (name, pid) = (removed.name, removed.process.pid);
                eprintln!("cowslip: {name} ({pid}) is left alone: {}", removed.error);
            }
        }
        let decisions = self.promoter.decide(&look);
        self.tally.see(&look, &decisions, self.promoter.look_cpu_ns());
        Ok(Round { look, decisions, acts: 0, put_off: 0 })
    }

    /// Does what was decided, no faster than the targets bear; a signal to end ends it.
    pub(super) fn act(
        &mut self,
        round: &mut Round,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<(), Failure> {
        let wanted: Vec<&Decision> =
            round.decisions.iter().filter(|it| it.reason.action().is_some()).collect();
        let next_look_ns = round.look.at_ns + self.plan.settings.interval_ms * 1_000_000;
        for (done, decision) in wanted.iter().enumerate() {
            self.wait_for(decision, next_look_ns)?;
            if self.signals.stops() {
                break;
            }
            progress(done, wanted.len());
            let Some(outcome) = self.promoter.act(decision) else {
                round.put_off += 1;
                continue;
            };
            self.write(&Event::Outcome(outcome))?;
            self.tally.did(&outcome);
            round.look.take_in(&outcome);
            round.acts += usize::from(outcome.effect == Effect::Done);
            check_permitted(&outcome)?;
            let Settings { stall_percent, promotion_cpu_percent, .. } = self.plan.settings;
            let stalled_ns = rest_ns(outcome.took_ns, stall_percent);
            self.ready_ns.insert(outcome.process, outcome.at_ns + stalled_ns);
            self.rested_ns = outcome.at_ns + rest_ns(outcome.cpu_ns, promotion_cpu_percent);
        }
        self.tally.cover(&round.look);
        Ok(())
    }

    /// Until the process may be held up again. A promotion that would be put off waits as well, if that is over
    /// before the next look is due.
    fn wait_for(&mut self, decision: &Decision, next_look_ns: u64) -> Result<(), Failure> {
        let process = decision.process;
        let mut ready_ns = self.ready_ns.get(&process).copied().unwrap_or(0).max(self.rested_ns);
        let backed_off_ns = self.promoter.policy().backs_off_until_ns(process);
        if decision.reason.action() == Some(Action::Promote) && backed_off_ns <= next_look_ns {
            ready_ns = ready_ns.max(backed_off_ns);
        }
        while !self.signals.stops() {
            let left_ns = ready_ns.saturating_sub(process::now_ns());
            if left_ns == 0 {
                break;
            }
            self.wait(Duration::from_nanos(left_ns))?;
        }
        Ok(())
    }

    /// Waits, or until a signal comes.
    pub(super) fn wait(&mut self, time: Duration) -> Result<(), Failure> {
        self.signals.wait(time).map_err(exit::io("wait"))
    }

    fn write(&mut self, event: &Event) -> Result<(), Failure> {
        match &mut self.recorder {
            Some(recorder) => Ok(recorder.write(event)?),
            None => Ok(()),
        }
    }
}

/// After that much, so that it is so many percent of the time.
fn rest_ns(spent_ns: u64, percent: f64) -> u64 {
    (spent_ns as f64 * (100.0 / percent - 1.0)) as u64
}

/// Without the privilege, going on makes no sense.
fn check_permitted(outcome: &Outcome) -> Result<(), Failure> {
    let Effect::Refused(errno) = outcome.effect else { return Ok(()) };
    if Refusal::of(Errno::from_raw_os_error(errno)) != Refusal::Denied {
        return Ok(());
    }
    let program = std::env::current_exe().unwrap_or_else(|_| "cowslip".into());
    let why = format!(
        "may not advise process {} (process_madvise): CAP_SYS_NICE is missing; run as root, or once \
         `setcap cap_sys_ptrace,cap_dac_read_search,cap_sys_nice+ep {}`",
        outcome.process.pid,
        program.display()
    );
    Err(Failure::new(DENIED, why))
}
