//! Time for which the limits of control groups kept processes from running.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use cowslip_sys::cgroup::{of_processors, throttled};

/// The control groups of processes, which may move to others after their start.
#[derive(Debug)]
pub(super) struct Throttles {
    mounts: String,
    /// Texts of `/proc/PID/cgroup`.
    seen: BTreeSet<String>,
    /// Throttled time of each group and of those above it, at the first look and at the last.
    groups: BTreeMap<PathBuf, [Duration; 2]>,
}

impl Throttles {
    pub(super) fn new() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Self { mounts, seen: BTreeSet::new(), groups: BTreeMap::new() }
    }

    /// Looks at the groups of these processes, and again at those known.
    pub(super) fn look<'a>(&mut self, processes: impl Iterator<Item = &'a u32>) {
        for (group, [_, last]) in &mut self.groups {
            // A group may be gone.
            *last = throttled(group).map_or(*last, |now| now.max(*last));
        }
        for pid in processes {
            let Ok(text) = fs::read_to_string(format!("/proc/{pid}/cgroup")) else { continue };
            if self.seen.contains(&text) {
                continue;
            }
            for group in of_processors(&text, &self.mounts) {
                if let Some(now) = throttled(&group) {
                    self.groups.entry(group).or_insert([now; 2]);
                }
            }
            self.seen.insert(text);
        }
    }

    /// Seconds since the first look; `None` if no group was seen.
    pub(super) fn seconds(&self) -> Option<f64> {
        let sum: Duration = self.groups.values().map(|[first, last]| *last - *first).sum();
        (!self.groups.is_empty()).then_some(sum.as_secs_f64())
    }
}
