//! `cowslip setup`: what ordinary users' programs need, done once by root, said step by step, and taken back.

mod args;
mod device;
mod group;
mod huge_pages;
mod machine;
mod report;
mod service;
mod trial;
mod unit;

use std::path::Path;
use std::process::ExitCode;

use cowslip_report::{Paint, json, sink};
use cowslip_sys::process;

use crate::exit::{self, CommandResult, DENIED, Failure, NO};
pub(super) use args::Args;
use machine::Machine;
use report::{Steps, Trouble};
use service::Installed;

pub(super) fn run(args: Args) -> CommandResult {
    let machine = Machine::new(args.root.clone(), args.dry_run);
    let may_change = args.dry_run || args.root.is_some() || process::effective_uid() == 0;
    if !may_change {
        let why = "setup changes the system: run it as root, with sudo, or look with --dry-run";
        return Err(Failure::new(DENIED, why));
    }
    let mut steps = Steps::new(args.dry_run);
    match args.undo {
        true => undo(&machine, &args, &mut steps),
        false => set_up(&machine, &args, &mut steps),
    }
    if let Some(file) = &args.json {
        json::write(&steps.document(args.undo), file).map_err(exit::io("write the report"))?;
    }
    if args.json.as_deref() != Some(Path::new("-")) {
        sink::print(&steps.lines(Paint::of_stdout())).map_err(exit::io("print the steps"))?;
    }
    Ok(if steps.all_well() { ExitCode::SUCCESS } else { ExitCode::from(NO) })
}

fn set_up(machine: &Machine, args: &Args, steps: &mut Steps) {
    let has_group = steps.add("group", group::make(machine));
    steps.add("udev rule", device::write_rule(machine));
    if has_group {
        for user in &args.users {
            steps.add(format!("user {user}"), group::join(machine, user));
        }
    }
    if machine.is_running() && has_group {
        steps.add("device", device::open_to_group(machine));
    }
    if !args.keep_shmem_enabled {
        steps.add("huge pages", huge_pages::allow(machine));
    }
    if !args.services.is_empty() {
        // A service whose group is not there does not start.
        let installed = match has_group {
            true => Installed::look(machine),
            false => Err(Trouble::new("left as it is, without the group", "mend the first step")),
        };
        match installed {
            Ok(installed) => {
                for name in &args.services {
                    steps.add(name, service::put_under_cowslip(machine, &installed, name));
                }
                reload(machine, steps);
            }
            Err(trouble) => {
                steps.add(args.services.join(", "), Err(trouble));
            }
        }
    }
    if machine.is_running() && !machine.is_dry_run() && steps.all_well() {
        steps.add("trial", trial::run(machine, args.keep_shmem_enabled));
    }
}

/// Of the services and users that are named, or of all.
fn undo(machine: &Machine, args: &Args, steps: &mut Steps) {
    let is_all = args.services.is_empty() && args.users.is_empty();
    let services = if is_all { unit::with_drop_in(machine) } else { args.services.clone() };
    let users =
        if is_all { group::joined(machine).unwrap_or_default() } else { args.users.clone() };
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

/// Has systemd read its files, if it runs and they changed.
fn reload(machine: &Machine, steps: &mut Steps) {
    if machine.is_running() && steps.changes() && Path::new("/run/systemd/system").exists() {
        let reloaded = machine.run("systemctl", &["daemon-reload"]);
        steps.add(
            "systemd",
            reloaded.map(|()| report::Change::Made("has read its files again".into())),
        );
    }
}
