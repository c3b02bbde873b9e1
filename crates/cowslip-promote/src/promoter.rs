//! The promoter: looks, decides, acts, and accounts for its own time.

use std::collections::BTreeMap;

use cowslip_sys::error::{During, Error, ErrorKind, Result};
use cowslip_sys::scheduling::{self, Scheduling};
use cowslip_sys::{Errno, process, procfs};

use crate::heat::Sampling;
use crate::huge_page_reserve::HugePageReserve;
use crate::model::{Action, ActionOutcome, Effect, HeatSource, Look, ProcessId, Settings, System};
use crate::policy::{Decision, Policy, Reason};
use crate::target::Groups;
use crate::target::Target;

const THIS_THREAD: i32 = 0;

/// Why a target is no longer one.
#[derive(Clone, Debug)]
pub struct RemovedTarget {
    /// Which it was.
    pub process: ProcessId,
    /// Its name.
    pub name: String,
    /// What kept it from being looked at; [`ErrorKind::Vanished`] if it just ended.
    pub error: Error,
}

/// Promotes the memory of processes. It starts no thread and waits for nothing: pace is the caller's.
#[derive(Debug)]
pub struct Promoter {
    policy: Policy,
    targets: BTreeMap<ProcessId, Target>,
    heat: HeatSource,
    sampling: Sampling,
    look_cpu_ns: u64,
    reserve: HugePageReserve,
}

impl Promoter {
    /// Without any target yet; an error if the settings make no sense.
    pub fn new(settings: Settings) -> Result<Self> {
        let policy = Policy::new(settings)?;
        let reserve = HugePageReserve::new().during("reserve room for a huge page")?;
        Ok(Self {
            policy,
            targets: BTreeMap::new(),
            heat: HeatSource::None,
            sampling: Sampling::default(),
            look_cpu_ns: 0,
            reserve,
        })
    }

    /// Asks the kernel which memory is accessed, so that what is hot comes first: from a source that is
    /// [available](crate::probe_heat_sources). [`HeatSource::Mappings`] makes the kernel walk the targets' page
    /// tables, and holds them up for it.
    pub fn watch_heat(&mut self, source: HeatSource) {
        self.heat = source;
        if source != HeatSource::Damon {
            self.sampling = Sampling::default();
        }
    }

    /// Where heat comes from. DAMON gives way to [`HeatSource::Mappings`] if it fails, as when somebody
    /// else has taken it.
    pub fn heat(&self) -> HeatSource {
        self.heat
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Goes on with other settings.
    pub fn set(&mut self, settings: Settings) -> Result<()> {
        self.policy.set(settings)
    }

    /// Adds a target; one that is there already gets the new weight and group.
    pub fn add(&mut self, target: Target) {
        match self.targets.get_mut(&target.id()) {
            Some(known) => (known.weight, known.group) = (target.weight, target.group),
            None => drop(self.targets.insert(target.id(), target)),
        }
    }

    /// Drops all targets. Those that are added again before the next look are still known to the policy.
    pub fn clear(&mut self) {
        self.targets.clear();
    }

    /// The targets.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        self.targets.values()
    }

    /// Looks at the system and at every target. Up to `content_ns` of processor time a target go into
    /// reading huge pages for how much of them is used. Targets that cannot be looked at any more
    /// are dropped, and returned with the reason.
    pub fn look(&mut self, content_ns: u64) -> Result<(Look, Vec<RemovedTarget>)> {
        let began = process::thread_cpu_ns();
        let mut look =
            Look { at_ns: process::now_ns(), system: System::look()?, processes: Vec::new() };
        let mut groups = Groups::new(self.policy.settings(), look.system.total_bytes);
        let mut gone = Vec::new();
        let by_mapping = self.heat == HeatSource::Mappings;
        let has_lazily_freed = procfs::has_lazily_freed();
        self.targets.retain(|_, target| {
            let seen = target.look(content_ns, by_mapping, has_lazily_freed, &mut groups);
            let is_there = seen.is_ok();
            match seen {
                Ok(process) => look.processes.push(process),
                Err(errno) => gone.push(removed(target, errno)),
            }
            is_there
        });
        if self.heat == HeatSource::Damon
            && self.sampling.add(&mut look.processes, self.targets.values()).is_err()
        {
            self.watch_heat(HeatSource::Mappings);
        }
        self.look_cpu_ns = process::thread_cpu_ns() - began;
        Ok((look, gone))
    }

    /// Processor time that the last look took: what its budget is about.
    pub fn look_cpu_ns(&self) -> u64 {
        self.look_cpu_ns
    }

    /// One decision for each region, first those to act on.
    pub fn decide(&mut self, look: &Look) -> Vec<Decision> {
        self.policy.decide(look)
    }

    /// Does what was decided, and has the policy learn from it. `None` if nothing was, if the process is no
    /// target any more, if what came of an earlier action has it left alone for now, or if its control group
    /// has no room for it by now.
    pub fn act(&mut self, decision: &Decision) -> Option<ActionOutcome> {
        let action: Action = decision.reason.action()?;
        let is_promotion = action == Action::Promote;
        if is_promotion && self.policy.is_backing_off(decision.process, process::now_ns()) {
            return None;
        }
        let target = self.targets.get_mut(&decision.process)?;
        if is_promotion && !target.has_room(decision.pages, self.policy.settings()) {
            return None;
        }
        let began = process::thread_cpu_ns();
        let warmed = if is_promotion { self.reserve.warm() } else { Ok(()) };
        let mut outcome = match warmed {
            Ok(()) => {
                let _urgent = Urgent::begin();
                match decision.reason {
                    Reason::PartiallyMapped => target.split_rest(decision.address),
                    _ => target.act(decision, action),
                }
            }
            Err(errno) => refused(decision, errno),
        };
        outcome.cpu_ns = process::thread_cpu_ns() - began;
        self.policy.learn(&outcome);
        Some(outcome)
    }
}

/// A promotion for which there is no huge page: the kernel was not asked.
fn refused(decision: &Decision, errno: Errno) -> ActionOutcome {
    ActionOutcome {
        process: decision.process,
        address: decision.address,
        action: Action::Promote,
        at_ns: process::now_ns(),
        took_ns: 0,
        cpu_ns: 0,
        effect: Effect::Refused(errno.raw_os_error()),
        freed_pages: 0,
    }
}

/// While this lives, the calling thread goes before ordinary ones if there are more of them than processors: it
/// holds a target's locks, and whoever waits for them should not have to wait for a processor as well. Where that is
/// not permitted, it waits its turn. With a processor for everybody it would only keep somebody from the
/// one that it is on.
struct Urgent(Option<Scheduling>);

impl Urgent {
    fn begin() -> Self {
        if !scheduling::is_crowded() || !scheduling::is_ordinary() {
            return Self(None);
        }
        let before = Scheduling::of(THIS_THREAD).ok();
        Self(before.filter(|_| scheduling::set_urgent(THIS_THREAD, true).is_ok()))
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            let _ = before.assign(THIS_THREAD);
        }
    }
}

fn removed(target: &Target, errno: Errno) -> RemovedTarget {
    let mut error = Error::from_errno("look at the process", errno);
    // Of a process that ends while it is looked at, `/proc` says all sorts of things.
    if target.handle.has_ended().unwrap_or(true) {
        error = Error::new(ErrorKind::Vanished, "look at the process").because("it has ended");
    }
    RemovedTarget { process: target.id(), name: target.name().to_owned(), error }
}
