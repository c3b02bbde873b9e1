//! Maps the file itself as memory.
//!
//! The file may change behind the mapping, which promises only to show bytes.

use std::fs::File;

use cowslip_sys::error::{During, Error, Result};
use cowslip_sys::memory::{Advice, Prot, Sharing};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange};
use cowslip_sys::{AsFd, AsRawFd, Errno};

use super::{OPERATION, Pieces, parts};
use crate::arena::mapping::OwnedRange;
use crate::image::Image;
use crate::image::chunk::Scratch;

/// Chunks that are adjacent in memory and in a file.
struct Run<'a> {
    range: VirtRange,
    file: &'a File,
    offset_bytes: u64,
}

/// Maps the chunks that are stored byte for byte, and decodes the rest into anonymous memory.
pub(super) fn map(
    image: &Image,
    arena: u32,
    space: OwnedRange,
    pieces: &Pieces,
    populate: bool,
) -> Result<()> {
    for (piece, _) in pieces {
        let place = space.part(*piece);
        place.map_anonymous(Prot::RW).map_err(|errno| refused(errno, *piece))?;
        // Best effort: it is only faster with huge pages.
        let _ = place.advise(Advice::HugePage);
    }
    let mut runs: Vec<Run<'_>> = Vec::new();
    let (mut content, mut scratch) = (vec![0; CHUNK_BYTES], Scratch::default());
    for chunk in image.chunks_of(arena) {
        let range = VirtRange::new(space.start + chunk as usize * CHUNK_BYTES, CHUNK_BYTES);
        if let Some((file, entry)) = image.verbatim(arena, chunk) {
            let offset_bytes = entry.offset_bytes;
            match runs.last_mut() {
                Some(run) if run.is_followed_by(range, file, offset_bytes) => {
                    run.range.len += CHUNK_BYTES;
                }
                _ => runs.push(Run { range, file, offset_bytes }),
            }
            continue;
        }
        image.read_chunk_with(&mut scratch, arena, chunk, &mut content)?;
        for (part, _) in parts(pieces, range) {
            let content = &content[part.start - range.start..][..part.len];
            space.part(part).with_bytes(|bytes| bytes.copy_from_slice(content));
        }
    }
    for run in &runs {
        run.map(space, pieces)?;
    }
    for (piece, prot) in pieces.iter().filter(|(_, prot)| *prot != Prot::RW) {
        space.part(*piece).protect(*prot).map_err(|errno| refused(errno, *piece))?;
    }
    if populate {
        let readable = |(_, prot): &(VirtRange, Prot)| prot.contains(Prot::READ);
        for (part, _) in runs.iter().flat_map(|run| parts(pieces, run.range)).filter(readable) {
            // MAP_POPULATE would copy every page of a mapping that can be written.
            space.part(part).advise(Advice::PopulateRead).during(OPERATION)?;
        }
    }
    Ok(())
}

impl Run<'_> {
    fn is_followed_by(&self, range: VirtRange, file: &File, offset_bytes: u64) -> bool {
        self.range.end() == range.start
            && self.file.as_raw_fd() == file.as_raw_fd()
            && self.offset_bytes + self.range.len as u64 == offset_bytes
    }

    fn map(&self, space: OwnedRange, pieces: &Pieces) -> Result<()> {
        for (part, _) in parts(pieces, self.range) {
            let at = self.offset_bytes + (part.start - self.range.start) as u64;
            let place = space.part(part);
            place
                .map_file(self.file.as_fd(), at, Sharing::Private, Prot::RW)
                .map_err(|errno| refused(errno, part))?;
            // Best effort: the kernel then reads the file by 2 MiB, and maps that at once, if the file system caches
            // such pages.
            let _ = place.advise(Advice::HugePage);
        }
        Ok(())
    }
}

fn refused(errno: Errno, range: VirtRange) -> Error {
    let error = Error::from_errno(OPERATION, errno).on(range);
    match errno {
        Errno::NOMEM => error.advise("raise vm.max_map_count, or restore into an arena"),
        _ => error,
    }
}
