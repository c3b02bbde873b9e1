//! Programs that confine themselves, or close foreign descriptors, go on under `cowslip run` as they do natively.

mod support;

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::{COWSLIP, Folder, compile, run, under_cowslip};

fn goes_on(words: &[&str]) {
    let folder = Folder::new("confined");
    let Some(program) = compile(&folder, "confined") else { return };
    let natively = run(Command::new(&program).args(words));
    if natively.status.code() == Some(77) {
        return println!("SKIPPED: root: {words:?}");
    }
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
fn descriptors_that_are_opened_after_all_were_closed_by_number_stay_open() {
    goes_on(&["numbers", "range"]);
    goes_on(&["numbers", "each"]);
}

#[test]
fn a_fork_leaves_a_thread_on_its_processors() {
    goes_on(&["affinity"]);
}

#[test]
fn children_in_a_new_process_namespace() {
    goes_on(&["namespace"]);
}

/// A control group that counts tasks.
struct Group(PathBuf);

impl Group {
    fn new() -> Option<Self> {
        let roots = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(Path::new);
        let name = format!("cowslip-tasks-{}", std::process::id());
        let made = roots.map(|root| Self(root.join(&name))).into_iter().find(|group| {
            fs::create_dir(&group.0).is_ok() && fs::write(group.0.join("pids.max"), "max").is_ok()
        });
        if made.is_none() {
            println!("SKIPPED: control groups: none that counts tasks");
        }
        made
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Programs that ended leave it a little later.
        while fs::remove_dir(&self.0).is_err_and(|error| error.kind() == ErrorKind::ResourceBusy) {
            std::thread::yield_now();
        }
    }
}

/// Our thread has the place that is left.
#[test]
fn a_fork_or_a_thread_where_one_more_task_is_allowed() {
    let folder = Folder::new("tasks");
    let Some(program) = compile(&folder, "confined") else { return };
    let Some(group) = Group::new() else { return };
    let (tasks, limit) = (group.0.join("cgroup.procs"), group.0.join("pids.max"));
    for what in ["fork", "_Fork", "number", "thread"] {
        for is_native in [true, false] {
            fs::write(&limit, "max").unwrap();
            let report = folder.0.join(what);
            let mut command = Command::new("sh");
            command.args(["-c", "echo $$ >$0 && exec \"$@\""]).arg(&tasks);
            if !is_native {
                command.arg(COWSLIP).args(["run", "--report"]).arg(&report).arg("--");
            }
            let ran = run(command.arg(&program).args(["tasks", what]).arg(&limit));
            assert!(ran.status.success(), "{what}, natively: {is_native}: {}", ran.stderr);
            if !is_native {
                let report = fs::read_to_string(&report).unwrap();
                let report: Value = serde_json::from_str(&report).unwrap();
                assert!(report["freezes"].as_u64() >= Some(1), "{report}");
                assert_eq!(report["used_bytes"], 0, "{what}: {report}");
            }
        }
    }
}

/// The limit is that of the address space: the service thread's task is not in the way.
#[test]
fn a_thread_that_is_refused_for_its_stack_costs_no_arena() {
    let folder = Folder::new("stack");
    let Some(program) = compile(&folder, "confined") else { return };
    let (ran, report) = under_cowslip(&[], &[program.as_os_str(), "stack".as_ref()]);
    assert!(ran.status.success() && !ran.stderr.contains("leaves no task"), "{}", ran.stderr);
    let report = report.unwrap();
    assert!(report["forks"] == 2 && report["used_bytes"] != 0, "{report}");
}
