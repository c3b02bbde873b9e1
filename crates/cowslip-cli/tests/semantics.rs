//! Memory under `cowslip run` behaves like ordinary memory: a program that does everything to it, before a fork, after
//! it and in children, prints the same as natively.

mod support;

use std::process::Command;

use support::{Folder, compile, run, under_cowslip};

const MODES: [&[&str]; 4] =
    [&[], &["--without-userfaultfd"], &["--malloc", "keep"], &["--backing", "base"]];

#[test]
fn a_program_cannot_tell_an_arena_from_the_kernel() {
    let folder = Folder::new("semantics");
    let Some(program) = compile(&folder, "semantics") else { return };
    let native = run(&mut Command::new(&program));
    assert!(native.status.success(), "natively: {}\n{}", native.status, native.stdout);
    for options in MODES {
        let (ran, report) = under_cowslip(options, &[program.as_os_str()]);
        for (ours, theirs) in ran.stdout.lines().zip(native.stdout.lines()) {
            assert_eq!(ours, theirs, "{options:?}");
        }
        assert_eq!(ran.stdout.len(), native.stdout.len(), "{options:?}");
        assert!(ran.status.success(), "{options:?}: {}", ran.status);
        let report = report.expect("a report at exit");
        // Otherwise the kernel would be compared with itself.
        assert!(report["used_bytes"].as_u64() >= Some(64 << 20), "{options:?}: {report}");
        assert!(report["freezes"].as_u64() >= Some(5), "{options:?}: {report}");
    }
}
