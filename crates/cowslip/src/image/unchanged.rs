//! Finds chunks that need not be read, because they are known to equal the parent's.

use std::ops::Range;

use cowslip_sys::units::CHUNK_BYTES;

use super::description::Piece;
use super::open::Image;
use crate::freeze::Frozen;

/// The state of a frozen arena relative to its parent image.
#[derive(Clone, Copy)]
pub(super) struct Unchanged<'a> {
    frozen: &'a Frozen,
    /// The freeze that the parent was saved from.
    freeze: u64,
    /// The pieces that were allocated then.
    pieces: &'a [Piece],
}

impl<'a> Unchanged<'a> {
    /// One for each arena; `None` if nothing is known: it is not tracked, or the parent was not saved from it by this
    /// process.
    pub(super) fn since(parent: &'a Image, frozen: &'a [&Frozen]) -> Vec<Option<Self>> {
        let arenas = parent.description().arenas.iter();
        let arenas = arenas.zip(frozen).enumerate().map(|(place, (arena, frozen))| {
            let handle = frozen.handle().filter(|_| frozen.known.is_tracked())?;
            let freeze = handle.shared.lock().tracking.saved(parent.identity().0, place)?;
            Some(Self { frozen, freeze, pieces: &arena.pieces })
        });
        arenas.collect()
    }

    /// Returns true if a chunk equals the parent's: nothing was written to it, and the same parts of it are in use (an
    /// image has zeroes for the rest).
    pub(super) fn has(&self, chunk: u32) -> bool {
        self.frozen.known.is_unchanged_since(chunk as usize, self.freeze)
            && self.has_same_parts(u64::from(chunk))
    }

    fn has_same_parts(&self, chunk: u64) -> bool {
        let within = chunk * CHUNK_BYTES as u64..(chunk + 1) * CHUNK_BYTES as u64;
        let start = self.frozen.range().start;
        let used = &self.frozen.used;
        let from = used.partition_point(|(part, _)| (part.end() - start) as u64 <= within.start);
        let now = used[from..].iter().map(|(part, _)| {
            let offset = (part.start - start) as u64;
            offset..offset + part.len as u64
        });
        let end = |piece: &Piece| piece.offset_bytes + piece.length_bytes;
        let from = self.pieces.partition_point(|piece| end(piece) <= within.start);
        let before = self.pieces[from..].iter().map(|piece| piece.offset_bytes..end(piece));
        parts(before, &within) == parts(now, &within)
    }
}

/// The parts of `spans`, which are in order, that lie in `within`; adjacent ones are joined.
fn parts(spans: impl Iterator<Item = Range<u64>>, within: &Range<u64>) -> Vec<Range<u64>> {
    let mut parts: Vec<Range<u64>> = Vec::new();
    for span in spans.take_while(|span| span.start < within.end) {
        let part = span.start.max(within.start)..span.end.min(within.end);
        match parts.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ => parts.push(part),
        }
    }
    parts
}
