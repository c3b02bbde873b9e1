//! Shared memory itself, which several mappings and processes map, and its present pages.

use std::collections::HashMap;

use super::mapping::{Mapping, ObjectId};
use super::pages::Pages;
use super::place::Place;

/// Shared memory.
#[derive(Debug)]
pub(super) struct Object {
    /// Its pages, numbered from its beginning.
    pub(super) pages: Pages,
    /// True if pages may have come without an event: it is older than the trace, or events were lost.
    pub(super) is_old: bool,
    losses_before: u32,
}

/// All shared memory.
#[derive(Debug, Default)]
pub(super) struct Objects {
    all: Vec<Object>,
    /// By name and number, because unrelated processes can map it too.
    by_file: HashMap<(Place, u64), ObjectId>,
}

impl Objects {
    /// The shared memory of a new mapping, if it maps any; `losses` is the number of losses of events until
    /// now.
    pub(super) fn find_or_add(&mut self, mapping: &Mapping, losses: u32) -> Option<ObjectId> {
        let is_shared = mapping.is_private == Some(false) && mapping.place.is_shared_memory();
        if !is_shared {
            return None;
        }
        let new = ObjectId(self.all.len() as u32);
        // Memory with neither name nor number is mapped once, and inherited by forks.
        let has_identity = mapping.place != Place::Shared || mapping.inode != 0;
        let id = match has_identity {
            true => *self.by_file.entry((mapping.place.clone(), mapping.inode)).or_insert(new),
            false => new,
        };
        if id == new {
            let pages = Pages::default();
            self.all.push(Object { pages, is_old: false, losses_before: losses });
        }
        let object = self.get_mut(id);
        object.is_old |= mapping.is_old || object.losses_before < losses;
        Some(id)
    }

    pub(super) fn get(&self, id: ObjectId) -> &Object {
        &self.all[id.0 as usize]
    }

    pub(super) fn get_mut(&mut self, id: ObjectId) -> &mut Object {
        &mut self.all[id.0 as usize]
    }
}

impl Object {
    /// True if it may have unknown pages.
    pub(super) fn has_past(&self, losses: u32) -> bool {
        self.is_old || self.losses_before < losses
    }
}
