//! `cowslip doctor` as users run it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

/// A directory of this test, which every user can reach.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let place = std::env::temp_dir().join(format!("cowslip-{name}-{}", std::process::id()));
        fs::create_dir(&place).unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
        Self(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn doctor() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cowslip"));
    command.arg("doctor");
    command
}

/// The doctor as a user without privileges.
fn doctor_of_nobody(place: &Place) -> Command {
    if !is_root() {
        return doctor();
    }
    // The build directory may be closed to others. Another process copies: if this one had the copy
    // open for writing while a test next to this one forks, the kernel would refuse to run it.
    let copied = Command::new("cp").arg(doctor().get_program()).arg(&place.0).status().unwrap();
    assert!(copied.success());
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.arg(place.0.join("cowslip")).arg("doctor");
    command
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn capability<'a>(report: &'a Value, name: &str) -> &'a Value {
    let all = report["capabilities"].as_array().unwrap();
    all.iter().find(|entry| entry["name"] == name).unwrap_or_else(|| panic!("{name}: {report}"))
}

#[test]
fn without_privileges_userfaultfd_is_denied_not_unsupported() {
    let place = Place::new("doctor-nobody");
    let output = doctor_of_nobody(&place).args(["--json", "-"]).output();
    let output = output.expect("setpriv of util-linux is needed");
    let report = json(&output);
    let entry = capability(&report, "userfaultfd");
    let setting = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
    if setting.trim() == "1" || entry["detail"] == "by /dev/userfaultfd" {
        assert_eq!(entry["answer"], "available", "{entry}");
        return;
    }
    assert_eq!(entry["answer"], "denied", "{entry}");
    let fix = entry["fix"].as_str().unwrap();
    assert!(fix.starts_with("sudo ") && fix.contains("cowslip setup --user "), "{entry}");
    assert_eq!(capability(&report, "thaw")["answer"], "denied");
    // The way without userfaultfd still works, and its limits are reported.
    assert_eq!(capability(&report, "freeze")["answer"], "available");
    assert_eq!(capability(&report, "fork")["answer"], "available");
    assert_eq!(report["verdict"]["standing"], "denied");
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let sentence = report["verdict"]["sentence"].as_str().unwrap();
    assert!(
        sentence.contains("without userfaultfd") && sentence.contains("cowslip setup --user"),
        "{sentence}"
    );
}

#[test]
fn one_setcap_gives_all_that_a_user_lacks() {
    let place = Place::new("doctor-setcap");
    let output = doctor_of_nobody(&place).args(["--json", "-"]).output();
    let report = json(&output.expect("setpriv of util-linux is needed"));
    let uses = report["uses"].as_array().unwrap().iter();
    let fixes = uses.flat_map(|usage| usage["fixes"].as_array().unwrap()).filter_map(Value::as_str);
    let commands: std::collections::BTreeSet<&str> =
        fixes.filter(|fix| fix.contains("setcap ")).collect();
    // A second one would revoke the first.
    assert_eq!(commands.len(), 1, "{commands:?}");
}

#[test]
fn every_command_that_it_gives_is_one() {
    let place = Place::new("doctor-commands");
    let output = doctor_of_nobody(&place).arg("--json").output();
    let report = json(&output.expect("setpriv of util-linux is needed"));
    for fix in report["uses"].as_array().unwrap().iter().flat_map(|usage| usage["fixes"].as_array())
    {
        for fix in fix.iter().map(|fix| fix.as_str().unwrap()) {
            assert!(fix.split(' ').count() > 1, "{fix:?}: {report}");
        }
    }
}

#[test]
fn it_begins_with_the_verdict_and_has_no_colour_in_a_pipe() {
    let place = Place::new("doctor-table");
    let file = place.0.join("report.json");
    let output = doctor().arg("--json").arg(&file).output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    let report: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert!(!table.contains('\x1b'), "{table}");
    assert_eq!(report["schema"], "cowslip.doctor/1");
    assert_eq!(report["verdict"]["line"].as_str(), table.lines().next(), "{table}");
    for usage in report["uses"].as_array().unwrap() {
        let name = usage["name"].as_str().unwrap();
        let line = table.lines().find(|line| line.trim_start().starts_with(name));
        let line = line.unwrap_or_else(|| panic!("{name}: {table}"));
        assert!(line.ends_with(usage["by"].as_str().unwrap()), "{line}");
        for fix in usage["fixes"].as_array().unwrap() {
            assert!(table.contains(fix.as_str().unwrap()), "{fix}: {table}");
        }
    }
    assert_eq!(report["verdict"]["exit_code"], Value::from(output.status.code()));
}

#[test]
fn verbose_shows_each_probe_and_each_permission_of_a_trace() {
    let brief = String::from_utf8(doctor().output().unwrap().stdout).unwrap();
    let output = doctor().arg("--verbose").output().unwrap();
    let verbose = String::from_utf8(output.stdout).unwrap();
    for name in ["userfaultfd-features", "pagemap-scan", "kernel-faults"] {
        let has = |text: &str| text.lines().any(|line| line.starts_with(name));
        assert!(has(&verbose) && !has(&brief), "{name}: {verbose}");
    }
}

#[test]
fn a_report_that_cannot_be_written_is_an_error_that_names_the_file() {
    let output = doctor().args(["--json", "/proc/nowhere/report.json"]).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.starts_with("cowslip: ") && message.contains("/proc/nowhere/"), "{message}");
    assert_eq!(output.status.code(), Some(2), "{message}");
}
