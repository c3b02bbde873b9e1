//! Prepares a machine for ordinary users' programs, once, by root; reports each step, and can undo it.
//!
//! ```text
//! group          cowslip, whose members may open /dev/userfaultfd     /etc/sysusers.d/cowslip-setup.conf
//! udev rule      the device is the group's                            /etc/udev/rules.d/60-cowslip.rules
//! huge pages     for memfds of programs that ask for them             /etc/tmpfiles.d/cowslip.conf
//! NAME.service   is started by `cowslip run`                          /etc/systemd/system/NAME.service.d/cowslip.conf
//! ```
//!
//! These files are all of the state: each begins with a mark, and records the former setting. A file without the mark
//! is not setup's, and stays.
//!
//! `cowslip setup` is its command; `docs/setup.md` describes it.

mod access;
mod device;
mod group;
mod huge_pages;
mod machine;
mod names;
mod report;
mod service;
mod trial;
mod unit;
mod writable;

use std::path::{Path, PathBuf};

use machine::Machine;
use report::Change::Made;
use report::Trouble;
use service::{DropIn, Installed};

pub use report::Steps;
pub use writable::writable_folders;

/// The request.
#[derive(Clone, Debug)]
pub struct Plan {
    /// systemd services, with the suffix `.service`.
    pub services: Vec<String>,
    /// Users to add to the group.
    pub users: Vec<String>,
    /// Undo the setup: for the named services and users, or all of it.
    pub undo: bool,
    /// Change nothing.
    pub dry_run: bool,
    /// Leave the kernel's setting for huge pages in shared memory as it is.
    pub keep_shmem_enabled: bool,
    /// The system below this directory, which does not run.
    pub root: Option<PathBuf>,
    /// The path of this command's preload library, or the reason why there is none.
    pub installed: Result<PathBuf, String>,
}

/// Does the work, or reports the steps that it would take. Everything that can be refused is looked at before the first
/// change. After a failure, steps that do not depend on the failed one still run.
///
/// # Errors
/// Nothing was changed: a sentence for each service and user that does not exist.
pub fn run(plan: &Plan) -> Result<Steps, Vec<String>> {
    let machine = Machine::new(plan.root.clone(), plan.dry_run);
    let mut steps = Steps::new(plan.dry_run);
    let unknown = names::unknown(&machine, plan);
    if !unknown.is_empty() {
        return Err(unknown);
    }
    if plan.undo {
        undo(&machine, plan, &mut steps);
        return Ok(steps);
    }
    if let Some(drop_ins) = drop_ins(&machine, plan, &mut steps) {
        set_up(&machine, plan, &drop_ins, &mut steps);
    }
    Ok(steps)
}

/// The drop-ins of the services; `None`, and the reasons as steps, if one is refused.
fn drop_ins(machine: &Machine, plan: &Plan, steps: &mut Steps) -> Option<Vec<DropIn>> {
    if plan.services.is_empty() {
        return Some(Vec::new());
    }
    let installed = match Installed::look(machine, &plan.installed) {
        Ok(installed) => installed,
        Err(trouble) => {
            steps.add(plan.services.join(", "), Err(trouble));
            return None;
        }
    };
    let mut drop_ins = Vec::new();
    for name in &plan.services {
        match DropIn::new(machine, &installed, name) {
            Ok(drop_in) => drop_ins.push(drop_in),
            Err(trouble) => {
                steps.add(name, Err(trouble));
            }
        }
    }
    steps.all_well().then_some(drop_ins)
}

fn set_up(machine: &Machine, plan: &Plan, drop_ins: &[DropIn], steps: &mut Steps) {
    let has_group = steps.add("group", group::make(machine));
    steps.add("udev rule", device::write_rule(machine));
    if has_group {
        for user in &plan.users {
            steps.add(format!("user {user}"), group::join(machine, user));
        }
    }
    if machine.is_running() && has_group {
        steps.add("device", device::open_to_group(machine));
    }
    if !plan.keep_shmem_enabled {
        steps.add("huge pages", huge_pages::allow(machine));
    }
    if machine.is_running() && !machine.is_dry_run() && steps.all_well() {
        steps.add("trial", trial::run(machine, plan.keep_shmem_enabled));
    }
    if drop_ins.is_empty() {
        return;
    }
    // A service would not start without its group, and gain nothing without the rest.
    if !steps.all_well() {
        let left = Trouble::new("left as it is", "repair what failed, and run this again");
        steps.add(plan.services.join(", "), Err(left));
        return;
    }
    for drop_in in drop_ins {
        steps.add(drop_in.service(), drop_in.write(machine));
    }
    reload(machine, steps);
}

/// Undoes the setup of the named services and users, or all of it.
fn undo(machine: &Machine, plan: &Plan, steps: &mut Steps) {
    let is_all = plan.services.is_empty() && plan.users.is_empty();
    let services = if is_all { unit::with_drop_in(machine) } else { plan.services.clone() };
    let users =
        if is_all { group::joined(machine).unwrap_or_default() } else { plan.users.clone() };
    for name in &services {
        steps.add(name, service::undo(machine, name));
    }
    if !services.is_empty() {
        reload(machine, steps);
    }
    for user in &users {
        steps.add(format!("user {user}"), group::part(machine, user));
    }
    if is_all {
        steps.add("huge pages", huge_pages::undo(machine));
        steps.add("udev rule", device::undo(machine));
        steps.add("group", group::remove(machine));
    }
}

/// Has systemd read its files again, if it runs and they changed.
fn reload(machine: &Machine, steps: &mut Steps) {
    if machine.is_running() && steps.changes() && Path::new("/run/systemd/system").exists() {
        let reloaded = machine.run("systemctl", &["daemon-reload"]);
        steps.add("systemd", reloaded.map(|()| Made("has read its files again".into())));
    }
}
