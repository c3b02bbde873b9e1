//! The promoter: looks, decides, acts, and accounts for its own time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use cowslip::host::Answer;
use cowslip_sys::cgroup::Group;
use cowslip_sys::error::{During, Error, ErrorKind, Result};
use cowslip_sys::scheduling::{self, Scheduling};
use cowslip_sys::{Errno, process, procfs};

use crate::file_text::FileSystems;
use crate::heat::Sampling;
use crate::huge_page_reserve::HugePageReserve;
use crate::model::{Action, ActionOutcome, Effect, HeatSource, Look, ProcessId, Settings, System};
use crate::policy::{Decision, Policy, Reason};
use crate::target::Groups;
use crate::target::Target;

const THIS_THREAD: i32 = 0;

/// A target that was dropped, and the reason.
#[derive(Clone, Debug)]
pub struct RemovedTarget {
    /// The process.
    pub process: ProcessId,
    /// Its name.
    pub name: String,
    /// The error that kept it from being observed; [`ErrorKind::Vanished`] if it just ended.
    pub error: Error,
}

/// Promotes the memory of processes. It starts no thread and never waits: the caller sets the pace.
#[derive(Debug)]
pub struct Promoter {
    policy: Policy,
    targets: BTreeMap<ProcessId, Target>,
    heat: HeatSource,
    sampling: Sampling,
    look_cpu_ns: u64,
    reserve: HugePageReserve,
    systems: FileSystems,
}

impl Promoter {
    /// A promoter without targets; an error if the settings make no sense.
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
            systems: FileSystems::default(),
        })
    }

    /// Has the kernel track which memory is accessed, so that hot regions come first: from a source that is
    /// [available](crate::probe_heat_sources). [`HeatSource::Mappings`] makes the kernel walk the targets'
    /// page tables, and holds them up meanwhile.
    pub fn watch_heat(&mut self, source: HeatSource) {
        self.heat = source;
        if source != HeatSource::Damon {
            self.sampling = Sampling::default();
        }
    }

    /// The source of heat. DAMON gives way to [`HeatSource::Mappings`] if it fails, for example because
    /// another program has taken it.
    pub fn heat(&self) -> HeatSource {
        self.heat
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Continues with other settings.
    pub fn set(&mut self, settings: Settings) -> Result<()> {
        self.policy.set(settings)
    }

    /// Adds a target; a known one gets the new weight and group.
    pub fn add(&mut self, target: Target) {
        match self.targets.get_mut(&target.id()) {
            Some(known) => (known.weight, known.group) = (target.weight, target.group),
            None => drop(self.targets.insert(target.id(), target)),
        }
    }

    /// A target, to measure its gain.
    pub(crate) fn target(&mut self, process: ProcessId) -> Result<&mut Target> {
        let gone =
            || Error::new(ErrorKind::Vanished, "measure the process").because("it has ended");
        self.targets.get_mut(&process).ok_or_else(gone)
    }

    /// Drops all targets. The policy still knows those that are added again before the next look.
    pub fn clear(&mut self) {
        self.targets.clear();
    }

    /// The targets.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        self.targets.values()
    }

    /// Looks at the system and at every target. Spends up to `content_ns` of processor time per target on
    /// reading huge pages, to see how much of them is used. Drops targets that cannot be observed any more,
    /// and returns them with the reason.
    pub fn look(&mut self, content_ns: u64) -> Result<(Look, Vec<RemovedTarget>)> {
        let began = process::thread_cpu_ns();
        let mut look =
            Look { at_ns: process::now_ns(), system: System::look()?, processes: Vec::new() };
        let mut groups = Groups::new(self.policy.settings(), look.system.total_bytes);
        let mut gone = Vec::new();
        let by_mapping = self.heat == HeatSource::Mappings;
        let has_lazily_freed = procfs::has_lazily_freed();
        let has_files = self.policy.settings().files;
        self.targets.retain(|_, target| {
            let systems = has_files.then_some(&mut self.systems);
            let seen = target.look(content_ns, by_mapping, has_lazily_freed, &mut groups, systems);
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
        self.find_shared_by_targets(&mut look);
        self.look_cpu_ns = process::thread_cpu_ns() - began;
        Ok((look, gone))
    }

    /// The file systems that were tried for text since the last call, with the answers.
    pub(crate) fn take_tried(&mut self) -> Vec<(PathBuf, Answer)> {
        self.systems.take_news()
    }

    /// Leaves each region of a file to the first target that maps it: to the others only their own pages count.
    fn find_shared_by_targets(&self, look: &mut Look) {
        let mut seen = BTreeSet::new();
        for process in &mut look.processes {
            let Some(target) = self.targets.get(&process.process) else { continue };
            process.regions.retain_mut(|region| {
                let file_region = target.file_region(region.address);
                region.is_elsewhere =
                    file_region.is_some_and(|file_region| !seen.insert(file_region));
                region.held_pages = if region.is_elsewhere { 0 } else { region.held_pages };
                !region.is_elsewhere || region.pages > 0
            });
        }
    }

    /// The processor time of the last look, which its budget limits.
    pub fn look_cpu_ns(&self) -> u64 {
        self.look_cpu_ns
    }

    /// One decision for each region, those to act on first.
    pub fn decide(&mut self, look: &Look) -> Vec<Decision> {
        self.policy.decide(look)
    }

    /// Acts on a decision, and has the policy learn from the outcome. `None` if the decision asks for no
    /// action, if the process is no longer a target, if an earlier outcome makes it wait, or if its control
    /// group has no room any more.
    pub fn act(&mut self, decision: &Decision) -> Option<ActionOutcome> {
        let is_promotion = decision.reason.action()? == Action::Promote;
        if is_promotion && self.policy.is_backing_off(decision.process, process::now_ns()) {
            return None;
        }
        let outcome = self.perform(decision)?;
        self.policy.learn(&outcome);
        Some(outcome)
    }

    /// The control group that a target's memory counts against, by the last look.
    pub(crate) fn memory_group(&self, process: ProcessId) -> Option<&Group> {
        self.targets.get(&process)?.memory_group.as_ref()
    }

    /// The pages that the kernel freed of a region that was to be split, if it has split it.
    pub(crate) fn freed_by_kernel(&self, decision: &Decision) -> Option<u16> {
        let target = self.targets.get(&decision.process)?;
        let is_partial = decision.reason == Reason::PartiallyMapped;
        target.freed_by_kernel(decision.address, is_partial).ok()?
    }

    /// Has the policy learn from an outcome that this did not bring about.
    pub(crate) fn learn(&mut self, outcome: &ActionOutcome) {
        self.policy.learn(outcome);
    }

    /// Acts on a decision without consequences for later ones. `None` if the decision asks for no action, if the
    /// process is no longer a target, or if its control group has no room.
    pub(crate) fn perform(&mut self, decision: &Decision) -> Option<ActionOutcome> {
        let action: Action = decision.reason.action()?;
        let is_promotion = action == Action::Promote;
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
        Some(outcome)
    }
}

/// The outcome of a promotion without a huge page: the kernel was not asked.
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

/// While this lives, the calling thread runs before ordinary threads if there are more of them than
/// processors: it holds a target's locks, and threads that wait for those should not have to wait for a
/// processor as well. Where that is not permitted, it runs as before. With a processor for each thread, the
/// priority would only keep another thread from the one that it is on.
struct Urgent(Option<Scheduling>);

impl Urgent {
    fn begin() -> Self {
        if !scheduling::is_crowded() || !scheduling::is_ordinary() {
            return Self(None);
        }
        let before = Scheduling::from_thread(THIS_THREAD).ok();
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
    // `/proc` is unreliable about a process that ends while it is read.
    if target.handle.has_ended().unwrap_or(true) {
        error = Error::new(ErrorKind::Vanished, "look at the process").because("it has ended");
    }
    RemovedTarget { process: target.id(), name: target.name().to_owned(), error }
}
