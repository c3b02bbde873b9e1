//! The table of our descriptors.
//!
//! ```text
//!   free ──enter──▶ ours ──remove──▶ free
//!                    ├─ in a child, for its parent alone, not claimed ──▶ closed, free
//!                    └─ in a child that shares the descriptors ──▶ the parent's: never closed here
//! ```
//! An entry has the number of a descriptor, flags, and a serial number, so that a value whose entry is gone is never
//! mistaken for one that has the same number now. A child has a copy of the table.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::FileIdentity;
use super::close::close_now;
use crate::{BorrowedFd, RawFd};

/// A program with more descriptors of ours than this closes the others like its own.
const SLOTS: usize = 512;

const FREE: u64 = 0;
/// An entry that is being written.
const TAKEN: u64 = 1 << 63;
/// Children do not keep it unless they claim it.
const PRIVATE: u64 = 1 << 62;
const CLAIMED: u64 = 1 << 61;
/// It belongs to a process that shares its descriptors with this one.
const FOREIGN: u64 = 1 << 60;
const FLAGS: u64 = TAKEN | PRIVATE | CLAIMED | FOREIGN;
const MOST_SERIALS: u32 = 1 << 28;

#[repr(C)]
#[derive(Debug)]
struct Slot {
    entry: AtomicU64,
    /// Zeroes if it is not known.
    identity: [AtomicU64; 2],
}

/// The table, in memory that other processes may read.
#[repr(C)]
#[derive(Debug)]
pub struct Table([Slot; SLOTS]);

static WHOLE: Table = Table(
    [const { Slot { entry: AtomicU64::new(FREE), identity: [const { AtomicU64::new(0) }; 2] } };
        SLOTS],
);
static TABLE: &[Slot; SLOTS] = &WHOLE.0;

/// The table of this process.
pub const fn table() -> &'static Table {
    &WHOLE
}

impl Table {
    /// Its length, in bytes.
    pub const BYTES: usize = size_of::<Self>();

    /// The descriptors in the table of another process, by its bytes.
    pub fn read(bytes: &[u8; Self::BYTES]) -> Vec<RawFd> {
        let (words, _) = bytes.as_chunks::<8>();
        let entries = words.chunks_exact(size_of::<Slot>() / 8).map(|slot| slot[0]);
        entries.filter_map(|entry| number_of(u64::from_ne_bytes(entry))).collect()
    }
}

/// No slot from here on has ever been taken.
static USED: AtomicUsize = AtomicUsize::new(0);

static SERIAL: AtomicU32 = AtomicU32::new(0);

/// The processes that a descriptor is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// This one and its children.
    Inherited,
    /// This one, and those of its children that claim it.
    Private,
}

/// An entry of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    slot: usize,
    /// Without the flags.
    entry: u64,
}

fn slots() -> &'static [Slot] {
    &TABLE[..USED.load(Relaxed)]
}

fn number_of(entry: u64) -> Option<RawFd> {
    (entry & !FLAGS != FREE).then_some(entry as u32 as RawFd)
}

fn numbers() -> impl Iterator<Item = RawFd> {
    slots().iter().filter_map(|slot| number_of(slot.entry.load(Relaxed)))
}

/// Returns true if `fd` is one of ours.
pub fn is_held(fd: RawFd) -> bool {
    numbers().any(|held| held == fd)
}

/// The smallest of our descriptors in `first ..= last`.
pub fn next_held(first: RawFd, last: RawFd) -> Option<RawFd> {
    numbers().filter(|&fd| first <= fd && fd <= last).min()
}

/// `None` if the table is full.
pub(super) fn enter(fd: RawFd, identity: Option<FileIdentity>, scope: Scope) -> Option<Place> {
    let take = |slot: &Slot| slot.entry.compare_exchange(FREE, TAKEN, Relaxed, Relaxed).is_ok();
    let slot = TABLE.iter().position(take)?;
    USED.fetch_max(slot + 1, Relaxed);
    for (place, number) in TABLE[slot].identity.iter().zip(numbers_of(identity)) {
        place.store(number, Relaxed);
    }
    let serial = SERIAL.fetch_add(1, Relaxed) % MOST_SERIALS;
    let entry = u64::from(serial) << 32 | u64::from(fd as u32);
    let flags = if scope == Scope::Private { PRIVATE } else { 0 };
    TABLE[slot].entry.store(entry | flags, Relaxed);
    Some(Place { slot, entry })
}

fn numbers_of(identity: Option<FileIdentity>) -> [u64; 2] {
    identity.map_or([0; 2], FileIdentity::to_numbers)
}

impl Place {
    fn load(self) -> Option<u64> {
        let entry = TABLE[self.slot].entry.load(Relaxed);
        (entry & !FLAGS == self.entry).then_some(entry)
    }

    /// False if the descriptor was closed because this process is a child.
    pub(super) fn is_there(self) -> bool {
        self.load().is_some()
    }

    /// True if this process may close the descriptor.
    pub(super) fn is_ours(self) -> bool {
        self.load().is_some_and(|entry| entry & FOREIGN == 0)
    }

    /// Ends the entry of a descriptor that [is ours](Self::is_ours).
    pub(super) fn remove(self) {
        TABLE[self.slot].entry.store(FREE, Relaxed);
    }

    /// In a child: keeps the descriptor.
    pub(super) fn claim(self) {
        if let Some(entry) = self.load() {
            TABLE[self.slot].entry.store(entry | CLAIMED, Relaxed);
        }
    }
}

/// Ends the entry of this number. Returns true if there was one.
pub(super) fn remove(fd: RawFd) -> bool {
    let is_it = |slot: &&Slot| number_of(slot.entry.load(Relaxed)) == Some(fd);
    slots().iter().find(is_it).map(|slot| slot.entry.store(FREE, Relaxed)).is_some()
}

/// In a forked child, which has one thread: closes the descriptors that are for its parent alone and that it has not
/// claimed. If it shares the descriptors with its parent, all are the parent's.
pub(super) fn begin_child(shares_descriptors: bool) {
    for slot in slots() {
        let entry = slot.entry.load(Relaxed);
        let Some(fd) = number_of(entry) else { continue };
        if shares_descriptors {
            slot.entry.store(entry | FOREIGN, Relaxed);
        } else if entry & (PRIVATE | CLAIMED) == PRIVATE {
            slot.entry.store(FREE, Relaxed);
            slot.close(fd);
        } else {
            slot.entry.store(entry & !CLAIMED, Relaxed);
        }
    }
}

impl Slot {
    /// Closes its descriptor, unless the program has closed it before or put another file in its place.
    #[allow(unsafe_code)]
    fn close(&self, fd: RawFd) {
        // SAFETY: the number is looked at, and used no more if it is not that of our file.
        let now = FileIdentity::from_fd(unsafe { BorrowedFd::borrow_raw(fd) }).ok();
        let known = self.identity.each_ref().map(|place| place.load(Relaxed));
        if known == [0; 2] || numbers_of(now) == known {
            close_now(fd);
        }
    }
}
