//! A program that gives up rights has no thread that keeps them.

mod support;

use std::process::Command;

use support::{COWSLIP, Folder, compile, run};

/// With two threads, the one that forks may lack the rights that a thaw needs.
const TWO_THREADS: &str = "two threads";

const WAYS: [&str; 11] = [
    "users",
    "users by libc",
    "capabilities",
    "capabilities by number",
    "bounding set",
    "no new privileges",
    "user namespace",
    "mount namespace",
    "descriptors",
    "descriptors by range",
    TWO_THREADS,
];

/// The kernel or the program itself needs `/proc` for these.
const NEED_PROC: [&str; 3] = ["user namespace", "mount namespace", "descriptors by range"];

#[test]
fn a_program_that_gives_up_rights_has_no_thread_that_keeps_them() {
    let folder = Folder::new("rights");
    let Some(program) = compile(&folder, "rights") else { return };
    let roots: [&[&str]; 2] = [&[], &["chroot"]];
    let all = roots.into_iter().flat_map(|root| WAYS.map(|way| (root, way)));
    for (root, way) in all.filter(|(root, way)| root.is_empty() || !NEED_PROC.contains(way)) {
        let native = run(Command::new(&program).args(root).arg(way));
        if !native.status.success() {
            println!("SKIPPED: rights, {root:?} {way}: not to be had here: {}", native.stdout);
            continue;
        }
        let log = folder.0.join("log");
        let mut command = Command::new(COWSLIP);
        command.args(["run", "--log"]).arg(&log).arg("--").arg(&program);
        let ran = run(command.args(root).arg(way));
        let said = std::fs::read_to_string(&log).unwrap();
        assert_eq!(
            (ran.status, &ran.stdout),
            (native.status, &native.stdout),
            "{root:?} {way}: {said}"
        );
        // The descriptors of a thaw were opened in time. Without /proc there are none.
        let stays = way == TWO_THREADS || !root.is_empty() || !said.contains("left the arena");
        assert!(said.contains("frozen in") && stays, "{root:?} {way}: {said}");
        std::fs::remove_file(log).unwrap();
    }
}

/// An ordinary user cannot open the files of a process in `/proc` that may not be dumped.
#[test]
fn memory_stays_in_a_process_that_forbids_dumps() {
    let folder = Folder::new("undumpable");
    let Some(program) = compile(&folder, "undumpable") else { return };
    for (when, said) in [("after", "frozen in"), ("before", "no arena")] {
        let native = run(Command::new(&program).arg(when));
        if !native.status.success() {
            println!("SKIPPED: undumpable: not to be had here: {}", native.stdout);
            return;
        }
        let log = folder.0.join(when);
        let mut command = Command::new(COWSLIP);
        command.args(["run", "--log"]).arg(&log).arg("--").arg(&program);
        let ran = run(command.arg(when));
        let log = std::fs::read_to_string(&log).unwrap();
        assert_eq!((ran.status, &ran.stdout), (native.status, &native.stdout), "{when}: {log}");
        assert!(log.contains(said) && !log.contains("left the arena"), "{when}: {log}");
    }
}
