//! Memory that a program freed by `MADV_FREE`: the kernel may take it, with a promoter as without one.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::explain::explained;
use crate::group::Group;
use crate::service::{daemon_of, scrape, until};
use crate::support::{COWSLIP, Folder, run};
use crate::target::{MIB, Program, once, place, promote, regions};
use crate::user::{as_nobody, is_root};

/// A program that has filled 64 regions and given them back, and uses 8 more; the address of the first.
fn with_freed(group: &Group, program: &Path) -> (Program, u64) {
    let mut target = Program::start(&mut group.shell("exec \"$2\"", &[program]));
    let address = u64::from_str_radix(&target.tell("map 72")[2..], 16).unwrap();
    target.fill(0..72, 512);
    assert_eq!(target.tell("free 0 64"), "0");
    // Some pages wait in a list of each processor before they bear the mark.
    assert!(target.sum("LazyFree:") > 127 * MIB);
    (target, address)
}

/// The rest of its memory after the kernel has reclaimed all that it can.
fn left_mib(group: &Group, target: &Program) -> u64 {
    group.reclaim();
    target.sum("Anonymous:") / MIB
}

#[test]
fn what_was_given_back_is_taken_after_a_promotion_as_natively() {
    let Some((folder, program)) = place("promote-freed") else { return };
    let Some(group) = Group::new(&folder, "1G") else { return };
    let (mut native, _) = with_freed(&group, &program);
    assert_eq!(left_mib(&group, &native), 16, "what the kernel takes by itself");
    assert_eq!(native.tell("check"), "0");
    drop(native);

    let (mut target, address) = with_freed(&group, &program);
    let (reason, human) = explained(&folder, &[(target.pid(), 1)], address, "");
    assert_eq!(reason, "lazily_freed", "{human}");
    assert!(human.contains("lazily freed") && human.contains("MADV_FREE"), "{human}");
    let (report, _) = once(target.pid(), &[]);
    assert_eq!(regions(&report, "lazily_freed"), if is_root() { 64 } else { 72 }, "{report:#}");
    let process = &report["processes"][0];
    let source = if is_root() { "frames" } else { "mappings" };
    assert_eq!(process["lazy_free_source"], source, "{report:#}");
    assert!(process["lazily_freed_bytes"].as_u64().unwrap() > 127 * MIB, "{report:#}");
    if is_root() {
        assert_eq!((&process["promotions"], target.huge_mib()), (&Value::from(8), 16));
    }
    assert_eq!(left_mib(&group, &target), 16);
    assert_eq!(target.tell("check"), "0");

    target.fill(0..64, 512);
    let (report, _) = once(target.pid(), &[]);
    assert_eq!(target.huge_mib(), 144, "it is in use again: {report:#}");
    assert_eq!(target.tell("check"), "0");
}

#[test]
fn a_daemon_leaves_what_was_given_back_to_the_kernel() {
    let Some((folder, program)) = place("promote-freed-daemon") else { return };
    let Some(group) = Group::new(&folder, "1G") else { return };
    let (mut target, _) = with_freed(&group, &program);
    let config = folder.0.join("promote.toml");
    let settings = "stall_percent = 100\nslow_ms = 1000\ncpu_percent = 100\ninterval_ms = 50\n\
                    promotion_cpu_percent = 100\nsettle_ms = 100\n";
    let pid = target.pid();
    fs::write(&config, format!("[[target]]\npid = {pid}\n[settings]\n{settings}")).unwrap();
    let (daemon, address) = daemon_of(pid, &["--config", config.to_str().unwrap()]);
    let looks = || {
        let text = scrape(&address);
        let line = text.lines().find_map(|line| line.strip_prefix("cowslip_promote_looks_total "));
        line.map_or(0, |count| count.parse::<u64>().unwrap())
    };
    let left = if is_root() { 64 } else { 72 };
    let is_left = format!("reason=\"lazily_freed\"}} {left}\n");
    until("it is left", || scrape(&address).contains(&is_left));
    let first = looks();
    until("it has looked ten times more", || looks() >= first + 10);
    assert!(scrape(&address).contains(&is_left), "{}", scrape(&address));
    assert_eq!(target.huge_mib(), if is_root() { 16 } else { 0 });
    assert_eq!(left_mib(&group, &target), 16);
    assert_eq!(daemon.end(), Some(0));
    assert_eq!(target.tell("check"), "0");
}

/// Like the packaged service: no page of a mapping with lazily freed pages is known to be in use.
#[test]
fn without_the_page_frames_nothing_of_such_a_mapping_is_promoted_and_that_is_said() {
    if !is_root() {
        println!("SKIPPED: root: becoming another user needs it");
        return;
    }
    let Some((folder, program)) = place("promote-freed-nobody") else { return };
    let Some(group) = Group::new(&folder, "1G") else { return };
    let (target, address) = with_freed(&group, &program);
    let command = folder.0.join("cowslip");
    assert!(Command::new("cp").arg(COWSLIP).arg(&command).status().unwrap().success());
    let as_service = |options: &[&str]| {
        let mut nobody = as_nobody(&command, ",+sys_ptrace,+dac_read_search,+sys_nice");
        run(nobody.args(["promote", "--pid", &target.pid().to_string()]).args(options))
    };
    let done = as_service(&["--once", "--stall-budget", "100"]);
    assert!(done.stdout.contains("root alone") && target.huge_mib() == 0, "{}", done.stdout);
    let told = as_service(&["--explain", &format!("{address:#x}")]).stdout;
    assert!(told.contains("512 lazily freed") && told.contains("only root sees"), "{told}");
    assert_eq!(left_mib(&group, &target), 16);
}

const GO: &str = r#"package main

import ("fmt"; "runtime/debug")

func main() {
	blocks := make([][]byte, 96)
	for i := range blocks {
		blocks[i] = make([]byte, 1<<20)
		for at := range blocks[i] { blocks[i][at] = byte(i) }
	}
	blocks = nil
	debug.FreeOSMemory()
	fmt.Println("freed")
	fmt.Scanln()
}
"#;

/// Uses the setting by which Go's runtime frees memory with `MADV_FREE`.
#[test]
fn what_a_go_program_gives_back_is_taken_after_a_promotion_as_natively() {
    let folder = Folder::new("promote-go");
    let (source, program) = (folder.0.join("main.go"), folder.0.join("freeing"));
    fs::write(&source, GO).unwrap();
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(&source).env("GOTOOLCHAIN", "local");
    match build.output() {
        Ok(built) => assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr)),
        Err(error) => return println!("SKIPPED: go: {error}"),
    }
    let Some(group) = Group::new(&folder, "1G") else { return };
    let left = |promotes: bool| {
        let mut command = group.shell("exec \"$2\"", &[&program]);
        let mut target = Program::start(command.env("GODEBUG", "madvdontneed=0"));
        assert_eq!(target.hear(), "freed");
        assert!(target.sum("LazyFree:") > 64 * MIB, "it gave back most of 96 MiB");
        if promotes {
            promote(target.pid(), &["--once", "--stall-budget", "100"]);
        }
        left_mib(&group, &target)
    };
    let (native, promoted) = (left(false), left(true));
    assert!(promoted <= native + 4, "{native} and {promoted} MiB are left");
}
