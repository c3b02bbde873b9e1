//! Changes of an address space: maps, unmaps, moves, the program break and the stack.

use cowslip_sys::units::VirtRange;

use super::Space;
use crate::attribute::area::Area;
use crate::attribute::history::MappingHistory;
use crate::attribute::mapping::Mapping;
use crate::attribute::place::Place;
use crate::model::Map;

const MAP_SHARED: u32 = 1;
const MAP_PRIVATE: u32 = 2;
const MAP_LOCKED: u32 = 0x2000;
const MAP_POPULATE: u32 = 0x8000;
const PROT_READ: u32 = 1;
const PROT_WRITE: u32 = 2;

/// The most that a stack is assumed to have grown without an event: the usual limit (`ulimit -s`).
const STACK_BYTES: usize = 8 << 20;

impl Space {
    pub(in crate::attribute) fn map(&mut self, map: &Map, history: &mut MappingHistory) {
        let place = Place::from_map(map);
        if place == Place::Heap {
            let before = self.program_break.replace(map.range.end());
            if before == Some(map.range.start) && self.grow_heap(map.range, history) {
                return;
            }
        }
        let has_grown = match place {
            Place::Stack => self.grow_stack_to(map.range, history),
            _ => self.grow_to(map, &place, history),
        };
        if has_grown {
            return;
        }
        self.unmap(map.range, history);
        self.add(map.range, map, &place, history);
        let is_filled = map.flags & (MAP_POPULATE | MAP_LOCKED) != 0 && !map.is_old;
        let is_shared = self
            .areas
            .at(map.range.start)
            .is_some_and(|area| history.get(area.mapping).object.is_some());
        let is_writable = map.protection & PROT_WRITE != 0;
        if is_filled && (is_shared || place.is_anonymous() && is_writable) {
            self.fill(map.range, history);
        }
    }

    fn add(&mut self, range: VirtRange, map: &Map, place: &Place, history: &mut MappingHistory) {
        let is_private = match map.flags & (MAP_SHARED | MAP_PRIVATE) {
            MAP_PRIVATE => Some(true),
            0 => None,
            _ => Some(false),
        };
        let mapping = history.add(Mapping {
            pid: self.pid,
            place: place.clone(),
            length_bytes: range.len as u64,
            file_offset_bytes: map.offset_bytes,
            inode: map.inode,
            is_private,
            mapped_by: map.stack,
            is_old: map.is_old,
            inherited_from: None,
            unmapped_bytes: 0,
            object: None,
        });
        self.areas.insert(Area {
            range,
            mapping,
            span: Some(history.begin(mapping, range)),
            into_mapping_bytes: 0,
            protection: map.protection,
            wants_huge: None,
            losses_before: history.circumstances.losses,
        });
    }

    /// A grown heap appears as a map of all of it. Without unmap events, so does any anonymous memory that
    /// the kernel merged with its neighbours: only the new part was mapped.
    fn grow_to(&mut self, map: &Map, place: &Place, history: &mut MappingHistory) -> bool {
        let is_heap = *place == Place::Heap;
        if !is_heap && (history.circumstances.sees_unmaps || !place.is_anonymous()) {
            return false;
        }
        let parts: Vec<Area> = self.areas.within(map.range).copied().collect();
        let known: usize = parts.iter().map(|area| area.range.len).sum();
        let is_growth = !parts.is_empty()
            && (known < map.range.len || parts.len() > 1)
            && parts.iter().all(|area| {
                map.range.covers(area.range)
                    && area.protection == map.protection
                    && history.get(area.mapping).place == *place
            });
        if !is_growth {
            return false;
        }
        if is_heap && parts.len() == 1 && parts[0].range.start == map.range.start {
            self.resize(&parts[0], map.range.end(), history);
            return true;
        }
        let mut gap = map.range.start;
        for area in &parts {
            self.add(VirtRange::between(gap, area.range.start), map, place, history);
            gap = area.range.end();
        }
        self.add(VirtRange::between(gap, map.range.end()), map, place, history);
        true
    }

    pub(in crate::attribute) fn unmap(&mut self, range: VirtRange, history: &mut MappingHistory) {
        let gone = self.areas.take(range, history);
        for area in &gone {
            if let Some(span) = area.span {
                history.end(span);
                let unmapped = &mut history.get_mut(area.mapping).unmapped_bytes;
                *unmapped = unmapped.saturating_add(area.range.len as u64);
            }
        }
        if !gone.is_empty() {
            self.pages.forget(history.circumstances.pages(range));
        }
    }

    pub(in crate::attribute) fn remap(
        &mut self,
        (from, to, is_kept): (VirtRange, VirtRange, bool),
        history: &mut MappingHistory,
    ) {
        if from.start == to.start {
            return self.remap_in_place(from, to, history);
        }
        let source = VirtRange::new(from.start, from.len.max(1));
        let last = self.areas.within(source).last().copied();
        let moved = self.areas.take(from, history);
        let Some(last) = moved.last().copied().or(last) else {
            return self.unmap(to, history);
        };
        self.unmap(to, history);
        let kept = VirtRange::new(from.start, from.len.min(to.len));
        let at = history.circumstances;
        self.pages.relocate(at.pages(kept), at.pages(to).start);
        // Length 0 maps the same shared memory a second time.
        let all = if moved.is_empty() { vec![last] } else { moved };
        for area in &all {
            let start = to.start + area.range.start.saturating_sub(from.start);
            let is_last = area.range == last.range;
            let end = if is_last { to.end() } else { (start + area.range.len).min(to.end()) };
            if start < end {
                let span =
                    area.span.map(|_| history.begin(area.mapping, VirtRange::between(start, end)));
                self.areas.insert(Area { span, ..area.moved(start, end) });
            }
            if is_kept {
                self.areas.insert(*area);
            } else if let Some(span) = area.span.filter(|_| !from.is_empty()) {
                history.end(span);
            }
        }
        self.pages.forget(history.circumstances.pages(VirtRange::new(from.start, from.len)));
    }

    fn remap_in_place(&mut self, from: VirtRange, to: VirtRange, history: &mut MappingHistory) {
        if to.len < from.len {
            return self.unmap(VirtRange::between(to.end(), from.end()), history);
        }
        let last = self.areas.at(from.end() - 1).copied();
        if let Some(last) = last.filter(|last| last.range.end() == from.end()) {
            self.unmap(VirtRange::between(from.end(), to.end()), history);
            self.resize(&last, to.end(), history);
        }
    }

    pub(in crate::attribute) fn set_break(&mut self, end: u64, history: &mut MappingHistory) {
        let end = end.next_multiple_of(history.circumstances.page_bytes) as usize;
        let Some(before) = self.program_break.replace(end) else { return };
        if end < before {
            return self.unmap(VirtRange::between(end, before), history);
        }
        let new = VirtRange::between(before, end);
        if new.is_empty() || self.grow_heap(new, history) {
            return;
        }
        let name = Some("[heap]".into());
        let (protection, flags) = (PROT_READ | PROT_WRITE, MAP_PRIVATE);
        let map = Map { range: new, protection, flags, name, ..Map::default() };
        self.map(&map, history);
    }

    /// Extends the heap below `new`; false if there is none.
    fn grow_heap(&mut self, new: VirtRange, history: &mut MappingHistory) -> bool {
        let below = new.start.checked_sub(1).and_then(|below| self.areas.at(below)).copied();
        let heap = below.filter(|area| {
            history.get(area.mapping).place == Place::Heap && area.range.end() == new.start
        });
        if let Some(heap) = heap {
            self.unmap(new, history);
            self.resize(&heap, new.end(), history);
        }
        heap.is_some()
    }

    /// A grown stack appears as a map of the new part below it, or of all of it. Returns true if there was a
    /// stack.
    fn grow_stack_to(&mut self, range: VirtRange, history: &mut MappingHistory) -> bool {
        let first = self.areas.at(range.start).or_else(|| self.areas.above(range.start)).copied();
        let lowest = first.filter(|area| {
            history.get(area.mapping).place == Place::Stack && area.range.start <= range.end()
        });
        if let Some(lowest) = lowest.filter(|lowest| range.start < lowest.range.start) {
            self.grow_down(&lowest, range.start, history);
        }
        lowest.is_some()
    }

    /// Grows a stack down to a touched address, where events are missing.
    pub(super) fn grow_stack(&mut self, address: usize, history: &mut MappingHistory) {
        if self.areas.at(address).is_some() {
            return;
        }
        let Some(above) = self.areas.above(address).copied() else { return };
        let is_stack = history.get(above.mapping).place == Place::Stack;
        if is_stack && above.range.end() - address <= STACK_BYTES {
            let start = address & !(history.circumstances.page_bytes as usize - 1);
            self.grow_down(&above, start, history);
        }
    }

    fn grow_down(&mut self, area: &Area, start: usize, history: &mut MappingHistory) {
        self.areas.take(area.range, history);
        let range = VirtRange::between(start, area.range.end());
        let span = area.span.map(|span| history.change(span, range));
        self.areas.insert(Area { span, range, ..*area });
        let stack = history.get_mut(area.mapping);
        stack.length_bytes = stack.length_bytes.max(range.len as u64);
    }

    fn resize(&mut self, area: &Area, end: usize, history: &mut MappingHistory) {
        self.areas.resize(area.range.start, end, history);
        let mapping = history.get_mut(area.mapping);
        let length = area.into_mapping_bytes + (end - area.range.start) as u64;
        mapping.length_bytes = mapping.length_bytes.max(length);
    }
}
