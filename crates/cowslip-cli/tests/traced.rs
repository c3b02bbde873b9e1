//! A traced program has no thread that its tracer does not expect.

mod support;

use std::process::Command;

use support::{COWSLIP, Folder, compile, run};

#[test]
fn a_traced_program_is_left_alone_and_its_tracer_is_helped() {
    let folder = Folder::new("traced");
    let Some(program) = compile(&folder, "traced") else { return };
    let native = run(&mut Command::new(&program));
    assert_eq!(native.stdout, "traced: 1\nitself: 0\n");
    let log = folder.0.join("log");
    let mut command = Command::new(COWSLIP);
    let ran = run(command.arg("run").arg("--log").arg(&log).arg("--").arg(&program));
    assert_eq!((ran.status, ran.stdout), (native.status, native.stdout), "{}", ran.stderr);
    let said = std::fs::read_to_string(&log).unwrap();
    assert_eq!(said.matches("traces it").count(), 1, "{said}");
    assert!(said.contains("frozen"), "the tracer's own fork: {said}");
}
