//! Targets near the memory limit of their control group.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::group::Group;
use crate::service::{daemon_of, scrape, until};
use crate::support::{COWSLIP, Folder, run};
use crate::target::{Program, place, promote, regions};

/// The program in a control group, with this number of pages in use in each of its regions.
fn confined(group: &Group, program: &Path, regions: usize, pages: usize) -> Program {
    let mut target = Program::start(&mut group.shell("exec \"$2\"", &[program]));
    // Four regions are for later.
    target.tell(&format!("map {}", regions + 4));
    target.fill(0..regions, pages);
    target
}

/// A one-shot promotion with these settings, and its exit code.
fn once(
    folder: &Folder,
    target: &Program,
    settings: &str,
    options: &[&str],
) -> (Value, Option<i32>) {
    let config = folder.0.join("promote.toml");
    let pid = target.pid();
    let pace = "stall_percent = 100\nslow_ms = 1000\ninterval_ms = 100\nsettle_ms = 100\n";
    fs::write(&config, format!("[[target]]\npid = {pid}\n[settings]\n{pace}{settings}")).unwrap();
    let mut command = Command::new(COWSLIP);
    command.args(["promote", "--once", "--json", "-", "--config"]).arg(&config).args(options);
    let ran = run(&mut command);
    let json = serde_json::from_str(&ran.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", ran.stdout, ran.stderr));
    (json, ran.status.code())
}

#[test]
fn a_program_that_fits_into_its_limit_still_does_after_a_promotion() {
    let Some((folder, program)) = place("promote-limit") else { return };
    let Some(group) = Group::new(&folder, "66M") else { return };
    // 58 MiB; all pages of all regions would be 64.
    let mut target = confined(&group, &program, 32, 465);
    let ran = promote(target.pid(), &["--once", "--coverage", "1", "--stall-budget", "100"]);
    assert_eq!(ran.status.code(), Some(1), "{}", ran.stderr);
    assert!(ran.stdout.contains("32  limit_near: left: its control group"), "{}", ran.stdout);
    target.fill(32..34, 512);
    target.fill(34..35, 256);
    assert_eq!((target.tell("check").as_str(), target.huge_mib()), ("0", 0));
}

#[test]
fn nor_does_a_daemon_fill_a_group_and_the_limit_of_a_group_above_counts() {
    let Some((folder, program)) = place("promote-limit-daemon") else { return };
    let Some(group) = Group::new(&folder, "66M") else { return };
    let below = group.below();
    let mut target = confined(&below, &program, 32, 465);
    let config = folder.0.join("promote.toml");
    let settings = "slow_ms = 1000\ncpu_percent = 100\ninterval_ms = 50\nsettle_ms = 100\n";
    let pid = target.pid();
    fs::write(&config, format!("[[target]]\npid = {pid}\n[settings]\n{settings}")).unwrap();
    let (daemon, address) = daemon_of(pid, &["--config", config.to_str().unwrap()]);
    until("it is known", || scrape(&address).contains("reason=\"limit_near\"} 32\n"));
    assert!(scrape(&address).contains("limit_room_bytes{pid="), "{}", scrape(&address));
    target.fill(32..34, 512);
    target.fill(34..35, 256);
    assert_eq!((target.tell("check").as_str(), target.huge_mib()), ("0", 0));
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn regions_without_absent_pages_are_promoted_near_a_limit_too() {
    let Some((folder, program)) = place("promote-limit-full") else { return };
    let Some(group) = Group::new(&folder, "52M") else { return };
    let mut target = confined(&group, &program, 20, 512);
    let (report, code) = once(&folder, &target, "", &["--coverage", "0.9"]);
    assert_eq!((code, target.huge_mib()), (Some(0), 40), "{report:#}");
    assert_eq!(report["processes"][0]["limits"][0]["limit_bytes"], 52 << 20, "{report:#}");
    assert_eq!(target.tell("check"), "0");
}

/// With no room kept free, some regions are promoted, until the next one would hit the limit.
#[test]
fn what_is_reported_as_promoted_is_huge_and_the_rest_is_left() {
    let Some((folder, program)) = place("promote-limit-told") else { return };
    let Some(group) = Group::new(&folder, "66M") else { return };
    let mut target = confined(&group, &program, 32, 465);
    let none = "keep_below_limit_percent = 0\nkeep_below_limit_mib = 0\n";
    let (report, code) = once(&folder, &target, none, &["--coverage", "1"]);
    assert_eq!(code, Some(1), "{report:#}");
    let promoted = report["processes"][0]["promotions"].as_u64().unwrap();
    assert!(promoted > 0 && promoted < 32, "{report:#}");
    assert_eq!((2 * promoted, regions(&report, "huge")), (target.huge_mib(), promoted));
    assert_eq!((regions(&report, "full"), regions(&report, "limit_near")), (0, 32 - promoted));
    assert_eq!(target.tell("check"), "0");
}
