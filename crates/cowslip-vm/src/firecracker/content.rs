//! The RAM of a machine in an image, as one file: its regions one after the other, in the order of the machine's addresses.

use std::ops::ControlFlow;

use cowslip::image::{Description, Image, RestoreOptions, Restored};
use cowslip::units::{CHUNK_BYTES, VirtRange};
use cowslip::{Error, ErrorKind, Result};

use crate::layout;

const OPERATION: &str = "restore the RAM of a machine";
/// The place of RAM in an image of `cowslip vm`.
pub const RAM: &str = "vm.ram";

/// The RAM of an image, restored lazily: pages can be had at once.
#[derive(Debug)]
pub struct Content {
    /// Keeps the memory.
    _restored: Restored,
    /// In order, without gaps.
    parts: Vec<Part>,
    /// Chunks of the arena that the image has. The others are zeroes, and not touched.
    used: Vec<bool>,
    bytes: u64,
}

/// A region of the RAM.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Its place in the file.
    offset: u64,
    /// Its place in the arena.
    arena_offset: usize,
    memory: VirtRange,
}

/// The source of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    /// Memory of this process.
    Memory(usize),
    Zeroes,
}

impl Content {
    /// The RAM of an image that [`Snapshot::save`](crate::Snapshot::save) or `cowslip vm` wrote.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the image has no RAM of a machine; those of [`Image::restore`].
    pub fn restore(image: &Image, options: &RestoreOptions) -> Result<Self> {
        let (number, places) = places(image.description())?;
        let restored = image.restore(number, options, &mut |_| ControlFlow::Continue(()))?;
        let arena = restored.arena().range();
        let mut used = vec![false; arena.len.div_ceil(CHUNK_BYTES)];
        image.used_chunks(number).iter().for_each(|chunk| used[*chunk as usize] = true);
        let (mut parts, mut offset) = (Vec::new(), 0);
        for place in places {
            let memory = VirtRange::new(arena.start + place.start, place.len);
            if place.end() > arena.len {
                return Err(Error::new(ErrorKind::Corrupt, OPERATION)
                    .on(memory)
                    .because("the image names a place outside of its memory"));
            }
            parts.push(Part { offset, arena_offset: place.start, memory });
            offset += place.len as u64;
        }
        Ok(Self { _restored: restored, parts, used, bytes: offset })
    }

    /// The length of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The source of the pages from `offset`, and how many of `pages` have such a source: one at least. `None` if the
    /// first page is in two regions.
    pub(super) fn at(
        &self,
        offset: u64,
        page_bytes: usize,
        pages: usize,
    ) -> Option<(Source, usize)> {
        let index = self.parts.partition_point(|part| part.offset <= offset).checked_sub(1)?;
        let part = self.parts[index];
        let within = (offset - part.offset) as usize;
        let pages = pages.min(part.memory.len.checked_sub(within)? / page_bytes);
        let is_used = |page: usize| {
            let from = part.arena_offset + within + page * page_bytes;
            let chunks = from / CHUNK_BYTES..=(from + page_bytes - 1) / CHUNK_BYTES;
            self.used.get(chunks).is_none_or(|chunks| chunks.contains(&true))
        };
        let first = (pages > 0).then(|| is_used(0))?;
        let same = (1..pages).take_while(|page| is_used(*page) == first).count() + 1;
        let source =
            if first { Source::Memory(part.memory.start + within) } else { Source::Zeroes };
        Some((source, same))
    }
}

/// The arena of an image with RAM, and the places of the RAM there.
fn places(image: &Description) -> Result<(u32, Vec<VirtRange>)> {
    if let Some(root) = image.roots.get(RAM) {
        let place = VirtRange::new(root.offset_bytes as usize, root.length_bytes as usize);
        return Ok((root.arena, vec![place]));
    }
    let (arena, regions) = layout::regions_in(image, OPERATION).map_err(|_| {
        Error::new(ErrorKind::Usage, OPERATION)
            .because("the image has no RAM of a machine")
            .advise("make one by cowslip vm import, by cowslip vm snapshot, or by Snapshot::save")
    })?;
    Ok((arena, regions.iter().map(|region| region.host).collect()))
}
