//! Finding the processes that were asked for, now and again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use cowslip::sys::procfs::{self, CgroupMembers};
use cowslip::sys::{Errno, process};
use cowslip::{Error, ErrorKind};
use cowslip_promote::{Promoter, Target};

use super::config::{Rule, Who};
use crate::exit::{DENIED, Failure, USAGE, VANISHED};

/// What a search came to.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Processes that are targets now and were not before.
    pub(super) added: Vec<String>,
    /// The first of those that may not be looked at, and how many there are.
    pub(super) denied: Option<(Error, usize)>,
    /// Control groups that cannot be read, as those that are not there yet or any more.
    pub(super) missing: BTreeMap<PathBuf, Errno>,
}

/// The processes that were asked for by number; one that is not there, or may not be looked at, is an error.
pub(super) fn named(rules: &[Rule]) -> Result<Vec<Target>, Failure> {
    let numbers = rules.iter().filter_map(|rule| match rule.who {
        Who::Pid(pid) => Some((pid, rule.weight)),
        _ => None,
    });
    numbers.map(|(pid, weight)| Ok(Target::open(pid, weight)?)).collect()
}

/// Adds what the other rules find; those that may not be looked at are left out.
pub(super) fn search(rules: &[Rule], promoter: &mut Promoter) -> Result<Found, Failure> {
    let mut known: BTreeSet<i32> = promoter.targets().map(|target| target.id().pid).collect();
    let mut found = Found::default();
    for rule in rules {
        let pids = match (candidates(&rule.who), &rule.who) {
            (Ok(pids), _) => pids,
            (Err(errno), Who::Cgroup(path)) => {
                found.missing.insert(path.clone(), errno);
                continue;
            }
            (Err(errno), _) => return Err(Failure::new(USAGE, format!("/proc: {errno}"))),
        };
        for pid in pids {
            // The first rule that finds a process has it.
            if !known.insert(pid) {
                continue;
            }
            let target = match Target::open(pid, rule.weight) {
                Ok(target) => target,
                Err(error) => {
                    if error.kind() == ErrorKind::Denied {
                        found.deny(error);
                    }
                    continue;
                }
            };
            found.added.push(format!("{} ({pid})", target.name()));
            promoter.add(match &rule.who {
                Who::Cgroup(path) => target.in_group(path.to_string_lossy()),
                _ => target,
            });
        }
    }
    Ok(found)
}

impl Found {
    fn deny(&mut self, error: Error) {
        match &mut self.denied {
            Some((_, count)) => *count += 1,
            none => *none = Some((error, 1)),
        }
    }

    /// An error if a control group is missing, or if there is nothing to do at all.
    pub(super) fn check(self, rules: &[Rule], promoter: &Promoter) -> Result<(), Failure> {
        if let Some((path, errno)) = self.missing.first_key_value() {
            return Err(Failure::new(USAGE, format!("control group {}: {errno}", path.display())));
        }
        if promoter.targets().next().is_some() {
            return Ok(());
        }
        Err(match self.denied {
            Some((error, count)) => Failure::new(DENIED, format!("{error}; so are {count} in all")),
            None => {
                let who: Vec<String> = rules.iter().map(|rule| rule.who.to_string()).collect();
                Failure::new(VANISHED, format!("there is no process {}", who.join(", nor one ")))
            }
        })
    }
}

/// The control groups among the targets that cannot be read now.
pub(super) fn missing(rules: &[Rule]) -> BTreeMap<PathBuf, Errno> {
    let groups = rules.iter().filter_map(|rule| match &rule.who {
        Who::Cgroup(path) => Some((path, candidates(&rule.who).err()?)),
        _ => None,
    });
    groups.map(|(path, errno)| (path.clone(), errno)).collect()
}

fn candidates(who: &Who) -> cowslip::sys::Result<Vec<i32>> {
    let all = procfs::process_ids;
    Ok(match who {
        Who::Match(name) => {
            all()?.into_iter().filter(|pid| name_of(*pid).as_deref() == Some(name)).collect()
        }
        Who::All => all()?.into_iter().filter(|pid| *pid != process::pid()).collect(),
        Who::Pid(_) => Vec::new(),
        Who::Cgroup(path) => CgroupMembers::of(path)?.process_ids()?,
    })
}

/// The name in `/proc/PID/stat`, which everybody may read.
fn name_of(pid: i32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    procfs::command_name(&stat).map(str::to_owned)
}
