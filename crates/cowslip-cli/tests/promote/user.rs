//! Promotion by users with the documented capabilities, and without them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use crate::support::{COWSLIP, run};
use crate::target::{Program, place};

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// Runs a program as an unprivileged user, with the named capabilities.
pub(crate) fn as_nobody(program: &Path, capabilities: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.arg(format!("--inh-caps=-all{capabilities}"));
    command.arg(format!("--ambient-caps=-all{capabilities}"));
    command.arg(program);
    command
}

#[test]
fn the_documented_capabilities_are_enough_and_without_them_the_refusal_names_them() {
    if !is_root() {
        println!("SKIPPED: root: becoming another user needs it");
        return;
    }
    let Some((folder, program)) = place("promote-nobody") else { return };
    // The build directory may be closed to others. Another process copies: if this one had the copy open
    // for writing while a test next to this one forks, the kernel would refuse to run it.
    let command = folder.0.join("cowslip");
    assert!(Command::new("cp").arg(COWSLIP).arg(&command).status().unwrap().success());
    let promote = |capabilities: &str, pid: u32| {
        let mut nobody = as_nobody(&command, capabilities);
        run(nobody.args(["promote", "--once", "--stall-budget", "100", "--pid", &pid.to_string()]))
    };
    let fill = |mut target: Program| {
        target.tell("map 4");
        target.fill(0..4, 512);
        target
    };
    let roots = fill(Program::start(&mut Command::new(&program)));
    let refused = promote("", roots.pid());
    assert_eq!(refused.status.code(), Some(4), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"),
        "{}",
        refused.stderr
    );
    assert_eq!(roots.huge_mib(), 0);
    let done = promote(",+sys_ptrace,+dac_read_search,+sys_nice", roots.pid());
    assert!(done.status.success(), "{}", done.stderr);
    assert_eq!(roots.huge_mib(), 8);

    let mut own = fill(Program::start(&mut as_nobody(&program, "")));
    let refused = promote("", own.pid());
    assert_eq!(refused.status.code(), Some(4), "{}", refused.stderr);
    assert!(refused.stderr.contains("CAP_SYS_NICE") && refused.stderr.contains("setcap"));
    assert_eq!(own.huge_mib(), 0);
    let done = promote(",+sys_nice", own.pid());
    assert!(done.status.success(), "{}", done.stderr);
    assert_eq!((own.huge_mib(), own.tell("check").as_str()), (8, "0"));
}

#[test]
fn file_capabilities_are_enough_for_a_user_without_any() {
    if !is_root() {
        println!("SKIPPED: root: becoming another user needs it");
        return;
    }
    let Some((folder, program)) = place("promote-setcap") else { return };
    let command = folder.0.join("cowslip");
    assert!(Command::new("cp").arg(COWSLIP).arg(&command).status().unwrap().success());
    let mut words = cowslip_sys::capabilities::SETCAP.split(' ');
    let documented = words.nth(1).unwrap();
    match Command::new("setcap").arg(documented).arg(&command).output() {
        Ok(set) if set.status.success() => {}
        Ok(set) => {
            println!("SKIPPED: setcap: {}", String::from_utf8_lossy(&set.stderr));
            return;
        }
        Err(error) => {
            println!("SKIPPED: setcap: {error}");
            return;
        }
    }
    let mut target = Program::start(&mut Command::new(&program));
    target.tell("map 4");
    target.fill(0..4, 512);
    // No capability is inherited: the program has only those of its file.
    let mut promote = as_nobody(&command, "");
    let pid = target.pid().to_string();
    let done = run(promote.args(["promote", "--once", "--stall-budget", "100", "--pid", &pid]));
    assert!(done.status.success(), "{}", done.stderr);
    assert_eq!((target.huge_mib(), target.tell("check").as_str()), (8, "0"));
}
