//! Putting `cowslip run --` in front of a program is no risk: it runs as before where Cowslip cannot help.

mod support;

use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use support::process::copy_program;
use support::{COWSLIP, Folder, Ran, compile, run, under_cowslip};

const TRUE: &str = "/bin/true";

fn told(options: &[&str], program: &[&str]) -> Ran {
    run(Command::new(COWSLIP).arg("run").args(options).arg("--").args(program))
}

#[test]
fn a_small_program_has_no_arena() {
    let ran = told(&["--log", "-"], &[TRUE]);
    assert!(ran.status.success() && ran.stderr.contains("loaded"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("arena of"), "{}", ran.stderr);
    let larger = ["/usr/bin/perl", "-e", "$x = 'x' x 1_200_000"];
    let ran = told(&["--log", "-"], &larger);
    assert!(!ran.stderr.contains("arena of"), "{}", ran.stderr);
    let ran = told(&["--log", "-", "--arena-after", "0"], &larger);
    assert!(ran.status.success() && ran.stderr.contains("arena of"), "{}", ran.stderr);
}

#[test]
fn what_cannot_be_run_is_said_as_env_says_it() {
    let code = |options: &[&str], program: &str| told(options, &[program]).status.code();
    assert_eq!(code(&[], "/no/such/program"), Some(127));
    assert_eq!(code(&[], "no-such-program"), Some(127));
    assert_eq!(code(&[], "/etc/passwd"), Some(126));
    assert_eq!(code(&[], "/tmp"), Some(126));
    assert!(told(&[], &["/tmp"]).stderr.contains("cannot run /tmp: it is a folder"));
    let usage = run(Command::new(COWSLIP).args(["run", "--no-such-option"])).stderr;
    assert!(usage.contains("Usage: cowslip run [OPTIONS] [--] <PROGRAM>"), "{usage}");
    for option in ["--log", "--report"] {
        let ran = told(&[option, "/no/such/folder/file"], &[TRUE]);
        assert_eq!(ran.status.code(), Some(2), "{}", ran.stderr);
        assert!(
            ran.stderr.contains(option) && ran.stderr.contains("/no/such/folder"),
            "{}",
            ran.stderr
        );
    }
}

#[test]
fn an_answer_that_cannot_be_written_is_wrong_usage() {
    let ran = run(Command::new(COWSLIP).args(["status", "--json=/no/such/folder/file"]));
    assert_eq!(ran.status.code(), Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("/no/such/folder/file"), "{}", ran.stderr);
}

/// Runs a program under `cowslip run` as a user without any privilege.
fn as_nobody(options: &[&str], program: &[&OsStr]) -> Option<Ran> {
    let setting = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    if !is_root || setting.is_ok_and(|setting| setting.trim() == "1") {
        println!("SKIPPED: root: who is no user without userfaultfd");
        return None;
    }
    // Every user may enter the folder.
    let folder = Folder::new("nobody");
    let all = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&folder.0, all).unwrap();
    let beside = Path::new(COWSLIP).parent().unwrap();
    for file in ["cowslip", "libcowslip_preload.so", "libcowslip_malloc.so"] {
        copy_program(beside.join(file), folder.0.join(file));
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(folder.0.join("cowslip"));
    Some(run(command.arg("run").args(options).arg("--").args(program)))
}

/// Counts the mappings of our libraries.
fn grep_as_nobody(options: &[&str]) -> Option<Ran> {
    as_nobody(options, &["grep", "-c", "libcowslip", "/proc/self/maps"].map(OsStr::new))
}

#[test]
fn a_user_without_userfaultfd_runs_it_as_without_cowslip() {
    let Some(ran) = grep_as_nobody(&[]) else { return };
    assert_eq!((ran.stdout.trim(), ran.status.code()), ("0", Some(1)), "{}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("run: sudo "), "{}", ran.stderr);
    assert!(ran.stderr.trim_end().ends_with("/cowslip setup --user nobody"), "{}", ran.stderr);
    let quiet = grep_as_nobody(&["--quiet"]).unwrap();
    assert_eq!((quiet.stdout.trim(), quiet.stderr.as_str()), ("0", ""));
    assert_eq!(grep_as_nobody(&["--strict"]).unwrap().status.code(), Some(3));
    let plain = grep_as_nobody(&["--without-userfaultfd", "--backing", "base"]).unwrap();
    assert_ne!(plain.stdout.trim(), "0", "who asks gets it");
}

#[test]
fn the_environment_is_as_without_cowslip() {
    let list = ["/bin/bash", "-c", "env | grep -v -e ^_= -e ^SHLVL="];
    let natively = run(Command::new(list[0]).args(&list[1..]).env("LD_PRELOAD", "libm.so.6"));
    let mut command = Command::new(COWSLIP);
    command.args(["run", "--threshold", "1M", "--"]).args(list).env("LD_PRELOAD", "libm.so.6");
    let ran = run(&mut command);
    assert_eq!(ran.stdout, natively.stdout);
    // bash has an `unsetenv` of its own, which changes its variables only.
    let starts = told(&[], &["/bin/bash", "-c", "grep -c libcowslip /proc/self/maps; :"]);
    assert_eq!(starts.stdout.trim(), "0");
}

#[test]
fn a_program_that_filters_its_calls_ends_as_natively() {
    let folder = Folder::new("filtered");
    let Some(program) = compile(&folder, "filtered") else { return };
    for how in ["prctl", "seccomp", "asked"] {
        let natively = run(Command::new(&program).arg(how));
        assert_eq!(natively.stdout, "done\n", "natively: {:?}", natively.status);
        let (ran, report) = under_cowslip(&[], &[program.as_os_str(), OsStr::new(how)]);
        assert_eq!(ran.stdout, "done\n", "{how}: {:?} {}", ran.status, ran.stderr);
        let report = report.expect("a report, from before the filter");
        assert_eq!(report["freezes"], 1, "{report}");
        assert!(report["left_bytes"].as_u64() >= Some(64 << 20), "{report}");
    }
}

#[test]
fn a_filter_of_a_vforked_child_is_its_own() {
    let folder = Folder::new("filtered-child");
    let Some(program) = compile(&folder, "filtered") else { return };
    let (ran, report) = under_cowslip(&[], &[program.as_os_str(), OsStr::new("vfork")]);
    assert_eq!(ran.stdout, "done\n", "{:?} {}", ran.status, ran.stderr);
    let report = report.expect("a report");
    assert_eq!(report["left_bytes"], 0, "{report}");
}

#[test]
fn the_program_does_not_count_our_thread() {
    let folder = Folder::new("counted");
    let Some(program) = compile(&folder, "counted") else { return };
    let (ran, report) = under_cowslip(&[], &[program.as_os_str()]);
    assert_eq!(report.expect("a report")["freezes"], 1);
    assert_eq!(ran.stdout, "1 1\n", "{}", ran.stderr);
}

#[test]
fn a_child_is_empty_before_anybody_can_write_there() {
    let folder = Folder::new("wiped");
    let Some(program) = compile(&folder, "wiped") else { return };
    assert_eq!(run(&mut Command::new(&program)).stdout, "200\n", "natively");
    let (ran, report) = under_cowslip(&[], &[program.as_os_str()]);
    assert_eq!(ran.stdout, "200\n", "{}", ran.stderr);
    assert!(report.expect("a report")["freezes"].as_u64() >= Some(1));
    // Its second thread cannot be made to wait while the page moves.
    std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o755)).unwrap();
    let plain = ["--without-userfaultfd", "--backing", "base"];
    let Some(ran) = as_nobody(&plain, &[program.as_os_str()]) else { return };
    assert_eq!(ran.stdout, "200\n", "{}", ran.stderr);
}

#[test]
fn a_child_of_a_system_call_needs_no_lock_of_the_dynamic_linker() {
    let folder = Folder::new("loading");
    let Some(program) = compile(&folder, "loading") else { return };
    let module = folder.0.join("module.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/loading.c");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-DMODULE", "-o"]).arg(&module).arg(source);
    assert!(cc.status().unwrap().success());
    assert_eq!(run(Command::new(&program).arg(&module)).stdout, "0\n", "natively");
    let (ran, report) = under_cowslip(&[], &[program.as_os_str(), module.as_os_str()]);
    assert_eq!(ran.stdout, "0\n", "{}", ran.stderr);
    assert!(report.expect("a report")["freezes"].as_u64() >= Some(1));
}
