//! A library's handlers around forks (`pthread_atfork(3)`) run before ours, in any order of registration.

mod support;

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use support::{Folder, run, under_cowslip};

#[test]
fn a_library_that_registers_in_its_constructor_keeps_its_lock_through_forks() {
    let folder = Folder::new("handlers");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let (library, program) = (folder.0.join("libhandlers.so"), folder.0.join("handlers"));
    let cc = |words: &[&OsStr]| {
        Command::new("cc").args(["-O1", "-Wall", "-Werror", "-pthread"]).args(words).status()
    };
    let source = sources.join("handlers_library.c");
    let built = cc(&["-shared", "-fPIC", "-o"]
        .map(OsStr::new)
        .into_iter()
        .chain([library.as_os_str(), source.as_os_str()])
        .collect::<Vec<_>>());
    let Ok(built) = built else { return println!("SKIPPED: cc: {}", built.unwrap_err()) };
    assert!(built.success());
    let source = sources.join("handlers.c");
    let words = [OsStr::new("-o"), program.as_os_str(), source.as_os_str(), library.as_os_str()];
    assert!(cc(&words).unwrap().success());
    let native = run(&mut Command::new(&program));
    assert_eq!(native.stdout, "forked\n", "natively: {}", native.status);
    let (ran, report) = under_cowslip(&[], &[program.as_os_str()]);
    assert_eq!((ran.status, ran.stdout), (native.status, native.stdout), "{}", ran.stderr);
    let report = report.expect("a report");
    assert!(report["freezes"].as_u64() >= Some(1), "{report}");
}
