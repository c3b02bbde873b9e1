//! Targets that are given by the name of systemd's slice.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::group::Group;
use crate::service::{Daemon, until};
use crate::support::COWSLIP;
use crate::target::{Program, place};

/// The name of a slice in another, and both groups; `None`, reported as skipped, where none can be made.
fn slices() -> Option<(String, Group, Group)> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let is_v2 = |line: &&str| line.contains(" - cgroup2 ");
    let mount = mounts.lines().find(is_v2).and_then(|line| line.split(' ').nth(4));
    let name = format!("cowslip{}", std::process::id());
    let outer = PathBuf::from(mount.unwrap_or("/nowhere")).join(format!("{name}.slice"));
    if fs::create_dir(&outer).is_err() {
        println!("SKIPPED: cgroup2: no group of version 2 can be made here");
        return None;
    }
    let outer = Group(outer);
    let inner = outer.0.join(format!("{name}-web.slice"));
    fs::create_dir(&inner).unwrap();
    Some((format!("{name}-web.slice"), outer, Group(inner)))
}

#[test]
fn the_processes_of_a_slice_are_one_target_and_their_metrics_are_summed() {
    let Some((folder, program)) = place("promote-slice") else { return };
    // The inner one is dropped first: a group with groups in it cannot be removed.
    let Some((name, _outer, group)) = slices() else { return };
    let mut targets: Vec<Program> =
        (0..2).map(|_| Program::start(&mut Command::new(&program))).collect();
    for target in &mut targets {
        target.tell("map 4");
        target.fill(0..4, 512);
        fs::write(group.0.join("cgroup.procs"), target.pid().to_string()).unwrap();
    }
    let (config, metrics) = (folder.0.join("promote.toml"), folder.0.join("metrics.prom"));
    let text = format!(
        "[[target]]\ncgroup = \"{name}\"\nweight = 3\n[settings]\nstall_percent = 100\n\
         slow_ms = 1000\ncpu_percent = 100\npromotion_cpu_percent = 100\ninterval_ms = 50\n\
         settle_ms = 100\n"
    );
    fs::write(&config, text).unwrap();
    let mut command = Command::new(COWSLIP);
    command.args(["promote", "--config"]).arg(&config).arg("--metrics-file").arg(&metrics);
    let daemon = Daemon::start(&mut command);
    until("both are huge", || targets.iter().all(|target| target.huge_mib() == 8));
    let sum = format!("cowslip_promote_group_promotions_total{{group=\"{name}\"}} 8\n");
    until("the sum is told", || fs::read_to_string(&metrics).unwrap_or_default().contains(&sum));
    assert_eq!(daemon.end(), Some(0));
    for target in &mut targets {
        assert_eq!(target.tell("check"), "0");
    }
}
