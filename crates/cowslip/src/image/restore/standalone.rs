//! Restores an image into memory without an arena: the ways of other systems, behind one interface.
//!
//! | way | memory | tied to the file | checked |
//! | --- | --- | --- | --- |
//! | map, populate | the file's pages; parts not stored byte for byte are anonymous | always | no |
//! | uffd-copy, uffd-move | anonymous | until all is touched | when it is touched |
//! | resident | a memfd on huge pages, mapped privately | never | before |
//!
//! Such memory cannot be frozen; it serves for comparisons, and for programs that read a little of
//! a large image.

mod faulting;
mod mapped;

use std::ops::ControlFlow;

use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::memory::Prot;
use cowslip_sys::units::{CHUNK_BYTES, GIB_BYTES, VirtRange, page_size_bytes};

use self::faulting::Server;
use super::{OnDamage, RestoreOptions, Strategy};
use crate::arena::mapping::OwnSpace;
use crate::image::Image;
use crate::image::description::ArenaDescription;
use crate::template::{Place, TemplateClone};

const OPERATION: &str = "restore an image apart from an arena";

/// The way in which an image becomes memory without an arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StandaloneMode {
    /// Map the file privately. Nothing is checked, and the memory needs the file as long as it lives: truncating the
    /// file takes the program's memory away (`SIGBUS`). Chunks that are not stored byte for byte are decoded, and
    /// checked, at once.
    Map,
    /// The same, with all of it in the page tables from the start.
    Populate,
    /// Anonymous memory; a thread copies 4 KiB at each first touch (`UFFDIO_COPY`).
    UffdCopy4k,
    /// Anonymous memory; a thread copies 2 MiB at each first touch.
    UffdCopy2m,
    /// Anonymous memory; a thread moves 2 MiB in, a huge page where there is one (`UFFDIO_MOVE`, Linux 6.8).
    UffdMove,
    /// Load all of it into memory on huge pages, and map that privately.
    Resident,
}

/// Memory with the content of an arena of an image. It is unmapped when this value is dropped; until then its addresses
/// may be accessed according to the image's description.
///
/// While a way with userfaultfd is at work, children that the process forks do not have the memory, and [`OnDamage`] is
/// called for chunks that are damaged or cannot be read; an access to one raises `SIGBUS`.
#[derive(Debug)]
pub struct Standalone {
    range: VirtRange,
    _kept: Kept,
}

#[derive(Debug)]
enum Kept {
    Mapped {
        _space: OwnSpace,
    },
    /// Dropped in this order: the server stops, the memory is unmapped, and only then does the
    /// descriptor release waiting threads. They must not see zeroes.
    Faulting {
        _server: Server,
        _space: OwnSpace,
        _uffd: faulting::Lifeline,
    },
    Resident {
        _clone: TemplateClone,
    },
}

impl Image {
    /// Makes memory with the content of one of the image's arenas, without an arena.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the image has no such arena, [`ErrorKind::Busy`] if its addresses are taken,
    /// [`ErrorKind::Unsupported`] if the kernel has no `UFFDIO_MOVE`, [`ErrorKind::Denied`] without userfaultfd,
    /// [`ErrorKind::Corrupt`] for damage that is found before this returns; an error of the kernel.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use cowslip::image::{StandaloneMode, Image, SaveOptions, save};
    /// use cowslip::{Arena, Place, units::ByteCount};
    ///
    /// # let path = std::env::temp_dir().join(format!("doc-apart-{}.cowslip", std::process::id()));
    /// let arena = Arena::new(ByteCount::mib(64))?;
    /// let mut table = arena.slice::<u64>(1 << 20)?;
    /// table.fill(7);
    /// save(&[&arena.freeze()?], &path, &SaveOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    ///
    /// let image = Image::open(&path)?;
    /// let memory = image.restore_standalone(0, StandaloneMode::Map, Place::Anywhere, None)?;
    /// let first = image.description().arenas[0].pieces[0].offset_bytes as usize;
    /// # #[allow(unsafe_code)]
    /// // SAFETY: the description says that it is handed out, readable.
    /// let word = unsafe { *((memory.range().start + first) as *const u64) };
    /// assert_eq!(word, 7);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), cowslip::Error>(())
    /// ```
    pub fn restore_standalone(
        &self,
        arena: u32,
        way: StandaloneMode,
        place: Place,
        on_damage: Option<OnDamage>,
    ) -> Result<Standalone> {
        let Some(described) = self.description().arenas.get(arena as usize) else {
            return Err(Error::new(ErrorKind::Usage, OPERATION)
                .because(format!("it has {} arenas", self.description().arenas.len())));
        };
        if way == StandaloneMode::Resident {
            return resident(self, arena, described, place);
        }
        let space = reserve(described, place)?;
        let range = **space;
        let pieces = pieces(described, range)?;
        let kept = match way {
            StandaloneMode::Map | StandaloneMode::Populate => {
                mapped::map(self, arena, *space, &pieces, way == StandaloneMode::Populate)?;
                Kept::Mapped { _space: space }
            }
            _ => {
                let (server, uffd) =
                    Server::start(self.clone(), arena, way, *space, pieces, on_damage)?;
                Kept::Faulting { _server: server, _space: space, _uffd: uffd }
            }
        };
        Ok(Standalone { range, _kept: kept })
    }
}

impl Standalone {
    /// Its addresses: as long as the arena was; only the allocated pieces are mapped.
    pub fn range(&self) -> VirtRange {
        self.range
    }
}

/// Restores through an arena, which is dropped afterwards.
fn resident(
    image: &Image,
    arena: u32,
    described: &ArenaDescription,
    place: Place,
) -> Result<Standalone> {
    let options = RestoreOptions { strategy: Strategy::Eager, place, ..Default::default() };
    let loaded = image.restore(arena, &options, &mut |_| ControlFlow::Continue(()))?.into_arena();
    let from = loaded.range().start;
    let template = loaded.freeze()?.into_template()?;
    drop(loaded);
    let clone = template.map(place)?;
    let first = template.regions()[0].range().start;
    let start = clone.address(first) - (first - from);
    let range = VirtRange::new(start, described.length_bytes as usize);
    Ok(Standalone { range, _kept: Kept::Resident { _clone: clone } })
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
