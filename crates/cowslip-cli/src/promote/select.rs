//! Finding the processes that were asked for, now and again.

use std::collections::BTreeSet;

use cowslip::promote::{Promoter, Target};
use cowslip::sys::process;
use cowslip::sys::procfs::{self, CgroupMembers};
use cowslip::{Error, ErrorKind};

use super::config::{Rule, Who};
use crate::exit::{DENIED, Failure, USAGE, VANISHED};

/// What a search came to.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Processes that are targets now and were not before.
    pub(super) added: Vec<String>,
    /// The first of those that may not be looked at, and how many there are.
    pub(super) denied: Option<(Error, usize)>,
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
        for pid in candidates(&rule.who)? {
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

    /// An error if there is nothing to do at all.
    pub(super) fn check(self, promoter: &Promoter) -> Result<(), Failure> {
        if promoter.targets().next().is_some() {
            return Ok(());
        }
        Err(match self.denied {
            Some((error, count)) => Failure::new(DENIED, format!("{error}; so are {count} in all")),
            None => Failure::new(VANISHED, "there is no such process"),
        })
    }
}

fn candidates(who: &Who) -> Result<Vec<i32>, Failure> {
    let all =
        || procfs::process_ids().map_err(|errno| Failure::new(USAGE, format!("/proc: {errno}")));
    Ok(match who {
        Who::Match(name) => {
            all()?.into_iter().filter(|pid| name_of(*pid).as_deref() == Some(name)).collect()
        }
        Who::All => all()?.into_iter().filter(|pid| *pid != process::pid()).collect(),
        Who::Pid(_) => Vec::new(),
        Who::Cgroup(path) => {
            CgroupMembers::of(path).and_then(|group| group.process_ids()).map_err(|errno| {
                Failure::new(USAGE, format!("control group {}: {errno}", path.display()))
            })?
        }
    })
}

/// The name in `/proc/PID/stat`, which everybody may read.
fn name_of(pid: i32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    procfs::command_name(&stat).map(str::to_owned)
}
