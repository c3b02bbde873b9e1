//! The group that may open userfaultfd, and the users that setup added to it.
//!
//! `/etc/sysusers.d/cowslip-setup.conf` makes the group, and records that setup made it and which users it added.

use super::machine::{Content, Machine};
use super::report::Change::{Made, Needless};
use super::report::{Outcome, Trouble};

pub(crate) const GROUP: &str = "cowslip";
const RECORD: &str = "/etc/sysusers.d/cowslip-setup.conf";
const MAKE: &str = "g cowslip -";
const MEMBER: &str = "# member: ";
/// Files of packages.
const PACKAGED: [&str; 2] = ["/usr/lib/sysusers.d/cowslip.conf", "/lib/sysusers.d/cowslip.conf"];

/// A line of `/etc/group`.
struct Group {
    id: u32,
    members: Vec<String>,
}

fn look(machine: &Machine) -> Result<Option<Group>, Trouble> {
    let all = machine.read("/etc/group")?.unwrap_or_default();
    Ok(all.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let &[GROUP, _, id, members] = fields.as_slice() else { return None };
        let members =
            members.split(',').filter(|member| !member.is_empty()).map(str::to_owned).collect();
        Some(Group { id: id.parse().ok()?, members })
    }))
}

/// The group's number, if it exists.
pub(crate) fn id(machine: &Machine) -> Result<Option<u32>, Trouble> {
    Ok(look(machine)?.map(|group| group.id))
}

pub(crate) fn make(machine: &Machine) -> Outcome {
    if let Some(group) = look(machine)? {
        return Ok(Needless(format!("{GROUP} is there, with number {}", group.id)));
    }
    let mut record = record(machine)?;
    // Another program may have removed the group since.
    record.retain(|line| line != MAKE);
    record.insert(0, MAKE.to_owned());
    write_record(machine, &record)?;
    let root = machine.root().map(|root| root.display().to_string());
    let (made, by) = match machine.has_command("systemd-sysusers") {
        true => {
            let root = root.map(|root| format!("--root={root}"));
            let file = "cowslip-setup.conf";
            let arguments: Vec<&str> = root.as_deref().into_iter().chain([file]).collect();
            (machine.run("systemd-sysusers", &arguments), "systemd-sysusers")
        }
        false => {
            let prefix = root.as_deref().map_or(vec![], |root| vec!["--prefix", root]);
            (machine.run("groupadd", &[&prefix[..], &["--system", GROUP]].concat()), "groupadd")
        }
    };
    let is_there = machine.is_dry_run() || look(machine)?.is_some();
    match made {
        Ok(()) if is_there => Ok(Made(format!("a system group {GROUP}, by {by}"))),
        made => {
            record.remove(0);
            write_record(machine, &record)?;
            made?;
            Err(Trouble::new(
                format!("{by} made no group {GROUP}"),
                format!("groupadd --system {GROUP}"),
            ))
        }
    }
}

/// Adds a user to the group.
pub(crate) fn join(machine: &Machine, user: &str) -> Outcome {
    if look(machine)?.is_some_and(|group| group.members.iter().any(|member| member == user)) {
        return Ok(Needless(format!("in the group {GROUP}")));
    }
    let root = machine.root().map(|root| root.display().to_string());
    let prefix = root.as_deref().map_or(vec![], |root| vec!["--prefix", root]);
    machine.run("usermod", &[&prefix[..], &["-aG", GROUP, user]].concat())?;
    let mut record = record(machine)?;
    record.push(format!("{MEMBER}{user}"));
    write_record(machine, &record)?;
    Ok(Made(format!(
        "joins the group {GROUP}; sessions that were there before get it by `newgrp {GROUP}`"
    )))
}

/// Removes a user that setup added.
pub(crate) fn part(machine: &Machine, user: &str) -> Outcome {
    let mut record = record(machine)?;
    let line = format!("{MEMBER}{user}");
    if !record.contains(&line) {
        return Ok(Needless("not in the group by setup".into()));
    }
    let root = machine.root().map(|root| root.display().to_string());
    let root = root.as_deref().map_or(vec![], |root| vec!["--root", root]);
    if look(machine)?.is_some_and(|group| group.members.iter().any(|member| member == user)) {
        machine.run("gpasswd", &[&root[..], &["-d", user, GROUP]].concat())?;
    }
    record.retain(|entry| *entry != line);
    write_record(machine, &record)?;
    Ok(Made(format!("leaves the group {GROUP}")))
}

/// The users that setup added.
pub(crate) fn joined(machine: &Machine) -> Result<Vec<String>, Trouble> {
    Ok(record(machine)?
        .iter()
        .filter_map(|entry| entry.strip_prefix(MEMBER))
        .map(str::to_owned)
        .collect())
}

/// Removes the group, if setup made it and it has no other users.
pub(crate) fn remove(machine: &Machine) -> Outcome {
    let is_ours = record(machine)?.iter().any(|entry| entry == MAKE);
    let Some(group) = look(machine)?.filter(|_| is_ours) else {
        machine.remove(RECORD)?;
        return Ok(Needless(format!("setup made no group {GROUP}")));
    };
    let by_us = joined(machine)?;
    let mut users: Vec<String> =
        group.members.into_iter().filter(|member| !by_us.contains(member)).collect();
    let accounts = machine.read("/etc/passwd")?.unwrap_or_default();
    users.extend(accounts.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.get(3)?.parse() == Ok(group.id)).then(|| fields[0].to_owned())
    }));
    if PACKAGED.iter().any(|file| machine.exists(file)) {
        users.push("the package".into());
    }
    if !users.is_empty() {
        machine.remove(RECORD)?;
        return Ok(Needless(format!("{GROUP} stays, as others use it: {}", users.join(", "))));
    }
    let root = machine.root().map(|root| root.display().to_string());
    let prefix = root.as_deref().map_or(vec![], |root| vec!["--prefix", root]);
    machine.run("groupdel", &[&prefix[..], &[GROUP]].concat())?;
    // After a failure the next undo needs it.
    machine.remove(RECORD)?;
    Ok(Made(format!("the group {GROUP} is removed")))
}

/// Setup's record of its changes, one per line.
fn record(machine: &Machine) -> Result<Vec<String>, Trouble> {
    match machine.content(RECORD)? {
        Content::Ours(text) => Ok(text.lines().map(str::to_owned).collect()),
        _ => Ok(Vec::new()),
    }
}

fn write_record(machine: &Machine, lines: &[String]) -> Result<(), Trouble> {
    match lines.is_empty() {
        true => machine.remove(RECORD)?,
        false => machine.write(RECORD, &(lines.join("\n") + "\n"))?,
    };
    Ok(())
}
