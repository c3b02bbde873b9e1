//! Compares two images.

use std::collections::BTreeSet;

#[cfg(doc)]
use cowslip_sys::error::ErrorKind;
use cowslip_sys::error::Result;
use cowslip_sys::units::CHUNK_BYTES;
use serde::Serialize;

use super::OnProgress;
use super::chunk::Scratch;
use super::description::{Description, Root};
use super::format::PAGE_BYTES;
use super::open::Image;
use crate::progress::advance;

const OPERATION: &str = "compare images";

/// The differences between two images. Memory that only one of them has counts as zeroes in the
/// other.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Diff {
    /// One for each arena with any difference.
    pub arenas: Vec<ArenaDiff>,
    /// Roots that only one of them has, that have moved, or with different memory.
    pub roots: BTreeSet<String>,
    /// True if they have different arenas, or different or differently protected parts of them
    /// allocated.
    pub has_other_layout: bool,
    /// The program's own words that differ, by name.
    pub user: BTreeSet<String>,
}

/// The differences in an arena.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct ArenaDiff {
    /// The arena, by its index in the list.
    pub arena: u32,
    /// Chunks of 2 MiB that differ.
    pub chunks: u64,
    /// Pages of 4 KiB that differ.
    pub pages: u64,
    /// Bytes that differ.
    pub bytes: u64,
    /// Runs of pages that differ, in order.
    pub ranges: Vec<DiffRange>,
}

/// Successive pages, each with a difference.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct DiffRange {
    /// From the arena's start.
    pub offset_bytes: u64,
    /// Its length.
    pub length_bytes: u64,
}

impl Diff {
    /// Returns true if nothing differs.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Image {
    /// The differences between this image and `other`. Chunks with equal checksums are not read.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if a chunk is damaged, [`ErrorKind::Busy`] if `progress` broke it off; an error of the
    /// file system.
    pub fn diff(&self, other: &Self, progress: OnProgress<'_>) -> Result<Diff> {
        let (before, after) = (self.contents(), other.contents());
        let mut chunks: Vec<_> = before.keys().chain(after.keys()).copied().collect();
        chunks.retain(|chunk| before.get(chunk) != after.get(chunk));
        chunks.sort_unstable();
        chunks.dedup();
        let mut contents = [vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]];
        let mut scratch = Scratch::default();
        let mut arenas: Vec<ArenaDiff> = Vec::new();
        for (done, &(arena, chunk)) in (1..).zip(&chunks) {
            for (image, content) in [self, other].into_iter().zip(&mut contents) {
                image.read_chunk_with(&mut scratch, arena, chunk, content)?;
            }
            if arenas.last().is_none_or(|last| last.arena != arena) {
                arenas.push(ArenaDiff { arena, ..ArenaDiff::default() });
            }
            let [before, after] = &contents;
            arenas.last_mut().expect("one was pushed").add(chunk, before, after);
            advance(progress, OPERATION, done, chunks.len())?;
        }
        let [before, after] = [self, other].map(Self::description);
        let layout = |description: &Description| {
            let arenas = description.arenas.iter();
            arenas.map(|arena| (arena.length_bytes, arena.pieces.clone())).collect::<Vec<_>>()
        };
        let names = before.user.keys().chain(after.user.keys());
        let differs = |name: &&String| before.user.get(*name) != after.user.get(*name);
        Ok(Diff {
            roots: roots(before, after, &arenas),
            arenas,
            has_other_layout: layout(before) != layout(after),
            user: names.filter(differs).cloned().collect(),
        })
    }
}

impl ArenaDiff {
    /// Adds the differences in a chunk.
    fn add(&mut self, chunk: u32, before: &[u8], after: &[u8]) {
        self.chunks += 1;
        let start = u64::from(chunk) * CHUNK_BYTES as u64;
        let pages = before.chunks_exact(PAGE_BYTES).zip(after.chunks_exact(PAGE_BYTES));
        for (offset_bytes, (before, after)) in (start..).step_by(PAGE_BYTES).zip(pages) {
            if before == after {
                continue;
            }
            self.pages += 1;
            self.bytes += before.iter().zip(after).filter(|(a, b)| a != b).count() as u64;
            match self.ranges.last_mut() {
                Some(last) if last.offset_bytes + last.length_bytes == offset_bytes => {
                    last.length_bytes += PAGE_BYTES as u64;
                }
                _ => {
                    let length_bytes = PAGE_BYTES as u64;
                    self.ranges.push(DiffRange { offset_bytes, length_bytes });
                }
            }
        }
    }

    fn touches(&self, root: &Root) -> bool {
        let from = self
            .ranges
            .partition_point(|range| range.offset_bytes + range.length_bytes <= root.offset_bytes);
        let end = root.offset_bytes + root.length_bytes;
        self.ranges.get(from).is_some_and(|range| range.offset_bytes < end)
    }
}

fn roots(before: &Description, after: &Description, arenas: &[ArenaDiff]) -> BTreeSet<String> {
    let is_touched = |root: &Root| {
        let of_its_arena = |diff: &&ArenaDiff| diff.arena == root.arena;
        arenas.iter().find(of_its_arena).is_some_and(|diff| diff.touches(root))
    };
    let names = before.roots.keys().chain(after.roots.keys());
    let differs = |name: &&String| match (before.roots.get(*name), after.roots.get(*name)) {
        (Some(root), Some(other)) => root != other || is_touched(root),
        _ => true,
    };
    names.filter(differs).cloned().collect()
}
