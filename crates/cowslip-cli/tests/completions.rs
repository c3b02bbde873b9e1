//! `cowslip completions` for shells, and the man pages that packages install.

mod support;

use std::fs;
use std::process::Command;

use support::{COWSLIP, Folder, run};

#[test]
fn bash_completes_a_command_and_its_options() {
    let script = r#"
        source <("$0" completions bash)
        complete_word() { COMP_WORDS=(cowslip "$@"); COMP_CWORD=$#; _cowslip cowslip "${@: -1}" "${COMP_WORDS[COMP_CWORD-1]}"; echo "${COMPREPLY[*]}"; }
        complete_word comp
        complete_word serve --cache-
    "#;
    let ran = run(Command::new("bash").args(["-ec", script, COWSLIP]));
    assert_eq!(ran.stdout, "compare completions\n--cache-size\n", "{}", ran.stderr);
}

#[test]
fn another_shell_is_a_wrong_request_that_names_those_there_are() {
    let ran = run(Command::new(COWSLIP).args(["completions", "tcsh"]));
    assert_eq!(ran.status.code(), Some(2));
    assert!(ran.stderr.contains("bash") && ran.stderr.contains("fish"), "{}", ran.stderr);
}

#[test]
fn each_command_has_a_page_and_hidden_ones_have_none() {
    let folder = Folder::new("pages");
    let ran = run(Command::new(COWSLIP).arg("man").arg(&folder.0).arg("2026-11-24"));
    assert_eq!(ran.status.code(), Some(0), "{}", ran.stderr);
    let has =
        |name: &str| fs::read_to_string(folder.0.join(name)).is_ok_and(|page| !page.is_empty());
    assert!(has("cowslip.1") && has("cowslip-run.1") && has("cowslip-image-verify.1"));
    assert!(!has("cowslip-man.1"));
}
