//! The size of pages at faults, chosen for the targets while the session manages the system's settings.

use cowslip_sys::error::Result;
use cowslip_sys::{process, procfs};
use serde_json::{Value, json};

use super::operator::{Notice, Operator};
use crate::khugepaged::ManagedThp;
use crate::model::Advice;
use crate::page_size::{self, SizeChange, SizeChoice, Weighed};
use crate::promoter::Promoter;
use crate::target::Target;

/// The managed settings, and the size chosen with them.
#[derive(Debug, Default)]
pub(super) struct PageSize {
    managed: Option<ManagedThp>,
    choice: Option<SizeChoice>,
    /// Looks since a target was found.
    looks: u32,
    /// Processor time of the last look's choice.
    cpu_ns: u64,
}

impl PageSize {
    pub(super) fn cpu_ns(&self) -> u64 {
        self.cpu_ns
    }

    pub(super) fn manage(&mut self, managed: ManagedThp) {
        self.managed = Some(managed);
    }

    pub(super) fn settings_back(&mut self) -> Result<bool> {
        let managed = self.managed.take();
        managed.map_or(Ok(false), |managed| managed.restore().map(|()| true))
    }

    pub(super) fn choice(&self) -> Option<&SizeChoice> {
        self.choice.as_ref()
    }

    /// Weighs the sizes after 1, 2, 4, … looks since a target was found, until one suits: a program that starts has
    /// little memory yet. The size is then kept: its pages would make the next larger size look cheap.
    pub(super) fn choose(
        &mut self,
        is_new: bool,
        promoter: &Promoter,
        threshold_percent: u8,
        operator: &mut dyn Operator,
    ) {
        let Self { managed: Some(managed), choice, looks, cpu_ns } = self else {
            return;
        };
        let is_set = choice.as_ref().is_some_and(|choice| choice.change.is_some());
        *looks = if is_new { 1 } else { *looks + 1 };
        *cpu_ns = 0;
        if is_set || !looks.is_power_of_two() {
            return;
        }
        let began = process::thread_cpu_ns();
        let weighed = weigh(promoter, threshold_percent);
        let (_, thp) = managed.settings();
        let mut fresh = page_size::choose(&weighed, &thp.enabled, procfs::size_policy);
        if let Some(change) = &fresh.change
            && let Err(error) = managed.set_size(change.clone())
        {
            fresh = SizeChoice::none(error.to_string());
        }
        *cpu_ns = process::thread_cpu_ns() - began;
        if choice.as_ref() != Some(&fresh) {
            operator.tell(&Notice::PageSize(&fresh));
        }
        *choice = Some(fresh);
    }
}

/// The memory of the targets, and that of all other programs if a size suits the targets.
fn weigh(promoter: &Promoter, threshold_percent: u8) -> Weighed {
    let mut targets = Advice::new(threshold_percent);
    // A target that ended meanwhile has no memory.
    promoter
        .targets()
        .filter_map(|target| target.advice(threshold_percent).ok())
        .for_each(|advice| targets.merge(&advice));
    let mut all = targets.clone();
    if targets.at_fault().next().is_none() {
        return Weighed { targets, asking_bytes: 0, all };
    }
    let asking_bytes = promoter.targets().filter_map(|target| target.asking_bytes().ok()).sum();
    let known: Vec<i32> = promoter.targets().map(|target| target.id().pid).collect();
    let pids = procfs::process_ids().unwrap_or_default();
    let others = pids.into_iter().filter(|pid| *pid != process::pid() && !known.contains(pid));
    let others = others.filter_map(|pid| Target::open(pid, 1).ok()?.advice(threshold_percent).ok());
    others.for_each(|advice| all.merge(&advice));
    Weighed { targets, asking_bytes, all }
}

pub(super) fn to_json(choice: &SizeChoice) -> Value {
    let change = choice.change.as_ref().map(|SizeChange { page_bytes, before, ours }| {
        json!({"page_bytes": page_bytes, "before": before.word(), "now": ours.word()})
    });
    json!({"change": change, "why": choice.why})
}
