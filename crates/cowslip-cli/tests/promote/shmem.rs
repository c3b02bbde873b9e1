//! Shared memory: of each kind, and of several processes.

use std::process::Command;

use serde_json::Value;

use crate::command::descendant;
use crate::support::{COWSLIP, run};
use crate::target::{MIB, Program, once, place, regions};
use crate::user::is_root;

const KINDS: [&str; 4] = ["without a name", "a memfd", "/dev/shm", "System V"];
const MEMFD: usize = 1;
const SEALED: usize = 4;
const MISALIGNED: usize = 5;

/// Three full regions, and one of 300 pages.
fn filled(target: &mut Program, kind: usize) {
    target.tell(&format!("map_shared 4 {kind}"));
    target.fill(0..3, 512);
    target.fill(3..4, 300);
}

fn huge_mib(target: &Program) -> u64 {
    target.sum("ShmemPmdMapped:") / MIB
}

/// True if the kernel can; reports a skipped test otherwise.
fn can_collapse(target: &Program) -> bool {
    let expected = std::env::var("COWSLIP_EXPECT").unwrap_or_default();
    let can = huge_mib(target) > 0;
    assert!(can || !expected.split(',').any(|name| name == "shmem_collapse"), "it is declared");
    if !can {
        println!("SKIPPED: shmem_collapse: see shmem_enabled");
    }
    can
}

#[test]
fn shared_memory_of_each_kind_becomes_huge_where_it_is_full() {
    let Some((_folder, program)) = place("promote-shmem") else { return };
    for (kind, name) in KINDS.into_iter().enumerate() {
        let mut target = Program::start(&mut Command::new(&program));
        filled(&mut target, kind);
        assert_eq!(huge_mib(&target), 0, "{name}");
        let (report, code) = once(target.pid(), &[]);
        if !can_collapse(&target) {
            return;
        }
        assert_eq!((code, huge_mib(&target)), (Some(0), 6), "{name}: {report:#}");
        let of = |field: &str| report["processes"][0]["after"][field].as_u64().unwrap() / 4096;
        assert_eq!((of("shmem_huge_bytes"), of("shmem_bytes")), (3 * 512, 3 * 512 + 300), "{name}");
        assert_eq!(report["processes"][0]["promotions"], 3, "{name}: {report:#}");
        assert_eq!(target.tell("check"), "0", "{name}");
    }
}

#[test]
fn sealed_files_and_mappings_beside_the_files_huge_pages_are_left_alone() {
    let Some((_folder, program)) = place("promote-shmem-left") else { return };
    for kind in [SEALED, MISALIGNED] {
        if kind == SEALED && !is_root() {
            println!("SKIPPED: root: seals are shown to root");
            continue;
        }
        let mut target = Program::start(&mut Command::new(&program));
        filled(&mut target, kind);
        let (report, _) = once(target.pid(), &[]);
        assert_eq!(huge_mib(&target), 0, "{report:#}");
        assert_eq!(report["processes"][0]["promotions"], 0, "{report:#}");
        assert_eq!((regions(&report, "full"), regions(&report, "given_up")), (0, 0));
        let unaligned = report["processes"][0]["after"]["shmem_unaligned_bytes"].as_u64().unwrap();
        assert_eq!(unaligned > 0, kind == MISALIGNED, "{report:#}");
        assert_eq!(target.tell("check"), "0");
    }
}

#[test]
fn a_region_of_two_processes_is_promoted_once() {
    let Some((_folder, program)) = place("promote-shmem-twice") else { return };
    let mut target = Program::start(&mut Command::new(program));
    filled(&mut target, MEMFD);
    target.tell("fork_and_read");
    let child = descendant(target.pid(), "promoted");
    let both = |options: &[&str]| -> Value {
        let mut command = Command::new(COWSLIP);
        command.args(["promote", "--once", "--stall-budget", "100", "--json", "-"]);
        for pid in [target.pid(), child] {
            command.arg("--pid").arg(pid.to_string());
        }
        serde_json::from_str(&run(command.args(options)).stdout).unwrap()
    };
    let sum = |report: &Value, field: &str| -> u64 {
        let all = report["processes"].as_array().unwrap().iter();
        all.map(|process| process.pointer(field).and_then(Value::as_u64).unwrap_or(0)).sum()
    };
    // A read of shared memory makes a page: the fourth region is full as well.
    let plan = both(&["--dry-run"]);
    assert_eq!(sum(&plan, "/regions_by_reason/full"), 4, "{plan:#}");
    assert_eq!(sum(&plan, "/regions_by_reason/elsewhere"), 4, "{plan:#}");
    let report = both(&[]);
    if !can_collapse(&target) {
        return;
    }
    assert_eq!((sum(&report, "/promotions"), huge_mib(&target)), (4, 8), "{report:#}");
    assert_eq!((target.tell("check"), target.tell("reap")), ("0".into(), "0".into()));
}

#[test]
fn pages_that_only_another_process_has_touched_count() {
    if !is_root() {
        println!("SKIPPED: root: pages of a file that are not mapped are shown to root");
        return;
    }
    let Some((_folder, program)) = place("promote-shmem-held") else { return };
    let mut target = Program::start(&mut Command::new(program));
    filled(&mut target, MEMFD);
    target.tell("fork");
    let child = descendant(target.pid(), "promoted");
    let (report, code) = once(child, &[]);
    target.tell("check");
    if !can_collapse(&target) {
        return;
    }
    assert_eq!((code, huge_mib(&target)), (Some(0), 6), "{report:#}");
    assert_eq!(regions(&report, "below_threshold"), 1, "{report:#}");
    assert_eq!((target.tell("check"), target.tell("reap")), ("0".into(), "0".into()));
}
