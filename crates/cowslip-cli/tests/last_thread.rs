//! A process ends with the last thread of its program, although the library has threads of its own.

mod support;

use std::path::Path;
use std::process::Command;
use std::thread;

use support::{COWSLIP, Folder, compile, run};

const WAYS: [&str; 9] = [
    "exit",
    "without descriptors",
    "system call",
    "cancelled",
    "worker",
    "worker by a system call",
    "child",
    // Its parent has ended, so that it has two arenas of its own. Either's thread may be the last.
    "heir",
    "cloned",
];

/// Enough at a time to make the machine busy: then threads end in every order.
const AT_ONCE: usize = 8;

#[test]
fn a_process_ends_with_the_last_thread_of_its_program() {
    let folder = Folder::new("last-thread");
    let Some(program) = compile(&folder, "last_thread") else { return };
    for way in WAYS {
        let native = run(Command::new(&program).arg(way));
        for options in [&[][..], &["--without-userfaultfd"]] {
            let ends_as_native = |log: &Path| {
                let mut command = Command::new(COWSLIP);
                command.arg("run").args(options).arg("--log").arg(log).arg("--").arg(&program);
                let ran = run(command.arg(way));
                assert_eq!(
                    (ran.status, &ran.stdout),
                    (native.status, &native.stdout),
                    "{way} {options:?}"
                );
                // Otherwise no thread of the library could have kept the process.
                let said = std::fs::read_to_string(log).unwrap();
                assert!(said.contains("frozen"), "{way} {options:?}: {said}");
                std::fs::remove_file(log).unwrap();
            };
            let times = if way == "heir" { AT_ONCE } else { 1 };
            thread::scope(|scope| {
                for i in 0..times {
                    let log = folder.0.join(format!("log.{i}"));
                    scope.spawn(move || ends_as_native(&log));
                }
            });
        }
    }
}
