//! Maps the file itself as memory, without an arena: for programs that read a little of a large image.
//!
//! The file may change behind the mapping, which promises only to show bytes. The memory cannot be frozen.

use std::fs::File;

use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::memory::{Advice, Prot, Sharing};
use cowslip_sys::units::{CHUNK_BYTES, GIB_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{AsFd, AsRawFd, Errno};

use crate::image::chunk::Scratch;
use crate::image::description::ArenaDescription;
use crate::image::open::Image;
use crate::mapping::{OwnSpace, OwnedRange};
use crate::template::Place;

const OPERATION: &str = "map an image";

/// Memory with the content of an arena of an image: the image's file, mapped privately. It is unmapped when this value
/// is dropped; until then its addresses may be accessed according to the image's description.
///
/// Nothing is checked, and the memory needs the file as long as it lives: truncating the file takes the memory away
/// (`SIGBUS`). Chunks that are not stored byte for byte were decoded into anonymous memory, and checked, at once.
#[derive(Debug)]
pub struct MappedImage {
    range: VirtRange,
    _space: OwnSpace,
}

impl MappedImage {
    /// Its addresses: as long as the arena was; only the allocated pieces are mapped.
    pub fn range(&self) -> VirtRange {
        self.range
    }
}

impl Image {
    /// Maps the image's file as memory with the content of one of its arenas.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the image has no such arena, [`ErrorKind::Busy`] if its addresses are taken,
    /// [`ErrorKind::Corrupt`] for damage in a chunk that is decoded; an error of the kernel.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use cowslip::image::{Image, SaveOptions, save};
    /// use cowslip::{Arena, Place, units::ByteCount};
    ///
    /// # let path = std::env::temp_dir().join(format!("doc-mapped-{}.cowslip", std::process::id()));
    /// let arena = Arena::new(ByteCount::mib(64))?;
    /// let mut table = arena.slice::<u64>(1 << 20)?;
    /// table.fill(7);
    /// save(&[&arena.freeze()?], &path, &SaveOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    ///
    /// let image = Image::open(&path)?;
    /// let memory = image.map(0, Place::Anywhere)?;
    /// let first = image.description().arenas[0].pieces[0].offset_bytes as usize;
    /// // SAFETY: the description says that it is handed out, readable.
    /// let word = unsafe { *((memory.range().start + first) as *const u64) };
    /// assert_eq!(word, 7);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), cowslip::Error>(())
    /// ```
    pub fn map(&self, arena: u32, place: Place) -> Result<MappedImage> {
        let Some(described) = self.description().arenas.get(arena as usize) else {
            return Err(Error::new(ErrorKind::Usage, OPERATION)
                .because(format!("it has {} arenas", self.description().arenas.len())));
        };
        let space = reserve(described, place)?;
        let range = **space;
        map(self, arena, *space, &pieces(described, range)?)?;
        Ok(MappedImage { range, _space: space })
    }
}

/// Chunks that are adjacent in memory and in a file.
struct Run<'a> {
    range: VirtRange,
    file: &'a File,
    offset_bytes: u64,
}

/// Maps the chunks that are stored byte for byte, and decodes the rest into anonymous memory.
fn map(image: &Image, arena: u32, space: OwnedRange, pieces: &Pieces) -> Result<()> {
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

fn reserve(described: &ArenaDescription, place: Place) -> Result<OwnSpace> {
    let (start, len) = (described.start_address as usize, described.length_bytes as usize);
    if !(start | len).is_multiple_of(CHUNK_BYTES) || start.checked_add(len).is_none() {
        return Err(Error::new(ErrorKind::Corrupt, OPERATION)
            .because("its description has an arena that is not whole chunks"));
    }
    place.reserve(OPERATION, VirtRange::new(start, len), GIB_BYTES)
}

type Pieces = Vec<(VirtRange, Prot)>;

/// The allocated pieces, at their present addresses.
fn pieces(described: &ArenaDescription, space: VirtRange) -> Result<Pieces> {
    let page = page_size_bytes() as u64;
    let piece = |piece: &crate::image::Piece| {
        if !(piece.offset_bytes | piece.length_bytes).is_multiple_of(page) {
            return Err(Error::new(ErrorKind::Corrupt, OPERATION)
                .because("its description has a piece that is not whole pages"));
        }
        let start = space.start + piece.offset_bytes as usize;
        Ok((VirtRange::new(start, piece.length_bytes as usize), piece.prot()))
    };
    described.pieces.iter().map(piece).collect()
}

/// The allocated parts of `range`.
fn parts(
    pieces: &[(VirtRange, Prot)],
    range: VirtRange,
) -> impl Iterator<Item = (VirtRange, Prot)> {
    let from = pieces.partition_point(|(piece, _)| piece.end() <= range.start);
    let parts = pieces[from..].iter().map(move |(piece, prot)| (piece.intersect(range), *prot));
    parts.take_while(|(part, _)| !part.is_empty())
}
