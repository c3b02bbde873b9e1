//! Finds the processes of a plan, again and again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::procfs::{self, CgroupMembers};
use cowslip_sys::{self as sys, Errno, cgroup, process};

/// Open files that are no target's: of this process, of its metrics' clients, and of a look.
const OTHER_FILES: u64 = 128;
/// Open files of a target.
const FILES_OF_TARGET: u64 = 2;

use crate::model::ProcessId;
use crate::plan::{Plan, Rule, Who};
use crate::promoter::Promoter;
use crate::target::Target;

/// The result of a search.
#[derive(Debug, Default)]
pub struct Found {
    /// Processes that became targets.
    pub added: Vec<String>,
    /// The first error about processes that may not be observed, and their number.
    pub denied: Option<(Error, usize)>,
    /// Processes beyond the number that can be targets.
    pub too_many: usize,
    /// Control groups that cannot be read, as those that are not there yet or any more.
    pub missing: BTreeMap<PathBuf, Errno>,
}

/// The processes given by number; a missing one, or one that may not be observed, is an error.
pub(super) fn named(rules: &[Rule]) -> Result<Vec<Target>> {
    let numbers = rules.iter().filter_map(|rule| match rule.who {
        Who::Pid(pid) => Some((pid, rule)),
        _ => None,
    });
    numbers.map(|(pid, rule)| open(pid, rule)).collect()
}

fn open(pid: i32, rule: &Rule) -> Result<Target> {
    let target = Target::open(pid, rule.weight)?;
    Ok(if rule.measure { target.to_measure(rule.unit.clone()) } else { target })
}

/// Adds what the other rules find; those that may not be looked at are left out.
pub(super) fn search(
    rules: &[Rule],
    promoter: &mut Promoter,
    left_alone: &BTreeSet<ProcessId>,
) -> Result<Found> {
    let mut known: BTreeSet<i32> = promoter.targets().map(|target| target.id().pid).collect();
    let mut found = Found::default();
    let mut room = most_targets().saturating_sub(known.len());
    for rule in rules {
        let pids = match (candidates(&rule.who), &rule.who) {
            (Ok(pids), _) => pids,
            (Err(errno), Who::Cgroup(path)) => {
                found.missing.insert(path.clone(), errno);
                continue;
            }
            (Err(errno), _) => return Err(Error::from_errno("look for processes in /proc", errno)),
        };
        for pid in pids {
            // The first rule that finds a process applies.
            if !known.insert(pid) {
                continue;
            }
            if room == 0 {
                found.too_many += 1;
                continue;
            }
            let target = match open(pid, rule) {
                Ok(target) => target,
                Err(error) => {
                    if error.kind() == ErrorKind::Denied {
                        found.deny(error);
                    }
                    continue;
                }
            };
            if left_alone.contains(&target.id()) {
                continue;
            }
            room -= 1;
            found.added.push(format!("{} ({pid})", target.name()));
            promoter.add(match &rule.who {
                Who::Cgroup(path) => target.in_group(path.to_string_lossy()),
                _ => target,
            });
        }
    }
    Ok(found)
}

/// How many targets the limit of open files has room for (`RLIMIT_NOFILE`): other users' programs may have any number of
/// processes of a name.
fn most_targets() -> usize {
    let files = process::file_limit();
    let left = files - OTHER_FILES.min(files / 2);
    usize::try_from(left / FILES_OF_TARGET).unwrap_or(usize::MAX)
}

impl Found {
    fn deny(&mut self, error: Error) {
        match &mut self.denied {
            Some((_, count)) => *count += 1,
            none => *none = Some((error, 1)),
        }
    }

    /// An error if a control group is missing, or if there is no target at all.
    pub fn check(self, plan: &Plan, promoter: &Promoter) -> Result<()> {
        if let Some((path, errno)) = self.missing.first_key_value() {
            let missing = format!("control group {}: {errno}", path.display());
            return Err(Error::new(ErrorKind::File, missing));
        }
        if promoter.targets().next().is_some() {
            return Ok(());
        }
        Err(match self.denied {
            Some((error, count)) => {
                Error::new(ErrorKind::Denied, format!("{error}; so are {count} in all"))
            }
            None => {
                let who: Vec<String> = plan.rules.iter().map(|rule| rule.who.to_string()).collect();
                let missing = format!("there is no process {}", who.join(", nor one "));
                Error::new(ErrorKind::Vanished, missing)
            }
        })
    }
}

/// The control groups of the plan that cannot be read now.
pub fn missing(plan: &Plan) -> BTreeMap<PathBuf, Errno> {
    let groups = plan.rules.iter().filter_map(|rule| match &rule.who {
        Who::Cgroup(path) => Some((path, candidates(&rule.who).err()?)),
        _ => None,
    });
    groups.map(|(path, errno)| (path.clone(), errno)).collect()
}

fn candidates(who: &Who) -> sys::Result<Vec<i32>> {
    let all = procfs::process_ids;
    Ok(match who {
        Who::Match(name) => {
            all()?.into_iter().filter(|pid| name_of(*pid).as_deref() == Some(name)).collect()
        }
        Who::All => all()?.into_iter().filter(|pid| *pid != process::pid()).collect(),
        Who::Pid(_) => Vec::new(),
        Who::Command(pid) => with_descendants(*pid, all()?),
        Who::Cgroup(path) => CgroupMembers::open(&directory(path))?.process_ids()?,
    })
}

/// The directory of a control group that is given by it, or by the name of a slice.
fn directory(group: &Path) -> PathBuf {
    let mounts = || std::fs::read_to_string("/proc/self/mountinfo").ok();
    let slice = group.to_str().filter(|name| !name.contains('/'));
    let found = slice.and_then(|name| cgroup::slice_directory(name, &mounts()?));
    found.unwrap_or_else(|| group.to_owned())
}

/// The process and those of the others that it or a descendant of it has started.
fn with_descendants(root: i32, others: Vec<i32>) -> Vec<i32> {
    let parents: BTreeMap<i32, i32> = others
        .into_iter()
        .filter_map(|pid| Some((pid, procfs::parent_pid(&stat_of(pid)?)?)))
        .collect();
    let is_descendant = |pid: &i32| {
        let mut lineage = std::iter::successors(Some(*pid), |pid| parents.get(pid).copied());
        // Numbers that were reused while they were read may form a circle.
        lineage.by_ref().take(parents.len() + 1).any(|pid| pid == root)
    };
    parents.keys().copied().filter(is_descendant).collect()
}

fn stat_of(pid: i32) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()
}

/// The name in `/proc/PID/stat`, which every user may read.
fn name_of(pid: i32) -> Option<String> {
    procfs::command_name(&stat_of(pid)?).map(str::to_owned)
}
