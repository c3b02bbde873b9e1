//! The mappings of each process, according to events.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cowslip_sys::units::VirtRange;

use crate::model::{Event, EventKind, Map, StackId};
use crate::parts::{Part, Parts};

/// The kernel's name for the memory below the break of `brk(2)`.
const HEAP: &str = "[heap]";
/// Its name for the first thread's stack.
const STACK: &str = "[stack]";
const MAP_PRIVATE: u32 = 2;
const PROT_EXEC: u32 = 4;

/// The address space of one process.
#[derive(Clone, Debug, Default)]
pub(super) struct Space {
    maps: Parts<Map>,
    /// Another number after each change of executable mappings.
    code_version: u64,
    break_at: Option<u64>,
    threads: u32,
}

/// The address spaces of all processes, and the names of their threads.
#[derive(Clone, Debug, Default)]
pub(super) struct Spaces {
    pub(super) spaces: BTreeMap<u32, Space>,
    names: HashMap<u32, (u32, Arc<str>)>,
}

impl Spaces {
    pub(super) fn apply(&mut self, event: &Event) {
        match &event.what {
            EventKind::Fault(_) | EventKind::Advise { .. } | EventKind::Lost { .. } => {}
            EventKind::Fork { child_pid, child_tid } => {
                if *child_pid == event.pid {
                    self.spaces.entry(event.pid).or_default().threads += 1;
                } else {
                    let parent = self.spaces.get(&event.pid);
                    let mut child = parent.cloned().unwrap_or_default();
                    child.threads = 1;
                    self.spaces.insert(*child_pid, child);
                }
                if let Some((_, name)) = self.names.get(&event.tid).cloned() {
                    self.names.insert(*child_tid, (*child_pid, name));
                }
            }
            EventKind::Exec { name } => {
                let threads = 1;
                self.spaces.insert(event.pid, Space { threads, ..Space::default() });
                self.names.insert(event.tid, (event.pid, name.clone()));
            }
            EventKind::Name { name } => {
                self.names.insert(event.tid, (event.pid, name.clone()));
            }
            EventKind::Exit => {
                self.names.remove(&event.tid);
                if let Some(space) = self.spaces.get_mut(&event.pid) {
                    space.threads = space.threads.saturating_sub(1);
                    if space.threads == 0 {
                        self.spaces.remove(&event.pid);
                    }
                }
            }
            _ => self.spaces.entry(event.pid).or_default().apply(&event.what),
        }
    }

    /// Adds a thread from before the first event.
    pub(super) fn add_thread(&mut self, pid: u32) {
        self.spaces.entry(pid).or_default().threads += 1;
    }

    /// The stacks of all mappings.
    pub(super) fn stacks(&self) -> impl Iterator<Item = &StackId> {
        let maps = self.spaces.values().flat_map(|space| space.maps.iter());
        maps.filter_map(|map| map.stack.as_ref())
    }

    /// The names and mappings after all applied events, as events of this time.
    pub(super) fn describe(&self, time_ns: u64) -> impl Iterator<Item = Event> {
        let names = self.names.iter().map(move |(&tid, (pid, name))| Event {
            time_ns,
            pid: *pid,
            tid,
            what: EventKind::Name { name: name.clone() },
        });
        let maps = self.spaces.iter().flat_map(move |(&pid, space)| {
            space.maps.iter().map(move |map| {
                let map = Map { is_old: true, ..map.clone() };
                Event { time_ns, pid, tid: pid, what: EventKind::Map(map) }
            })
        });
        names.chain(maps)
    }
}

impl Space {
    fn apply(&mut self, what: &EventKind) {
        match what {
            EventKind::Map(map) => {
                self.remove(map.range);
                self.insert(map.clone());
            }
            EventKind::Unmap { range } => self.remove(*range),
            EventKind::Remap { from, to, kept } => {
                let moved = self.at(from.start).cloned();
                if !kept {
                    self.remove(*from);
                }
                self.remove(*to);
                if let Some(map) = moved {
                    self.insert(Map { range: *to, ..map });
                }
            }
            EventKind::Break { end } => self.set_break(*end),
            _ => {}
        }
    }

    fn insert(&mut self, mut map: Map) {
        if map.range.is_empty() {
            return;
        }
        // A stack grows page by page, and stays one mapping.
        let end = map.range.end();
        if map.name.as_deref() == Some(STACK)
            && let Some(above) = self.maps.at(end).filter(|above| is_alike(above, &map))
        {
            map = Map {
                range: VirtRange::between(map.range.start, above.range.end()),
                ..above.clone()
            };
            self.maps.remove(end);
        }
        self.note(&map);
        self.maps.insert(map);
    }

    /// Notes a change of this mapping.
    fn note(&mut self, map: &Map) {
        self.code_version += u64::from(map.protection & PROT_EXEC != 0);
    }

    /// A number that is another one after each change of executable mappings.
    pub(super) fn code_version(&self) -> u64 {
        self.code_version
    }

    /// All mappings, in the order of addresses.
    pub(super) fn maps(&self) -> impl Iterator<Item = &Map> {
        self.maps.iter()
    }

    fn set_break(&mut self, end: u64) {
        let heap = self.maps.iter().rev().find(|map| map.name.as_deref() == Some(HEAP));
        let start = heap.map(|map| map.range.start).or(self.break_at.map(|at| at as usize));
        if let Some(start) = start {
            let whole = heap.map_or(VirtRange::new(start, 0), |map| map.range);
            let protection = 3;
            let name = Some(HEAP.into());
            self.remove(whole);
            self.insert(Map {
                range: VirtRange::between(start, end as usize),
                protection,
                flags: MAP_PRIVATE,
                offset_bytes: 0,
                inode: 0,
                name,
                is_old: false,
                stack: None,
            });
        }
        self.break_at.get_or_insert(end);
    }

    /// The mapping that contains `address`.
    pub(super) fn at(&self, address: usize) -> Option<&Map> {
        self.maps.at(address)
    }

    fn remove(&mut self, range: VirtRange) {
        let hit: Vec<_> = self.maps.within(range).map(|map| map.range.start).collect();
        for at in hit {
            let map = self.maps.remove(at).expect("just seen");
            self.note(&map);
            let below = VirtRange::between(map.range.start, range.start.min(map.range.end()));
            let above = VirtRange::between(range.end().max(map.range.start), map.range.end());
            for rest in [below, above] {
                if let Some(rest) = part(&map, rest) {
                    self.insert(rest);
                }
            }
        }
    }

    /// The new parts of a mapping, where the kernel reported the whole: merged with its neighbours, or after
    /// a change of its protection.
    pub(super) fn news(&mut self, told: &Map) -> Vec<Map> {
        let mut gaps = Vec::new();
        let mut protected = Vec::new();
        let mut from = told.range.start;
        for map in self.maps.within(told.range) {
            let known = map.range.intersect(told.range);
            if !is_same_memory(map, known, told) {
                continue;
            }
            gaps.extend(part(told, VirtRange::between(from, known.start)));
            from = known.end();
            if map.protection != told.protection {
                protected.extend(part(map, known));
            }
        }
        gaps.extend(part(told, VirtRange::between(from, told.range.end())));
        if gaps.is_empty() && protected.is_empty() {
            return vec![told.clone()];
        }
        for map in protected {
            self.remove(map.range);
            self.insert(Map { protection: told.protection, ..map });
        }
        gaps
    }
}

impl Part for Map {
    fn range(&self) -> VirtRange {
        self.range
    }
}

/// The part of `map` in `range`; `None` if that is empty.
fn part(map: &Map, range: VirtRange) -> Option<Map> {
    let range = map.range.intersect(range);
    let offset_bytes = offset_at(map, range.start);
    (!range.is_empty()).then(|| Map { range, offset_bytes, ..map.clone() })
}

/// The offset of an address in a mapping's file; without a file, the mapping's own offset.
fn offset_at(map: &Map, address: usize) -> u64 {
    let skipped = if is_file(map) { address.saturating_sub(map.range.start) as u64 } else { 0 };
    map.offset_bytes + skipped
}

fn is_file(map: &Map) -> bool {
    map.name.as_deref().is_some_and(|name| name.starts_with('/'))
}

fn is_private(map: &Map) -> bool {
    map.flags & MAP_PRIVATE != 0
}

/// True if `map`, within `range`, is the same memory as `told`: the same place of the same file, or similar
/// memory without a file. The kernel has offsets for the latter as well; for a stack, they depend on its
/// current beginning.
fn is_same_memory(map: &Map, range: VirtRange, told: &Map) -> bool {
    map.name == told.name
        && map.inode == told.inode
        && is_private(map) == is_private(told)
        && (!is_file(map) || offset_at(map, range.start) == offset_at(told, range.start))
}

/// True if two mappings without a file differ only in their addresses.
fn is_alike(one: &Map, other: &Map) -> bool {
    let facts = |map: &Map| (map.protection, map.flags, map.stack);
    one.name == other.name && facts(one) == facts(other)
}

/// True if it is private memory without a file.
pub(super) fn is_anonymous(map: &Map) -> bool {
    is_private(map)
        && map.name.as_deref().is_none_or(|name| name == HEAP || name.starts_with("[anon"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(start: usize, end: usize, protection: u32, name: Option<&str>) -> Map {
        Map {
            range: VirtRange::between(start, end),
            protection,
            flags: MAP_PRIVATE,
            offset_bytes: 0,
            inode: 0,
            name: name.map(Arc::from),
            is_old: false,
            stack: None,
        }
    }

    fn news(space: &mut Space, told: Map) -> Vec<(usize, usize)> {
        let news = space.news(&told);
        for map in &news {
            space.apply(&EventKind::Map(map.clone()));
        }
        news.iter().map(|map| (map.range.start, map.range.end())).collect()
    }

    #[test]
    fn of_a_mapping_that_grew_only_the_growth_is_new() {
        let mut space = Space::default();
        assert_eq!(news(&mut space, map(0x8000, 0x9000, 3, None)), [(0x8000, 0x9000)]);
        assert_eq!(news(&mut space, map(0x6000, 0x9000, 3, None)), [(0x6000, 0x8000)]);
        assert_eq!(news(&mut space, map(0x6000, 0xb000, 3, None)), [(0x9000, 0xb000)]);
        assert_eq!(news(&mut space, map(0x6000, 0x9000, 3, None)), [(0x6000, 0x9000)], "again");
        assert_eq!(news(&mut space, map(0x6000, 0x8000, 3, Some("/a"))), [(0x6000, 0x8000)]);
    }

    /// The kernel reports the whole of a stack whenever it grows, with another offset each time.
    #[test]
    fn a_stack_that_grew_is_one_mapping_of_which_the_growth_is_new() {
        const TOP: usize = 0x7fff_0000_0000;
        let stack = |pages: usize| {
            let offset_bytes = (0x7_ffff_0000 - pages as u64) << 12;
            Map { offset_bytes, ..map(TOP - pages * 0x1000, TOP, 3, Some(STACK)) }
        };
        let mut space = Space::default();
        assert_eq!(news(&mut space, stack(33)), [(TOP - 33 * 0x1000, TOP)]);
        for pages in 34..20_000 {
            let growth = (TOP - pages * 0x1000, TOP - (pages - 1) * 0x1000);
            assert_eq!(news(&mut space, stack(pages)), [growth]);
            assert_eq!(space.maps.len(), 1);
        }
        assert_eq!(space.at(TOP - 1).unwrap().range, stack(19_999).range);
        // An executable stack is the same stack.
        assert_eq!(news(&mut space, Map { protection: 7, ..stack(19_999) }), []);
        assert_eq!(space.maps.len(), 1);
    }

    #[test]
    fn another_protection_is_no_news() {
        let mut space = Space::default();
        news(&mut space, map(0x10000, 0x20000, 0, None));
        for protection in [3, 1, 3] {
            assert_eq!(news(&mut space, map(0x10000, 0x14000, protection, None)), []);
        }
        assert_eq!(news(&mut space, map(0x10000, 0x18000, 3, None)), []);
        assert_eq!(space.at(0x16000).unwrap().protection, 3);
        assert_eq!(space.at(0x18000).unwrap().protection, 0);
    }

    #[test]
    fn parts_of_a_file_keep_their_offsets() {
        let mut space = Space::default();
        news(&mut space, map(0x10000, 0x20000, 1, Some("/lib")));
        space.apply(&EventKind::Unmap { range: VirtRange::between(0x14000, 0x18000) });
        assert!(space.at(0x14000).is_none() && space.at(0x17fff).is_none());
        assert_eq!(space.at(0x18000).unwrap().offset_bytes, 0x8000);
        let above = Map { offset_bytes: 0x8000, ..map(0x18000, 0x20000, 3, Some("/lib")) };
        assert_eq!(news(&mut space, above), [], "the same place of the file, protected");
    }

    #[test]
    fn the_heap_follows_the_break() {
        let mut space = Space::default();
        for end in [0x5000, 0x9000, 0x7000] {
            space.apply(&EventKind::Break { end });
        }
        let heap = space.at(0x6fff).unwrap();
        assert_eq!((heap.range, is_anonymous(heap)), (VirtRange::between(0x5000, 0x7000), true));
        assert!(space.at(0x7000).is_none());
    }

    #[test]
    fn moved_mappings_are_where_they_went_and_children_have_their_parents() {
        let mut spaces = Spaces::default();
        let mut apply = |pid, what| {
            spaces.apply(&Event { time_ns: 0, pid, tid: pid, what });
        };
        apply(1, EventKind::Exec { name: "one".into() });
        apply(1, EventKind::Map(map(0x1000, 0x3000, 3, None)));
        apply(1, EventKind::Fork { child_pid: 2, child_tid: 2 });
        let (from, to) = (VirtRange::new(0x1000, 0x2000), VirtRange::new(0x8000, 0x4000));
        apply(2, EventKind::Remap { from, to, kept: false });
        apply(1, EventKind::Exit);
        assert!(!spaces.spaces.contains_key(&1));
        let child = &spaces.spaces[&2];
        assert!(child.at(0x1000).is_none() && child.at(0xbfff).is_some());
        let name = EventKind::Name { name: "one".into() };
        assert!(spaces.describe(0).any(|event| event.what == name));
    }
}
