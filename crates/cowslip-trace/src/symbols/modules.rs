//! Which file lay where in each process.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cowslip_sys::units::VirtRange;

use crate::model::{Event, EventKind, Map};

/// Limit of the files that changing children take over from their parents, in all: a broken trace may fork any number
/// of times.
const MOST_COPIED: usize = 1 << 22;

/// The files of all processes. A child's are its parent's until one of them changes.
#[derive(Default)]
pub(super) struct AddressSpaces {
    all: HashMap<u32, Arc<Space>>,
    /// Modules copied for such children so far.
    copied: usize,
}

/// Modules by their first address.
type Space = BTreeMap<u64, Module>;

#[derive(Clone)]
struct Module {
    end: u64,
    file: Arc<str>,
    /// Where in the file the first address is.
    offset_bytes: u64,
}

impl AddressSpaces {
    pub(super) fn observe(&mut self, event: &Event) {
        match &event.what {
            EventKind::Map(map) => self.map(event.pid, map),
            EventKind::Unmap { range } => drop(self.take(event.pid, *range)),
            EventKind::Remap { from, to, .. } => self.remap(event.pid, *from, *to),
            EventKind::Fork { child_pid, .. } if *child_pid != event.pid => {
                let space = self.all.get(&event.pid).cloned().unwrap_or_default();
                self.all.insert(*child_pid, space);
            }
            EventKind::Exec { .. } => drop(self.all.remove(&event.pid)),
            _ => {}
        }
    }

    /// The file at an address, and the place in it.
    pub(super) fn find(&self, pid: u32, address: u64) -> Option<(Arc<str>, u64)> {
        let (start, module) = self.all.get(&pid)?.range(..=address).next_back()?;
        let is_inside = address < module.end;
        is_inside.then(|| (module.file.clone(), module.offset_bytes.wrapping_add(address - start)))
    }

    fn map(&mut self, pid: u32, map: &Map) {
        self.take(pid, map.range);
        // Whatever its protection: mprotect(2) may make it code later.
        if let Some(file) = &map.name {
            let (start, end) = (map.range.start as u64, map.range.end() as u64);
            let module = Module { end, file: file.clone(), offset_bytes: map.offset_bytes };
            self.own(pid).insert(start, module);
        }
    }

    fn remap(&mut self, pid: u32, from: VirtRange, to: VirtRange) {
        let moved = self.take(pid, from);
        self.take(pid, to);
        for (start, module) in moved {
            let distance = (to.start as u64).wrapping_sub(from.start as u64);
            let start = start.wrapping_add(distance);
            let end = module.end.wrapping_add(distance).min(to.end() as u64);
            if start < end {
                self.own(pid).insert(start, Module { end, ..module });
            }
        }
    }

    /// Takes what lies in `range` out, cut to it.
    fn take(&mut self, pid: u32, range: VirtRange) -> Vec<(u64, Module)> {
        let (from, to) = (range.start as u64, range.end() as u64);
        let Some(space) = self.all.get(&pid) else { return Vec::new() };
        let touched = space.range(..to).rev().take_while(|(_, module)| module.end > from);
        let touched: Vec<_> = touched.map(|(&start, module)| (start, module.clone())).collect();
        if touched.is_empty() {
            return touched;
        }
        let space = self.own(pid);
        let cut = |(start, module): (u64, Module)| {
            space.remove(&start);
            if start < from {
                space.insert(start, Module { end: from, ..module.clone() });
            }
            if module.end > to {
                space.insert(to, module.clone().after(to - start));
            }
            let inner = module.after(from.saturating_sub(start));
            (start.max(from), Module { end: inner.end.min(to), ..inner })
        };
        touched.into_iter().map(cut).collect()
    }

    /// A process's files, to be changed.
    fn own(&mut self, pid: u32) -> &mut Space {
        let space = self.all.entry(pid).or_default();
        if Arc::strong_count(space) > 1 {
            self.copied += space.len();
            if self.copied > MOST_COPIED {
                *space = Arc::default();
            }
        }
        Arc::make_mut(space)
    }
}

impl Module {
    /// All but the first bytes.
    fn after(self, bytes: u64) -> Self {
        Self { offset_bytes: self.offset_bytes.wrapping_add(bytes), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [&str; 2] = ["/bin/a", "/bin/b"];

    fn map(start: usize, len: usize, name: &str, offset_bytes: u64) -> EventKind {
        let range = VirtRange::new(start, len);
        let name = Some(name.into());
        let (protection, flags) = (5, 2);
        EventKind::Map(Map { range, protection, flags, offset_bytes, name, ..Map::default() })
    }

    fn observe(spaces: &mut AddressSpaces, pid: u32, what: EventKind) {
        spaces.observe(&Event { time_ns: 0, pid, tid: pid, what });
    }

    #[test]
    fn children_have_their_parents_code_until_they_become_another_program() {
        let mut spaces = AddressSpaces::default();
        observe(&mut spaces, 1, map(100, 50, "/bin/a", 7));
        observe(&mut spaces, 1, EventKind::Fork { child_pid: 2, child_tid: 2 });
        observe(&mut spaces, 1, EventKind::Fork { child_pid: 1, child_tid: 9 });
        observe(&mut spaces, 1, EventKind::Exec { name: "b".into() });
        assert_eq!(spaces.find(1, 110), None);
        assert_eq!(spaces.find(2, 110), Some(("/bin/a".into(), 17)));
        assert_eq!((spaces.find(2, 99), spaces.find(2, 150)), (None, None));
    }

    #[test]
    fn of_too_many_children_the_files_are_not_known() {
        let mut spaces = AddressSpaces::default();
        for nth in 0..4000 {
            observe(&mut spaces, 1, map(nth * 2, 1, "/bin/a", 0));
        }
        for child_pid in 2..4000 {
            observe(&mut spaces, 1, EventKind::Fork { child_pid, child_tid: child_pid });
            observe(&mut spaces, child_pid, map(1, 1, "/bin/b", 0));
        }
        let known = |pid| (spaces.find(pid, 0).is_some(), spaces.find(pid, 1).is_some());
        assert_eq!([known(1), known(2), known(3999)], [(true, false), (true, true), (false, true)]);
        let modules: usize = spaces.all.values().map(|space| space.len()).sum();
        assert!(modules < MOST_COPIED + 10_000, "{modules}");
    }

    /// Beside a model that knows every address by itself.
    #[test]
    fn maps_unmaps_and_moves_are_those_of_each_address() {
        let mut seed = 1_u64;
        let mut below = |bound: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % bound
        };
        let mut spaces = AddressSpaces::default();
        let mut model = vec![None; 200];
        for _ in 0..5_000 {
            let (start, len) = (below(90), 1 + below(10));
            let range = VirtRange::new(start, len);
            match below(4) {
                0 | 1 => {
                    let (file, offset) = (FILES[below(2)], below(1000) as u64);
                    observe(&mut spaces, 1, map(start, len, file, offset));
                    (0..len).for_each(|i| model[start + i] = Some((file, offset + i as u64)));
                }
                2 => {
                    observe(&mut spaces, 1, EventKind::Unmap { range });
                    model[start..start + len].fill(None);
                }
                _ => {
                    let to = VirtRange::new(100 + below(90), 1 + below(10));
                    observe(&mut spaces, 1, EventKind::Remap { from: range, to, kept: false });
                    let moved = model[start..start + len].to_vec();
                    model[start..start + len].fill(None);
                    model[to.start..to.end()].fill(None);
                    let kept = moved.len().min(to.len);
                    model[to.start..to.start + kept].copy_from_slice(&moved[..kept]);
                }
            }
            for (address, wanted) in model.iter().enumerate() {
                let found = spaces.find(1, address as u64);
                assert_eq!(found, wanted.map(|(file, offset)| (file.into(), offset)));
            }
        }
    }
}
