//! Calls and faults have their native results: programs print the same under `cowslip run`.

mod support;

use std::process::Command;

use serde_json::Value;
use support::{Folder, compile, run, under_cowslip};

const MODES: [&[&str]; 3] = [&[], &["--without-userfaultfd"], &["--backing", "base"]];

/// Runs a program natively and under Cowslip, which freezes while it runs, and returns the reports.
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

/// Segments attached over memory, and where memory was given back.
#[test]
fn shared_segments_are_shared() {
    compared("segments");
}

#[test]
fn advice_by_a_descriptor_is_followed() {
    compared("advised");
}

/// Counts the program's words that are missing in its core dump and in a child's. None if there are no dumps here.
fn dumped(options: Option<&[&str]>) -> Option<[usize; 2]> {
    const WORDS: usize = (32 << 20) / 8;
    const FIRST: u64 = 0x6d75_7064_6564_0000;
    let folder = Folder::new("dumped");
    let program = compile(&folder, "dumped")?;
    let mut command = match options {
        None => Command::new(&program),
        Some(options) => {
            let mut command = Command::new(support::COWSLIP);
            command.arg("run").args(options).arg("--").arg(&program);
            command
        }
    };
    let ran = run(command.current_dir(&folder.0));
    if let Some(skipped) = ran.stdout.lines().find(|line| line.starts_with("SKIPPED")) {
        println!("{skipped}");
        return None;
    }
    Some(["of_child", "core"].map(|name| {
        let core = std::fs::read(folder.0.join(name)).unwrap();
        let mut found = vec![false; WORDS];
        for word in core.chunks_exact(8) {
            let word = u64::from_le_bytes(word.try_into().unwrap());
            let index = word.wrapping_sub(FIRST) as usize;
            found.get_mut(index).into_iter().for_each(|flag| *flag = true);
        }
        found.iter().filter(|flag| !**flag).count()
    }))
}

#[test]
fn core_dumps_hold_the_memory() {
    let Some(native) = dumped(None) else { return };
    assert_eq!(native, [0, 0], "natively");
    for options in MODES {
        assert_eq!(dumped(Some(options)), Some([0, 0]), "{options:?}");
    }
}
