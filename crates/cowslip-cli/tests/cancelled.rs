//! A cancelled thread ends where it would natively, not inside a function of the library.

mod support;

use std::process::Command;

use support::{Folder, compile, run, under_cowslip};

#[test]
fn a_cancelled_thread_ends_at_the_programs_own_cancellation_points() {
    let folder = Folder::new("cancelled");
    let Some(program) = compile(&folder, "cancelled") else { return };
    let native = run(&mut Command::new(&program));
    assert!(native.status.success(), "natively: {}", native.status);
    let (ran, report) = under_cowslip(&[], &[program.as_os_str()]);
    assert_eq!((ran.status, ran.stdout), (native.status, native.stdout), "{}", ran.stderr);
    let report = report.expect("a report");
    assert!(report["freezes"].as_u64() >= Some(1), "{report}");
}
