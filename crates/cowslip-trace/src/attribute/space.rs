//! The address space of one process, replayed.

use std::collections::HashMap;

use super::Attribution;
use super::area::{Area, Areas};
use super::history::MappingHistory;
use super::kind::FaultKind;
use super::mapping::{Mapping, MappingId};
use super::pages::{MOST_PAGE, Page, Pages};
use super::place::Place;
use super::rule::{Evidence, Memory};
use crate::model::Fault;

mod advise;
mod change;
mod huge;

/// Limit of the areas and pages that all living children have of their parents: a broken trace may fork any number of
/// times.
const MOST_INHERITED: usize = 1 << 21;

/// The address space of one process.
#[derive(Default, Debug)]
pub(super) struct Space {
    pid: u32,
    areas: Areas,
    pages: Pages,
    /// The program break, as far as it is known.
    program_break: Option<usize>,
    has_forked: bool,
    /// Since when a forked child's areas are its own.
    forked_ns: u64,
    /// A forked child's mappings, by those of its parent.
    inherited: HashMap<MappingId, MappingId>,
    /// The number of areas and of runs of pages that it inherited.
    inherited_parts: usize,
}

impl Space {
    pub(super) fn new(pid: u32) -> Self {
        Self { pid, ..Self::default() }
    }

    /// The child that this process makes now. It has no shared memory mapped yet.
    pub(super) fn fork(&mut self, child_pid: u32, history: &mut MappingHistory) -> Self {
        self.has_forked = true;
        let mut pages = self.pages.fork();
        let inherited_parts = self.areas.len() + pages.inherited();
        if history.inherited_parts + inherited_parts > MOST_INHERITED {
            return Self::new(child_pid);
        }
        history.inherited_parts += inherited_parts;
        let mut areas = Areas::default();
        self.areas.iter().for_each(|area| areas.insert(Area { span: None, ..*area }));
        for area in areas.iter().filter(|area| history.get(area.mapping).object.is_some()) {
            pages.forget(history.circumstances.pages(area.range));
        }
        Self {
            pid: child_pid,
            areas,
            pages,
            program_break: self.program_break,
            has_forked: true,
            forked_ns: history.now_ns,
            inherited: HashMap::new(),
            inherited_parts,
        }
    }

    /// Nothing of it is left.
    pub(super) fn end(&mut self, history: &mut MappingHistory) {
        history.inherited_parts -= self.inherited_parts;
        for span in self.areas.iter().filter_map(|area| area.span) {
            history.end(span);
        }
    }

    /// Where an address lies: its mapping, and how far into it in bytes.
    pub(super) fn locate(&self, address: u64) -> Option<(MappingId, u64)> {
        let area = self.areas.at(address as usize)?;
        let offset = address - area.range.start as u64 + area.into_mapping_bytes;
        Some((area.mapping, offset))
    }

    /// The place and the purpose of a fault.
    pub(super) fn fault(&mut self, fault: &Fault, history: &mut MappingHistory) -> Attribution {
        let at = history.circumstances;
        self.grow_stack(fault.address as usize, history);
        let Some(area) = self.own_area(fault.address as usize, history) else {
            return Attribution { mapping: None, kind: FaultKind::Unknown, fit: None };
        };
        let mapping = history.get(area.mapping);
        let page = fault.address / at.page_bytes;
        let object = mapping.object.map(|id| history.objects.get(id));
        let shared_page = shared_page(&area, page, history);
        let is_untold = fault.huge.is_none();
        let evidence = Evidence {
            fault: *fault,
            memory: memory(mapping),
            page: self.pages.get(page),
            shared: object.map_or(Page::Unseen, |object| object.pages.get(shared_page)),
            is_old: mapping.is_old
                || area.losses_before < at.losses
                || object.is_some_and(|object| object.has_past(at.losses)),
            has_forked: self.has_forked,
            may_have_come_unseen: match object {
                Some(object) => {
                    is_untold
                        && (!at.is_complete && self.has_forked
                            || self.may_be_shared_unseen(&area, page, object, history))
                }
                None => {
                    self.has_forked
                        && is_untold
                        && (!at.is_complete || self.may_have_come_unseen(page, history))
                }
            },
            sees_unmaps: at.sees_unmaps,
        };
        let is_pool = mapping.place == Place::Hugetlb;
        let fit = (evidence.is_new() && !is_pool).then(|| self.fit(&area, page, history));
        let kind = evidence.kind();
        let after = evidence.page_after(kind);
        let is_huge = is_pool || fault.huge == Some(true);
        let come = match is_huge {
            true => at.pages(at.range(&self.block(&area, page, history)).intersect(area.range)),
            false => page..page + 1,
        };
        if let Some(id) = mapping.object
            && kind != FaultKind::Repeated
        {
            let first = shared_page - (page - come.start).min(shared_page);
            let pages = first..first + (come.end - come.start);
            history.objects.get_mut(id).pages.set(pages, Page::Own);
        }
        if after != evidence.page {
            self.pages.set(come, after);
        }
        Attribution { mapping: Some(area.mapping), kind, fit }
    }

    /// The area at an address. A forked child's mapping becomes one of its own at its first fault.
    fn own_area(&mut self, address: usize, history: &mut MappingHistory) -> Option<Area> {
        let area = self.areas.at_mut(address)?;
        if area.span.is_none() {
            let parents = area.mapping;
            area.mapping = *self.inherited.entry(parents).or_insert_with(|| {
                let inherited_from = Some(parents);
                history.add(Mapping {
                    pid: self.pid,
                    inherited_from,
                    ..history.get(parents).clone()
                })
            });
            area.span = Some(history.begin_at(area.mapping, area.range, self.forked_ns));
        }
        Some(*area)
    }
}

/// A page of an area, by its number from the beginning of what it maps.
fn shared_page(area: &Area, page: u64, history: &MappingHistory) -> u64 {
    let page_bytes = history.circumstances.page_bytes;
    let offset = history.get(area.mapping).file_offset_bytes.wrapping_add(area.into_mapping_bytes);
    let before = page.saturating_sub(area.range.start as u64 / page_bytes);
    (offset / page_bytes).saturating_add(before).min(MOST_PAGE)
}

fn memory(mapping: &Mapping) -> Memory {
    match (&mapping.place, mapping.is_private) {
        (place, _) if place.is_anonymous() => Memory::Anonymous,
        (Place::File(_), Some(true)) => Memory::PrivateFile,
        (Place::File(_), Some(false)) => Memory::SharedFile,
        (place, Some(true)) if place.is_shared_memory() => Memory::PrivateMemoryFile,
        (place, Some(false)) if place.is_shared_memory() => Memory::Shared,
        _ => Memory::Other,
    }
}
