//! The proof of a setup: the doctor's findings in a process of the group without any privilege.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::group::{self, GROUP};
use super::machine::Machine;
use super::report::Change::Proved;
use super::report::{Outcome, Trouble};

const NOBODY: u32 = 65534;

pub(crate) fn run(machine: &Machine, without_huge_pages: bool) -> Outcome {
    let more = "cowslip doctor --verbose says which";
    let Some(group) = group::id(machine)? else {
        return Err(Trouble::new(format!("there is no group {GROUP}"), more));
    };
    let program = std::env::current_exe()
        .map_err(|error| Trouble::new(format!("where cowslip is: {error}"), more))?;
    let ran = Command::new(&program)
        .args(["doctor", "--json", "-"])
        .uid(NOBODY)
        .gid(group)
        .current_dir("/")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let output = ran.map_err(|error| {
        let why = format!("user {NOBODY} cannot run {}: {error}", program.display());
        Trouble::new(why, "install it where everybody may run it, below /usr")
    })?;
    let found: Value = serde_json::from_slice(&output.stdout).map_err(|error| {
        Trouble::new(format!("the doctor ended with {}: {error}", output.status), more)
    })?;
    let thaws = found["capabilities"].as_array().is_some_and(|all| {
        all.iter().any(|entry| entry["name"] == "thaw" && entry["answer"] == "available")
    });
    let has_huge_pages = without_huge_pages || found["verdict"]["huge_pages"] == true;
    let sentence = found["verdict"]["sentence"].as_str().unwrap_or_default();
    match thaws && has_huge_pages {
        true => Ok(Proved(format!("as user {NOBODY} of the group {GROUP}: {sentence}"))),
        false => {
            Err(Trouble::new(format!("as user {NOBODY} of the group {GROUP}: {sentence}"), more))
        }
    }
}
