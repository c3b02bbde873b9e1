//! Families of processes under `cowslip run`: their inherited memory, their own mappings, and the memory that these
//! take.

mod support;

use std::ffi::OsStr;

use support::{Folder, compile, run, under_cowslip};

/// Checks that `lineage` prints the same for `what` under Cowslip as natively, and returns its report.
fn as_natively(options: &[&str], what: &str) -> Option<serde_json::Value> {
    let folder = Folder::new("lineage");
    let program = compile(&folder, "lineage")?;
    let native = run(std::process::Command::new(&program).arg(what));
    assert!(native.status.success(), "natively: {}", native.stdout);
    let mut report = None;
    for more in [&[][..], &["--without-userfaultfd"]] {
        let options = [options, more].concat();
        let (ran, its) = under_cowslip(&options, &[program.as_os_str(), OsStr::new(what)]);
        assert_eq!(ran.stdout, native.stdout, "{what} {options:?}");
        assert_eq!((ran.status, ran.stderr.as_str()), (native.status, ""), "{what} {options:?}");
        report = report.or(its);
    }
    report
}

#[test]
fn workers_keep_their_tables_when_the_master_dies_and_one_of_them_maps_more() {
    as_natively(&[], "orphans");
}

/// Ten times the arena's size goes through it: memory that did not fit would be mapped elsewhere.
#[test]
fn memory_given_back_between_forks_is_used_again() {
    for what in ["rounds", "rounds-beside-a-child"] {
        let Some(report) = as_natively(&["--capacity", "64M"], what) else { return };
        assert_eq!(report["passed_mappings"], 0, "{what}: {report}");
    }
}

#[test]
fn a_worker_has_an_arena_of_its_own() {
    let folder = Folder::new("worker");
    let log = folder.0.join("log");
    let log_option = log.to_str().expect("a path of letters");
    if as_natively(&["--arena-after", "0", "--log", log_option], "worker").is_none() {
        return;
    }
    let said = std::fs::read_to_string(&log).expect("a log");
    // With userfaultfd and without, in the first process and its worker.
    assert_eq!(said.matches("arena of").count(), 4, "{said}");
    let of = |line: &str| line.split(':').next().map(str::to_owned);
    let makers: Vec<_> = said.lines().filter(|line| line.contains("arena of")).map(of).collect();
    for maker in makers {
        let froze = |line: &&str| of(line) == maker && line.contains("frozen");
        assert!(said.lines().any(|line| froze(&line)), "{maker:?} never froze its own: {said}");
    }
}

#[test]
fn memory_in_thousands_of_pieces_leaves_and_forks_as_ever() {
    let Some(report) = as_natively(&[], "pieces") else { return };
    assert!(report["left_bytes"].as_u64() > Some(0), "{report}");
}
