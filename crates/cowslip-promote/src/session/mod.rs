//! A run of the promoter: looks, decides and acts at a pace that the targets bear.

mod heat;
mod measure;
mod once;
mod operator;
mod page_size;
mod reclaim;
mod report;
mod scarcity;
mod search;
mod system;
mod tally;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::time::Duration;

use cowslip_sys::capabilities::SETCAP;
use cowslip_sys::error::{Error, ErrorKind, Result, errno_of};
use cowslip_sys::scheduling::Scheduling;
use cowslip_sys::target::Refusal;
use cowslip_sys::{Errno, process};

use crate::khugepaged::ManagedThp;
use crate::model::{Action, ActionOutcome, Effect, Look, ProcessId, Settings};
use crate::page_size::SizeChoice;
use crate::plan::Plan;
use crate::policy::Decision;
use crate::promoter::Promoter;
use crate::record::{Event, Recorder};
use heat::Heat;
use page_size::PageSize;
use scarcity::Scarcity;

pub use operator::{Notice, Operator};
pub use search::{Found, missing};
pub use tally::{ProcessTally, Tally};

const THIS_THREAD: i32 = 0;

/// The part of the budget for processor time that goes into reading huge pages.
const FOR_CONTENT: f64 = 0.5;

/// A run of the promoter.
pub struct Session {
    plan: Plan,
    promoter: Promoter,
    tally: Tally,
    operator: Box<dyn Operator>,
    heat: Heat,
    recorder: Option<Recorder<File>>,
    /// Processes that have too much to be looked at. They are not looked at again until the plan is read again.
    left_alone: BTreeSet<ProcessId>,
    /// More processes were found than can be targets.
    is_full: bool,
    /// When each process may be held up again.
    ready_ns: BTreeMap<ProcessId, u64>,
    /// The time from which the budget of processor time allows the next action.
    rested_ns: u64,
    /// When the gain of each process may be measured, if one was measured before.
    measure_at_ns: BTreeMap<ProcessId, u64>,
    page_size: PageSize,
    fruitless_steps: reclaim::Fruitless,
    scarcity: Scarcity,
}

/// One look and its consequences.
#[derive(Clone, Debug)]
pub struct Round {
    /// The look, brought up to date with the actions since.
    pub look: Look,
    /// The decisions about it.
    pub decisions: Vec<Decision>,
    /// Actions that were done.
    pub acts: usize,
    /// Actions put off because one before them was slow or failed.
    pub put_off: usize,
}

impl Session {
    /// Opens the targets given by number; a missing one, or one that may not be observed, is an error.
    pub fn start(plan: Plan, mut operator: Box<dyn Operator>) -> Result<Self> {
        // A refusal leaves fewer targets.
        let _ = process::raise_file_limit();
        let mut promoter = Promoter::new(plan.settings.clone())?;
        let heat = Heat::choose(plan.heat, operator.as_mut());
        promoter.watch_heat(heat.source);
        search::named(&plan.rules)?.into_iter().for_each(|target| promoter.add(target));
        // Every thread that wakes up on this processor runs first. A refusal costs only that courtesy.
        let _ = Scheduling::from_thread(THIS_THREAD)
            .and_then(|scheduling| scheduling.patient().assign(THIS_THREAD));
        let (tally, ready_ns) = (Tally::default(), BTreeMap::new());
        Ok(Self {
            plan,
            promoter,
            tally,
            operator,
            heat,
            recorder: None,
            left_alone: BTreeSet::new(),
            is_full: false,
            ready_ns,
            rested_ns: 0,
            measure_at_ns: BTreeMap::new(),
            page_size: PageSize::default(),
            fruitless_steps: reclaim::Fruitless::default(),
            scarcity: Scarcity::default(),
        })
    }

    /// Has the session choose the size of pages at faults, and keeps the settings until [`Self::settings_back`].
    pub fn manage(&mut self, managed: ManagedThp) {
        self.page_size.manage(managed);
    }

    /// Puts the managed settings back; true if there were any.
    pub fn settings_back(&mut self) -> Result<bool> {
        self.page_size.settings_back()
    }

    /// The size of pages at faults, if the session has chosen.
    pub fn page_size(&self) -> Option<&SizeChoice> {
        self.page_size.choice()
    }

    pub(crate) fn choose_page_size(&mut self, is_new: bool) {
        let threshold_percent = self.plan.settings.threshold_percent;
        self.page_size.choose(is_new, &self.promoter, threshold_percent, self.operator.as_mut());
    }

    /// Records every look and outcome from here on.
    pub fn record(&mut self, to: File) -> Result<()> {
        self.recorder = Some(Recorder::start(to, &self.plan.settings)?);
        Ok(())
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The promoter.
    pub fn promoter(&self) -> &Promoter {
        &self.promoter
    }

    /// True while huge pages are scarce.
    pub fn is_scarce(&self) -> bool {
        self.scarcity.is_told()
    }

    /// The results so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// True if the session should end.
    pub fn stops(&self) -> bool {
        self.operator.stops()
    }

    pub(crate) fn operator(&mut self) -> &mut dyn Operator {
        self.operator.as_mut()
    }

    /// Searches for targets that are not given by number.
    pub fn search(&mut self) -> Result<Found> {
        let found = search::search(&self.plan.rules, &mut self.promoter, &self.left_alone)?;
        let was_full = std::mem::replace(&mut self.is_full, found.too_many > 0);
        if self.is_full && !was_full {
            self.operator.tell(&Notice::TooMany(found.too_many));
        }
        Ok(found)
    }

    /// Continues with another plan, or as before if that is an error.
    pub fn reload(&mut self, plan: Plan) -> Result<()> {
        let named = search::named(&plan.rules)?;
        self.promoter.set(plan.settings.clone())?;
        if plan.heat != self.plan.heat {
            self.heat = Heat::choose(plan.heat, self.operator.as_mut());
            self.promoter.watch_heat(self.heat.source);
        }
        self.promoter.clear();
        self.left_alone.clear();
        self.measure_at_ns.clear();
        self.fruitless_steps.clear();
        named.into_iter().for_each(|target| self.promoter.add(target));
        self.write(&Event::start(&plan.settings))?;
        self.plan = plan;
        Ok(())
    }

    /// Looks and decides; spends up to `content_ns` per target on reading huge pages.
    pub fn look(&mut self, content_ns: u64) -> Result<Round> {
        let round = self.look_last(content_ns)?;
        self.write(&Event::Look(round.look.clone()))?;
        Ok(round)
    }

    /// Like [`Self::look`], but after the last action: it is not recorded, as no action follows.
    pub fn look_last(&mut self, content_ns: u64) -> Result<Round> {
        let (look, gone) = self.promoter.look(content_ns)?;
        self.heat.follow(self.promoter.heat(), self.operator.as_mut());
        for (mount, answer) in self.promoter.take_tried() {
            self.operator.tell(&Notice::FileText(&mount, &answer));
        }
        for removed in gone {
            self.tally.end(removed.process);
            self.ready_ns.remove(&removed.process);
            self.measure_at_ns.remove(&removed.process);
            if removed.error.errno() == Some(Errno::FBIG.raw_os_error()) {
                self.left_alone.insert(removed.process);
            }
            if removed.error.kind() != ErrorKind::Vanished {
                self.operator.tell(&Notice::LeftAlone(&removed));
            }
        }
        let decisions = self.promoter.decide(&look);
        self.tally.see(&look, &decisions, self.promoter.look_cpu_ns());
        Ok(Round { look, decisions, acts: 0, put_off: 0 })
    }

    /// Acts on the decisions, no faster than the targets bear, until the operator ends it.
    pub fn act(&mut self, round: &mut Round, mut progress: impl FnMut(usize, usize)) -> Result<()> {
        self.reclaim(round)?;
        let wanted: Vec<&Decision> =
            round.decisions.iter().filter(|decision| decision.reason.action().is_some()).collect();
        let next_look_ns = round.look.at_ns + self.plan.settings.interval_ms * 1_000_000;
        for (done, decision) in wanted.iter().enumerate() {
            self.wait_for(decision, next_look_ns)?;
            if self.stops() {
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
            self.rest_after(&outcome);
        }
        self.tally.cover(&round.look);
        let is_scarce = self.promoter.policy().is_scarce();
        self.scarcity.see(is_scarce, &round.look, self.operator.as_mut());
        Ok(())
    }

    /// Waits until the process may be held up again. A promotion that would be put off waits for the backoff
    /// too, if that ends before the next look is due.
    fn wait_for(&mut self, decision: &Decision, next_look_ns: u64) -> Result<()> {
        let process = decision.process;
        let mut ready_ns = self.ready_ns.get(&process).copied().unwrap_or(0).max(self.rested_ns);
        let backed_off_ns = self.promoter.policy().backs_off_until_ns(process);
        if decision.reason.action() == Some(Action::Promote) && backed_off_ns <= next_look_ns {
            ready_ns = ready_ns.max(backed_off_ns);
        }
        self.rest_until(ready_ns)
    }

    /// Notes when the budgets allow the next action.
    fn rest_after(&mut self, outcome: &ActionOutcome) {
        let Settings { stall_percent, promotion_cpu_percent, .. } = self.plan.settings;
        let stalled_ns = rest_ns(outcome.took_ns, stall_percent);
        self.ready_ns.insert(outcome.process, outcome.at_ns + stalled_ns);
        self.rested_ns = outcome.at_ns + rest_ns(outcome.cpu_ns, promotion_cpu_percent);
    }

    /// Waits until this time, or until the operator ends the session.
    fn rest_until(&mut self, ready_ns: u64) -> Result<()> {
        while !self.stops() {
            let left_ns = ready_ns.saturating_sub(process::now_ns());
            if left_ns == 0 {
                break;
            }
            self.wait(Duration::from_nanos(left_ns))?;
        }
        Ok(())
    }

    /// The time that a look may spend on the content of huge pages, for each target.
    pub fn content_ns(&self) -> u64 {
        let settings = &self.plan.settings;
        if settings.demote_below_percent == 0 {
            return 0;
        }
        let budget_ns = settings.interval_ms as f64 * 1e6 * settings.cpu_percent / 100.0;
        (budget_ns * FOR_CONTENT) as u64 / self.promoter.targets().count().max(1) as u64
    }

    /// The time until the next look: long enough to keep to the budget for looking.
    pub fn pause(&self) -> Duration {
        let settings = &self.plan.settings;
        let cpu_ns = self.promoter.look_cpu_ns() + self.page_size.cpu_ns();
        let least_ns = cpu_ns as f64 * 100.0 / settings.cpu_percent;
        Duration::from_millis(settings.interval_ms).max(Duration::from_nanos(least_ns as u64))
    }

    /// Waits for `time`, or until there is a reason to ask the operator.
    pub fn wait(&mut self, time: Duration) -> Result<()> {
        self.operator.wait(time).map_err(|error| Error::from_errno("wait", errno_of(&error)))
    }

    fn write(&mut self, event: &Event) -> Result<()> {
        match &mut self.recorder {
            Some(recorder) => recorder.write(event),
            None => Ok(()),
        }
    }
}

/// The rest after spending so much time, so that it is `percent` of all time.
fn rest_ns(spent_ns: u64, percent: f64) -> u64 {
    (spent_ns as f64 * (100.0 / percent - 1.0)) as u64
}

/// Ends the session if the privilege is missing.
fn check_permitted(outcome: &ActionOutcome) -> Result<()> {
    let Effect::Refused(errno) = outcome.effect else { return Ok(()) };
    if Refusal::from_errno(Errno::from_raw_os_error(errno)) != Refusal::Denied {
        return Ok(());
    }
    let why = format!(
        "may not advise process {} (process_madvise): CAP_SYS_NICE is missing; run as root, or once `{SETCAP}`",
        outcome.process.pid,
    );
    Err(Error::new(ErrorKind::Denied, why))
}
