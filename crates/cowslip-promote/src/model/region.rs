//! A region of 2 MiB: the pages in it.

use cowslip_sys::units::{CHUNK_BYTES, VirtRange};
use serde::{Deserialize, Serialize};

/// Base pages in a region of 2 MiB.
pub const REGION_PAGES: u16 = 512;

/// A region counts as in use from this much heat on.
const HOT_PERCENT: u8 = 10;

/// The kind of memory that a region belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RegionKind {
    /// Private anonymous memory.
    #[default]
    Private,
    /// A live arena of Cowslip: shared memory.
    Arena,
    /// An arena that is frozen, being thawed or being restored.
    FrozenArena,
    /// Other shared memory.
    Shmem,
    /// The text of a program or a library.
    Text,
}

impl RegionKind {
    /// True if processes may share its pages by a file that is no arena.
    pub(crate) fn is_of_file(self) -> bool {
        matches!(self, Self::Shmem | Self::Text)
    }
}

/// 2 MiB of memory, aligned, not empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Region {
    /// Its first address.
    pub address: u64,
    /// The kind of memory that it belongs to.
    #[serde(skip_serializing_if = "is_private")]
    pub kind: RegionKind,
    /// Pages in memory that were written, or all of them if it is huge.
    pub pages: u16,
    /// Pages that were only read: all of them are the one zero page.
    #[serde(skip_serializing_if = "is_zero")]
    pub zero_pages: u16,
    /// Pages that its file holds in memory, if it is shared memory: other processes may map them.
    #[serde(skip_serializing_if = "is_zero")]
    pub held_pages: u16,
    /// True if it is shared memory, or text, that a target before this one maps as well.
    #[serde(skip_serializing_if = "is_false")]
    pub is_elsewhere: bool,
    /// Pages in swap.
    #[serde(skip_serializing_if = "is_zero")]
    pub swapped_pages: u16,
    /// Pages that another process maps too: copy-on-write after a fork.
    #[serde(skip_serializing_if = "is_zero")]
    pub shared_pages: u16,
    /// Pages that the kernel merged with equal ones (KSM), as far as page frames are visible (to root); otherwise they
    /// count as shared.
    #[serde(skip_serializing_if = "is_zero")]
    pub merged_pages: u16,
    /// Pages that may be lazily freed (`MADV_FREE`): in memory, and not in use.
    #[serde(skip_serializing_if = "is_zero")]
    pub lazily_freed_pages: u16,
    /// True if one huge page maps it.
    pub is_huge: bool,
    /// True if some of its pages belong to a huge page of which the rest was released, as far as page frames
    /// are visible (to root): the kernel holds all of it.
    #[serde(skip_serializing_if = "is_false")]
    pub is_partially_mapped: bool,
    /// Pages with anything but zeroes, if it is huge and its content was inspected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nonzero_pages: Option<u16>,
    /// The percentage of it that was accessed lately, where known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heat_percent: Option<u8>,
}

impl Region {
    /// Pages in memory, mapped or held by its file.
    pub(crate) fn present_pages(&self) -> u16 {
        self.pages.max(self.held_pages)
    }

    /// Pages in memory that are in use for certain.
    pub fn used_pages(&self) -> u16 {
        self.present_pages().saturating_sub(self.lazily_freed_pages)
    }

    /// Pages in use that no other memory holds.
    pub(crate) fn own_pages(&self) -> u16 {
        self.used_pages().saturating_sub(self.merged_pages)
    }

    /// True if it is known to be in use.
    pub(crate) fn is_hot(&self) -> bool {
        self.heat_percent.is_some_and(|heat| heat >= HOT_PERCENT)
    }

    /// True if it is known not to be in use.
    pub(crate) fn is_cold(&self) -> bool {
        self.heat_percent.is_some_and(|heat| heat < HOT_PERCENT)
    }

    pub(crate) fn range(&self) -> VirtRange {
        VirtRange::new(self.address as usize, CHUNK_BYTES)
    }
}

fn is_private(kind: &RegionKind) -> bool {
    *kind == RegionKind::Private
}

fn is_false(value: &bool) -> bool {
    !value
}

fn is_zero(pages: &u16) -> bool {
    *pages == 0
}
