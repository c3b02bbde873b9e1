//! Programs that confine themselves, or close foreign descriptors, go on under `cowslip run` as they do natively.

mod support;

use std::ffi::OsStr;
use std::process::Command;

use support::{Folder, compile, run, under_cowslip};

fn goes_on(words: &[&str]) {
    let folder = Folder::new("confined");
    let Some(program) = compile(&folder, "confined") else { return };
    let natively = run(Command::new(&program).args(words));
    assert!(natively.status.success(), "natively, {words:?}: {}", natively.stderr);
    let mut all = vec![program.as_os_str()];
    all.extend(words.iter().map(OsStr::new));
    let (ran, report) = under_cowslip(&[], &all);
    assert!(ran.status.success(), "{words:?}: {:?} {}", ran.status, ran.stderr);
    // A program that may open nothing can write no report.
    let forks = report.map(|report| report["forks"].as_u64());
    assert!(forks.is_none_or(|forks| forks >= Some(1)), "{words:?}");
}

#[test]
fn a_limit_of_no_files_at_all() {
    goes_on(&["files", "0"]);
    goes_on(&["files", "1"]);
}

#[test]
fn a_filter_that_refuses_to_wait_or_to_read() {
    goes_on(&["refuse", "ppoll"]);
    goes_on(&["refuse", "ppoll", "pselect6"]);
    goes_on(&["refuse", "read"]);
    goes_on(&["refuse", "read", "readv"]);
    // Then the program does not sleep either, and runs through all the faster.
    goes_on(&["refuse", "ppoll", "pselect6", "clock_nanosleep"]);
}

#[test]
fn a_child_that_shares_the_descriptors() {
    goes_on(&["clone"]);
}

#[test]
fn many_children_leave_the_program_its_descriptors() {
    goes_on(&["children"]);
}

#[test]
fn standard_descriptors_that_it_closed_stay_closed() {
    goes_on(&["closed"]);
}

#[test]
fn a_fork_leaves_a_thread_on_its_processors() {
    goes_on(&["affinity"]);
}
