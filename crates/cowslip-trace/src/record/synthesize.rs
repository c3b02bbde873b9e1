//! The state of a process when it is attached to: its threads' names and its mappings, as events.

use std::fs;

use cowslip_sys::procfs;

use crate::model::{Event, EventKind, Map};

const MAP_SHARED: u32 = 1;
const MAP_PRIVATE: u32 = 2;
const MAP_ANONYMOUS: u32 = 0x20;

/// The threads of a process; none if it has ended.
pub(super) fn threads(pid: u32) -> Vec<u32> {
    let listed = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The names of the threads, and the mappings; nothing of a thread of the kernel, or of a process that has ended.
pub(super) fn events(pid: u32, threads: &[u32], time_ns: u64) -> Vec<Event> {
    let mut events = Vec::new();
    let text = fs::read(format!("/proc/{pid}/maps"));
    if text.as_ref().is_ok_and(Vec::is_empty) {
        return events;
    }
    for &tid in threads {
        if let Ok(name) = fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")) {
            let what = EventKind::Name { name: name.trim_end().into() };
            events.push(Event { time_ns, pid, tid, what });
        }
    }
    for mapping in procfs::mappings(&String::from_utf8_lossy(&text.unwrap_or_default())) {
        let sharing = if mapping.is_private { MAP_PRIVATE } else { MAP_SHARED };
        let anonymous = if mapping.has_file { 0 } else { MAP_ANONYMOUS };
        let what = EventKind::Map(Map {
            range: mapping.range,
            protection: mapping.protection,
            flags: sharing | anonymous,
            offset_bytes: mapping.offset_bytes,
            inode: mapping.inode,
            name: (!mapping.name.is_empty()).then(|| mapping.name.into()),
            is_old: true,
            stack: None,
        });
        events.push(Event { time_ns, pid, tid: pid, what });
    }
    events
}
