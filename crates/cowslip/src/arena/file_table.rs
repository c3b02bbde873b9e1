//! The files of an arena by their numbers, and the places in them that chunks moved out of: see [`super::files`].

use std::sync::Arc;

use cowslip_sys::Errno;
use cowslip_sys::memory::Prot;
use cowslip_sys::units::{CHUNK_BYTES, VirtRange};

use crate::mapping::backing_file::BackingFile;
use crate::memory::chunk_map::MOST_FILES;

/// A part of a view, of one protection, in one file.
#[derive(Debug)]
pub(crate) struct FrozenPiece {
    /// At the arena's addresses.
    pub(crate) range: VirtRange,
    pub(crate) prot: Prot,
    pub(crate) file: Arc<BackingFile>,
}

#[derive(Debug)]
pub(crate) struct Files {
    pub(super) slots: Vec<Option<Arc<BackingFile>>>,
    /// The file in which chunks become live while others are read. Chosen again after each freeze and fork.
    pub(super) target: Option<u8>,
    pub(super) vacated: Vec<Vacated>,
}

/// A place that a chunk was moved out of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vacated {
    pub(super) file: u8,
    pub(super) chunk: usize,
    /// The generation that it was frozen for.
    pub(super) since: u64,
    /// The youngest view when it was moved.
    pub(super) until: u64,
}

impl Files {
    pub(crate) fn new(first: Arc<BackingFile>) -> Self {
        Self { slots: vec![Some(first)], target: None, vacated: Vec::new() }
    }

    /// The file of that number, which a chunk maps.
    pub(crate) fn get(&self, number: u8) -> &Arc<BackingFile> {
        let slot = self.slots.get(usize::from(number)).and_then(Option::as_ref);
        slot.expect("a file stays as long as a chunk maps it")
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u8, &Arc<BackingFile>)> {
        let numbered = self.slots.iter().enumerate();
        numbered.filter_map(|(i, slot)| slot.as_ref().map(|file| (i as u8, file)))
    }

    /// Finds out which of them readers have exposed.
    pub(crate) fn look(&self) {
        self.all().for_each(|(_, file)| file.look());
    }

    /// True if readers have exposed one of them.
    pub(crate) fn has_exposed(&self) -> bool {
        self.all().any(|(_, file)| file.is_exposed())
    }

    /// In a child: keeps their descriptors.
    pub(crate) fn claim(&self) {
        self.all().for_each(|(_, file)| file.claim());
    }

    /// In a reader: closes all of them.
    pub(crate) fn renounce(&mut self) {
        self.slots.clear();
        self.target = None;
    }

    /// True in a reader that has closed all of them.
    pub(crate) fn are_renounced(&self) -> bool {
        self.slots.is_empty()
    }

    pub(crate) fn is_single(&self) -> bool {
        self.slots.iter().flatten().count() == 1
    }

    /// After a freeze or a fork: files may have readers that had none.
    pub(crate) fn forget_target(&mut self) {
        self.target = None;
    }

    /// `BADF` if the program has closed the descriptor of one of them, or put another file in its place.
    pub(crate) fn check_identities(&self) -> Result<(), Errno> {
        self.all().try_for_each(|(_, file)| file.check_identity())
    }

    /// Memory that they hold.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.all()
            .map(|(_, file)| cowslip_sys::memfile::allocated_bytes(file.fd()).unwrap_or(0))
            .sum()
    }

    /// True if places are kept for readers alone.
    pub(crate) fn has_vacated(&self) -> bool {
        !self.vacated.is_empty()
    }

    /// Memory that they hold.
    pub(crate) fn vacated_bytes(&self) -> u64 {
        (self.vacated.len() * CHUNK_BYTES) as u64
    }

    /// Gives back, in the background like others, a place that nothing maps or reads any more.
    pub(crate) fn abandon(&mut self, file: u8, chunk: usize) {
        const UNREAD: u64 = u64::MAX;
        self.vacated.push(Vacated { file, chunk, since: UNREAD, until: 0 });
    }

    /// Notes that a kept place is mapped again. Returns the generation that it was frozen for.
    pub(crate) fn reoccupy(&mut self, file: u8, chunk: usize) -> Option<u64> {
        let is_it = |place: &Vacated| (place.file, place.chunk) == (file, chunk);
        let place = self.vacated.iter().position(is_it)?;
        Some(self.vacated.swap_remove(place).since)
    }

    /// True if at least half of [`MOST_FILES`] are in use.
    pub(crate) fn are_many(&self) -> bool {
        self.slots.iter().flatten().count() >= MOST_FILES / 2
    }

    pub(super) fn add(&mut self, file: Arc<BackingFile>) -> Option<u8> {
        let free = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if free == MOST_FILES {
            return None;
        }
        if free == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[free] = Some(file);
        Some(free as u8)
    }

    /// In a forked child: forgets the vacated places, which the parent gives back.
    pub(crate) fn in_child(&mut self) {
        self.vacated.clear();
        self.target = None;
    }
}
