//! Maps, unmaps, moves, the program break and the stack.

use cowslip_sys::units::VirtRange;

use super::Space;
use crate::attribute::area::Area;
use crate::attribute::ledger::Ledger;
use crate::attribute::mapping::Mapping;
use crate::attribute::place::Place;
use crate::model::Map;

const MAP_SHARED: u32 = 1;
const MAP_PRIVATE: u32 = 2;
const MAP_LOCKED: u32 = 0x2000;
const MAP_POPULATE: u32 = 0x8000;
const PROT_READ: u32 = 1;
const PROT_WRITE: u32 = 2;

/// How far a stack is believed to have grown without an event: the usual limit (`ulimit -s`).
const STACK_BYTES: usize = 8 << 20;

impl Space {
    pub(in crate::attribute) fn map(&mut self, map: &Map, ledger: &mut Ledger) {
        let place = Place::of(map);
        if place == Place::Heap {
            let before = self.program_break.replace(map.range.end());
            if before == Some(map.range.start) && self.grow_heap(map.range, ledger) {
                return;
            }
        }
        let has_grown = match place {
            Place::Stack => self.grow_stack_to(map.range, ledger),
            _ => self.grow_to(map, &place, ledger),
        };
        if has_grown {
            return;
        }
        self.unmap(map.range, ledger);
        self.add(map.range, map, &place, ledger);
        let is_filled = map.flags & (MAP_POPULATE | MAP_LOCKED) != 0 && !map.is_old;
        if is_filled && place.is_anonymous() && map.protection & PROT_WRITE != 0 {
            self.fill(map.range, ledger);
        }
    }

    fn add(&mut self, range: VirtRange, map: &Map, place: &Place, ledger: &mut Ledger) {
        let is_private = match map.flags & (MAP_SHARED | MAP_PRIVATE) {
            MAP_PRIVATE => Some(true),
            0 => None,
            _ => Some(false),
        };
        let mapping = ledger.add(Mapping {
            pid: self.pid,
            place: place.clone(),
            length_bytes: range.len as u64,
            file_offset_bytes: map.offset_bytes,
            is_private,
            mapped_by: map.stack,
            is_old: map.is_old,
            inherited_from: None,
            unmapped_bytes: 0,
        });
        self.areas.insert(Area {
            range,
            mapping,
            span: Some(ledger.begin(mapping, range)),
            into_mapping_bytes: 0,
            protection: map.protection,
            wants_huge: None,
            losses_before: ledger.circumstances.losses,
        });
    }

    /// A heap that grew comes as a map of all of it. Where unmaps are not seen, so does any anonymous
    /// memory that the kernel joined with its neighbours: only what is new in it was mapped.
    fn grow_to(&mut self, map: &Map, place: &Place, ledger: &mut Ledger) -> bool {
        let is_heap = *place == Place::Heap;
        if !is_heap && (ledger.circumstances.sees_unmaps || !place.is_anonymous()) {
            return false;
        }
        let parts: Vec<Area> = self.areas.within(map.range).copied().collect();
        let known: usize = parts.iter().map(|area| area.range.len).sum();
        let is_growth = !parts.is_empty()
            && (known < map.range.len || parts.len() > 1)
            && parts.iter().all(|area| {
                map.range.covers(area.range)
                    && area.protection == map.protection
                    && ledger.get(area.mapping).place == *place
            });
        if !is_growth {
            return false;
        }
        if is_heap && parts.len() == 1 && parts[0].range.start == map.range.start {
            self.resize(&parts[0], map.range.end(), ledger);
            return true;
        }
        let mut gap = map.range.start;
        for area in &parts {
            self.add(VirtRange::between(gap, area.range.start), map, place, ledger);
            gap = area.range.end();
        }
        self.add(VirtRange::between(gap, map.range.end()), map, place, ledger);
        true
    }

    pub(in crate::attribute) fn unmap(&mut self, range: VirtRange, ledger: &mut Ledger) {
        let gone = self.areas.take(range, ledger);
        for area in &gone {
            if let Some(span) = area.span {
                ledger.end(span);
                let unmapped = &mut ledger.get_mut(area.mapping).unmapped_bytes;
                *unmapped = unmapped.saturating_add(area.range.len as u64);
            }
        }
        if !gone.is_empty() {
            self.pages.forget(ledger.circumstances.pages(range));
        }
    }

    pub(in crate::attribute) fn remap(
        &mut self,
        (from, to, is_kept): (VirtRange, VirtRange, bool),
        ledger: &mut Ledger,
    ) {
        if from.start == to.start {
            return self.remap_in_place(from, to, ledger);
        }
        let source = VirtRange::new(from.start, from.len.max(1));
        let last = self.areas.within(source).last().copied();
        let moved = self.areas.take(from, ledger);
        let Some(last) = moved.last().copied().or(last) else {
            return self.unmap(to, ledger);
        };
        self.unmap(to, ledger);
        let kept = VirtRange::new(from.start, from.len.min(to.len));
        let at = ledger.circumstances;
        self.pages.relocate(at.pages(kept), at.pages(to).start);
        // Of length 0: the same shared memory a second time.
        let all = if moved.is_empty() { vec![last] } else { moved };
        for area in &all {
            let start = to.start + area.range.start.saturating_sub(from.start);
            let is_last = area.range == last.range;
            let end = if is_last { to.end() } else { (start + area.range.len).min(to.end()) };
            if start < end {
                let span =
                    area.span.map(|_| ledger.begin(area.mapping, VirtRange::between(start, end)));
                self.areas.insert(Area { span, ..area.moved(start, end) });
            }
            if is_kept {
                self.areas.insert(*area);
            } else if let Some(span) = area.span.filter(|_| !from.is_empty()) {
                ledger.end(span);
            }
        }
        self.pages.forget(ledger.circumstances.pages(VirtRange::new(from.start, from.len)));
    }

    fn remap_in_place(&mut self, from: VirtRange, to: VirtRange, ledger: &mut Ledger) {
        if to.len < from.len {
            return self.unmap(VirtRange::between(to.end(), from.end()), ledger);
        }
        let last = self.areas.at(from.end() - 1).copied();
        if let Some(last) = last.filter(|last| last.range.end() == from.end()) {
            self.unmap(VirtRange::between(from.end(), to.end()), ledger);
            self.resize(&last, to.end(), ledger);
        }
    }

    pub(in crate::attribute) fn set_break(&mut self, end: u64, ledger: &mut Ledger) {
        let end = end.next_multiple_of(ledger.circumstances.page_bytes) as usize;
        let Some(before) = self.program_break.replace(end) else { return };
        if end < before {
            return self.unmap(VirtRange::between(end, before), ledger);
        }
        let new = VirtRange::between(before, end);
        if new.is_empty() || self.grow_heap(new, ledger) {
            return;
        }
        let name = Some("[heap]".into());
        let (protection, flags) = (PROT_READ | PROT_WRITE, MAP_PRIVATE);
        let map = Map { range: new, protection, flags, name, ..Map::default() };
        self.map(&map, ledger);
    }

    /// Whether there is a heap below `new`: it is part of it now.
    fn grow_heap(&mut self, new: VirtRange, ledger: &mut Ledger) -> bool {
        let below = new.start.checked_sub(1).and_then(|below| self.areas.at(below)).copied();
        let heap = below.filter(|area| {
            ledger.get(area.mapping).place == Place::Heap && area.range.end() == new.start
        });
        if let Some(heap) = heap {
            self.unmap(new, ledger);
            self.resize(&heap, new.end(), ledger);
        }
        heap.is_some()
    }

    /// A stack that grew comes as a map of what is new below it, or of all of it. Whether there was one.
    fn grow_stack_to(&mut self, range: VirtRange, ledger: &mut Ledger) -> bool {
        let first = self.areas.at(range.start).or_else(|| self.areas.above(range.start)).copied();
        let lowest = first.filter(|area| {
            ledger.get(area.mapping).place == Place::Stack && area.range.start <= range.end()
        });
        if let Some(lowest) = lowest.filter(|lowest| range.start < lowest.range.start) {
            self.grow_down(&lowest, range.start, ledger);
        }
        lowest.is_some()
    }

    /// Where events are missing, a stack grows down to what was touched.
    pub(super) fn grow_stack(&mut self, address: usize, ledger: &mut Ledger) {
        if self.areas.at(address).is_some() {
            return;
        }
        let Some(above) = self.areas.above(address).copied() else { return };
        let is_stack = ledger.get(above.mapping).place == Place::Stack;
        if is_stack && above.range.end() - address <= STACK_BYTES {
            let start = address & !(ledger.circumstances.page_bytes as usize - 1);
            self.grow_down(&above, start, ledger);
        }
    }

    fn grow_down(&mut self, area: &Area, start: usize, ledger: &mut Ledger) {
        self.areas.take(area.range, ledger);
        let range = VirtRange::between(start, area.range.end());
        let span = area.span.map(|span| ledger.change(span, range));
        self.areas.insert(Area { span, range, ..*area });
        let stack = ledger.get_mut(area.mapping);
        stack.length_bytes = stack.length_bytes.max(range.len as u64);
    }

    fn resize(&mut self, area: &Area, end: usize, ledger: &mut Ledger) {
        self.areas.resize(area.range.start, end, ledger);
        let mapping = ledger.get_mut(area.mapping);
        let length = area.into_mapping_bytes + (end - area.range.start) as u64;
        mapping.length_bytes = mapping.length_bytes.max(length);
    }
}
