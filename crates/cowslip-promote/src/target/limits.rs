//! The control groups of processes: their limits and the pressure in them.

use std::collections::BTreeMap;
use std::fs;

use cowslip_sys::cgroup::{Group, Room, locate};

use crate::model::{Limit, Settings, kept_bytes, needed_bytes};

/// More than the promotions of one look add to the memory that stays free.
const ENOUGH_BYTES: u64 = 1 << 30;

/// True if a promotion that adds so much fits all limits of a group and its ancestors, as they are now.
pub(crate) fn has_room(group: &Group, added_bytes: u64, settings: &Settings) -> bool {
    let needed_bytes = |limit_bytes| needed_bytes(limit_bytes, added_bytes, settings);
    group.rooms(needed_bytes).all(|room| room.room_bytes >= needed_bytes(room.limit_bytes))
}

fn limits(group: &Group, settings: &Settings) -> Vec<Limit> {
    let enough_bytes = |limit_bytes| kept_bytes(limit_bytes, settings) + ENOUGH_BYTES;
    let limit = |Room { directory, limit_bytes, room_bytes }| {
        let group = directory.to_string_lossy().into_owned();
        Limit { group, limit_bytes, room_bytes }
    };
    group.rooms(enough_bytes).map(limit).collect()
}

/// The groups of processes, each looked at once.
#[derive(Debug)]
pub(crate) struct Groups<'a> {
    mounts: String,
    settings: &'a Settings,
    /// A limit above the machine's memory is none; version 1 reports 2^63 for no limit.
    total_bytes: u64,
    /// By the text of `/proc/PID/cgroup`.
    seen: BTreeMap<String, GroupLook>,
}

/// One look at a group.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupLook {
    pub(crate) group: Option<Group>,
    pub(crate) limits: Vec<Limit>,
    pub(crate) pressure_percent: f64,
}

impl<'a> Groups<'a> {
    pub(crate) fn new(settings: &'a Settings, total_bytes: u64) -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Self { mounts, settings, total_bytes, seen: BTreeMap::new() }
    }

    /// Looks at the group of a process; a group that cannot be seen has no limits.
    pub(crate) fn look(&mut self, cgroup: String) -> GroupLook {
        let Self { mounts, settings, total_bytes, seen } = self;
        let of = |text: &str| {
            let Some(group) = locate(text, mounts) else { return GroupLook::default() };
            let mut limits = limits(&group, settings);
            limits.retain(|limit| limit.limit_bytes < *total_bytes);
            let pressure_percent = group.pressure_percent();
            GroupLook { group: Some(group), limits, pressure_percent }
        };
        seen.entry(cgroup).or_insert_with_key(|text| of(text)).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A tree of files like version 2.
    #[test]
    fn the_limits_on_the_way_up_are_seen_and_the_pressure_of_the_group() {
        let mount = std::env::temp_dir().join(format!("cowslip-limits-{}", std::process::id()));
        let directory = mount.join("service/worker");
        fs::create_dir_all(&directory).unwrap();
        let write = |place: &str, text: &str| fs::write(mount.join(place), text).unwrap();
        write("service/memory.max", "104857600\n");
        write("service/memory.high", "max\n");
        write("service/memory.current", "52428800\n");
        write("service/memory.stat", "anon 1\ninactive_file 1048576\nactive_file 2097152\n");
        write("service/worker/memory.max", "max\n");
        write("service/worker/memory.high", "83886080\n");
        write("service/worker/memory.current", "41943040\n");
        write("service/worker/memory.pressure", "some avg10=12.50 avg60=1.00 avg300=0 total=7\n");
        let mounts = format!("9 1 0:9 / {} rw - cgroup2 none rw\n", mount.display());
        let settings = Settings::default();
        let mut groups = Groups { mounts, ..Groups::new(&settings, 1 << 40) };
        let seen = groups.look("0::/service/worker\n".into());
        let limits: Vec<_> = seen
            .limits
            .iter()
            .map(|limit| (limit.limit_bytes / MIB, limit.room_bytes / MIB))
            .collect();
        assert_eq!(limits, [(80, 40), (100, 53)], "of the service files can be taken back");
        assert_eq!(seen.pressure_percent, 12.5);
        groups.total_bytes = 90 * MIB;
        assert_eq!(groups.look("0::/service\n".into()).limits, [], "the machine has less");
        assert_eq!(groups.look("0::/nowhere\n".into()).limits.len(), 0);
        fs::remove_dir_all(&mount).unwrap();
    }
}
