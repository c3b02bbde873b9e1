//! Shared memory itself, which several mappings and processes map: which of its pages are there.

use std::collections::HashMap;

use super::mapping::Mapping;
use super::pages::Pages;
use super::place::Place;

/// The number of an [`Object`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct ObjectId(u32);

/// Shared memory.
#[derive(Debug)]
pub(super) struct Object {
    /// By their number from its beginning.
    pub(super) pages: Pages,
    /// Something may have brought pages that no event tells of: it is older than the trace, or events were lost.
    pub(super) is_old: bool,
    losses_before: u32,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Objects {
    all: Vec<Object>,
    /// By name and number, as processes that are not kin map it too.
    by_file: HashMap<(Place, u64), ObjectId>,
}

impl Objects {
    /// The shared memory that a new mapping maps, if it does; `losses` tells how often events were lost until now.
    pub(super) fn of(&mut self, mapping: &Mapping, losses: u32) -> Option<ObjectId> {
        let is_shared = mapping.is_private == Some(false) && mapping.place.is_shared_memory();
        if !is_shared {
            return None;
        }
        let new = ObjectId(self.all.len() as u32);
        // What has neither name nor number is mapped once, and handed down by forks.
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
    /// Whether pages may be there of which nothing is known.
    pub(super) fn has_past(&self, losses: u32) -> bool {
        self.is_old || self.losses_before < losses
    }
}
