//! `/dev/userfaultfd` for the group: a udev rule, for this boot and the next ones.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use super::group::{self, GROUP};
use super::machine::{Content, Machine, of_file};
use super::report::Change::{Made, Needless};
use super::report::{Outcome, Trouble};

const DEVICE: &str = "/dev/userfaultfd";
const RULES: &str = "/etc/udev/rules.d/60-cowslip.rules";
/// Rules of packages.
const PACKAGED: [&str; 2] =
    ["/usr/lib/udev/rules.d/60-cowslip.rules", "/lib/udev/rules.d/60-cowslip.rules"];
const RULE: &str = include_str!("../60-cowslip.rules");
/// Precedes the node's former owner, group and mode.
const BEFORE: &str = "# before: ";
const MODE: u32 = 0o660;

/// The owner, group and mode of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Access {
    owner: u32,
    group: u32,
    mode: u32,
}

impl Access {
    fn look() -> Result<Self, Trouble> {
        let node = fs::metadata(DEVICE).map_err(|error| {
            let fix = "without the device (Linux 6.1, CONFIG_USERFAULTFD) every user may have it by \
                `sysctl -w vm.unprivileged_userfaultfd=1`; a container is given it: --device /dev/userfaultfd";
            Trouble::new(format!("{DEVICE}: {error}"), fix)
        })?;
        Ok(Self { owner: node.uid(), group: node.gid(), mode: node.mode() & 0o7777 })
    }

    fn set(self) -> Result<(), Trouble> {
        let path = Path::new(DEVICE);
        chown(path, Some(self.owner), Some(self.group))
            .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(self.mode)))
            .map_err(|error| of_file("change", path, &error))
    }

    fn record(self) -> String {
        format!("{BEFORE}{} {} {:o}", self.owner, self.group, self.mode)
    }

    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix(BEFORE))?;
        let mut words = line.split(' ');
        let (owner, group) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Self { owner, group, mode: u32::from_str_radix(words.next()?, 8).ok()? })
    }
}

/// Writes the rule that udev applies when the machine starts.
pub(crate) fn write_rule(machine: &Machine) -> Outcome {
    if let Some(file) = PACKAGED.into_iter().find(|file| machine.exists(file)) {
        return Ok(Needless(format!("{file} is there, a package's")));
    }
    let before = match machine.content(RULES)? {
        Content::Foreign(text) if RULE.lines().last().is_some_and(|rule| text.contains(rule)) => {
            return Ok(Needless(format!(
                "{RULES} is there, of somebody else's making, and says the same"
            )));
        }
        Content::Ours(text) => Access::parse(&text),
        _ if machine.is_running() => Access::look().ok(),
        _ => None,
    };
    let before = before.map_or(String::new(), |access| access.record() + "\n");
    match machine.write(RULES, &format!("{before}{RULE}"))? {
        true => Ok(Made(RULES.to_owned())),
        false => Ok(Needless(format!("{RULES} is there"))),
    }
}

/// Applies the rule at once.
pub(crate) fn open_to_group(machine: &Machine) -> Outcome {
    let is_now = Access::look()?;
    let Some(group) = group::id(machine)? else {
        // In a dry run there is no group yet.
        return Ok(Made(format!("{DEVICE}: mode {MODE:o}, group {GROUP}")));
    };
    let wanted = Access { group, mode: MODE, ..is_now };
    let told = format!("{DEVICE}: mode {MODE:o}, group {GROUP}");
    if is_now == wanted {
        return Ok(Needless(told));
    }
    if machine.is_dry_run() {
        return Ok(Made(told));
    }
    let udev_runs = Path::new("/run/udev/control").exists();
    if udev_runs {
        // Its effect is checked below.
        let trigger = ["trigger", "--settle", "--sysname-match=userfaultfd"];
        let _ = machine.run("udevadm", &["control", "--reload"]);
        let _ = machine.run("udevadm", &trigger);
    }
    if Access::look()? != wanted {
        wanted.set()?;
    }
    let how = if udev_runs { "" } else { ", until the next boot: no udev runs here" };
    Ok(Made(told + how))
}

/// Removes the rule, and restores the device's former owner, group and mode.
pub(crate) fn undo(machine: &Machine) -> Outcome {
    let before = match machine.content(RULES)? {
        Content::Ours(text) => Access::parse(&text),
        _ => return Ok(Needless(format!("setup wrote no {RULES}"))),
    };
    let mut told = format!("{RULES} is removed");
    if machine.is_running()
        && let Some(before) = before
    {
        if Access::look().is_ok_and(|access| access != before) && !machine.is_dry_run() {
            before.set()?;
        }
        told += &format!(", {DEVICE} has mode {:o} as before", before.mode);
    }
    // After a failure the next undo needs it.
    machine.remove(RULES)?;
    if machine.is_running() && Path::new("/run/udev/control").exists() {
        let _ = machine.run("udevadm", &["control", "--reload"]);
    }
    Ok(Made(told))
}
