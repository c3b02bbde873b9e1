//! Calls and faults have the answers that they have natively: programs print the same under `cowslip run`.

mod support;

use std::process::Command;

use serde_json::Value;
use support::{Folder, compile, run, under_cowslip};

const MODES: [&[&str]; 3] = [&[], &["--without-userfaultfd"], &["--backing", "base"]];

/// Runs a program natively and under Cowslip, which freezes while it runs: what the reports say.
fn compared(name: &str) -> Option<[Value; 3]> {
    let folder = Folder::new(name);
    let program = compile(&folder, name)?;
    let native = run(&mut Command::new(&program));
    assert!(native.status.success(), "natively: {}\n{}", native.status, native.stdout);
    Some(MODES.map(|options| {
        let (ran, report) = under_cowslip(options, &[program.as_os_str()]);
        assert_eq!(ran.stdout, native.stdout, "{options:?}\n{}", ran.stderr);
        assert!(ran.status.success(), "{options:?}: {}", ran.status);
        let report = report.expect("a report at exit");
        assert!(report["freezes"].as_u64() >= Some(1), "{options:?}: {report}");
        report
    }))
}

#[test]
fn what_was_given_back_is_not_there() {
    let Some(reports) = compared("unmapped") else { return };
    for report in &reports {
        assert!(report["used_bytes"].as_u64() >= Some(64 << 20), "{report}");
    }
}

/// Attached over memory, or where some was given back.
#[test]
fn shared_segments_are_shared() {
    compared("segments");
}

#[test]
fn advice_by_a_descriptor_is_followed() {
    compared("advised");
}
