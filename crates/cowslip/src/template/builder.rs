//! Turns a frozen view into a template.

use std::sync::Arc;

use cowslip_sys::error::{During, Error, ErrorKind, Result};
use cowslip_sys::memfile::{self, MemfdKind, Seals};
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::units::{VirtRange, page_size_bytes};
use cowslip_sys::{AsFd, Errno, process};

use super::base::{Base, Owner};
use super::content::Content;
use super::layout::{Inherit, Layout, Region};
use super::offer::Offered;
use super::{File, Template};
use crate::arena::file_table::FrozenPiece;
use crate::freeze::Frozen;
use crate::mapping::backing_file::{BackingFile, Pages};

const OPERATION: &str = "make a template";
/// Parts that clones map each by itself. Of more, each clone would cost too many mappings and calls.
const MOST_PARTS: usize = 64;
/// Content that is gathered in one file if that needs no other file: other processes get one.
const FEW_BYTES: usize = 2 << 20;

/// How to make a [`Template`], region by region.
///
/// ```
/// use cowslip::{Arena, Inherit, Place, units::ByteCount};
///
/// let arena = Arena::new(ByteCount::mib(64))?;
/// let (index, scratch, hits) =
///     (arena.slice::<u64>(1 << 20)?, arena.slice::<u8>(1 << 20)?, arena.slice::<u64>(512)?);
/// let template = arena
///     .freeze()?
///     .template()
///     .region(scratch.range(), Inherit::Fresh)
///     .region(hits.range(), Inherit::Shared)
///     .build()?;
/// let clone = template.map(Place::Anywhere)?;
/// clone.shared_words(hits.range())[0].fetch_add(1, std::sync::atomic::Ordering::Relaxed);
/// # let _ = index;
/// # Ok::<(), cowslip::Error>(())
/// ```
#[derive(Debug)]
pub struct TemplateBuilder {
    frozen: Frozen,
    declared: Vec<(VirtRange, Inherit)>,
}

impl Frozen {
    /// Makes a template; its clones get everything as a private copy.
    ///
    /// # Errors
    /// Those of [`TemplateBuilder::build`].
    pub fn into_template(self) -> Result<Template> {
        self.template().build()
    }

    /// Begins a template with settings for its regions.
    pub fn template(self) -> TemplateBuilder {
        TemplateBuilder { frozen: self, declared: Vec::new() }
    }
}

impl TemplateBuilder {
    /// Sets how clones get `range`, given in the arena's addresses. For each page the last setting counts. Parts of
    /// less than 2 MiB, or not aligned to it, cost their neighbours a huge mapping.
    pub fn region(mut self, range: VirtRange, inherit: Inherit) -> Self {
        self.declared.push((range, inherit));
        self
    }

    /// Makes the template; the view ends.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the arena held nothing, or a region is not whole pages of the arena;
    /// [`ErrorKind::Unsupported`] for an arena on hugetlb pages, where a clone's first write would copy 2 MiB;
    /// [`ErrorKind::Busy`] in a child of the process that froze it; or an error of the kernel.
    pub fn build(self) -> Result<Template> {
        let handle = self.frozen.handle().ok_or_else(|| {
            Error::new(ErrorKind::Busy, OPERATION).because("the view is of this process' parent")
        })?;
        let shared = &handle.shared;
        if shared.pages == Pages::Hugetlb {
            return Err(Error::new(ErrorKind::Unsupported, OPERATION)
                .because("a clone's write would copy 2 MiB of hugetlb")
                .advise("use transparent huge pages"));
        }
        let layout = self.layout(shared.range)?;
        let shared_file = match layout.has(Inherit::Shared) {
            true => Some(self.copy_shared(&layout).during(OPERATION)?),
            false => None,
        };
        // The view holds the base until the pin does.
        let mut state = shared.lock();
        let pieces = &*self.frozen.layout;
        let shown = |part| self.frozen.shown(part);
        let many = pieces.len() > MOST_PARTS;
        let home = match many || bytes_apart(pieces) <= FEW_BYTES {
            true => shared.gather(&mut state, pieces, shown).during(OPERATION)?,
            false => None,
        };
        let home = match home {
            None if many => {
                drop(state);
                let home = shared.gather_apart(pieces, shown).during(OPERATION)?;
                state = shared.lock();
                Some(home)
            }
            home => home,
        };
        let (files, parts) = match home {
            Some(home) => (vec![home], vec![(layout.extent(), 0)]),
            None => in_their_files(pieces),
        };
        let open = |home: &Arc<BackingFile>| {
            home.check_identity()?;
            let file = ReservedFd::hold(home.for_readers()?);
            Ok(File { fd: file, identity: home.identity() })
        };
        let opened: Result<Vec<File>, Errno> = files.iter().map(open).collect();
        let opened = opened.during(OPERATION).map_err(|e| {
            e.because("the arena's file is opened for reading only by /proc").advise("mount /proc")
        })?;
        let pin = state.generations.pin()?;
        if let Some(users) = &state.users {
            users.forbid_takeover();
        }
        // Clones in other processes could read later content through their descriptor.
        files.iter().for_each(|file| file.set_exposed());
        state.files.forget_target();
        drop(state);
        let base = Base {
            pin: Arc::new(pin),
            content: Content::of_files(opened, parts, shared.pages),
            shared: shared_file,
            layout,
            is_huge: shared.pages.is_huge(),
            offered: Offered::default(),
            _owner: Some(Owner { arena: Arc::downgrade(handle), pid: process::pid() }),
        };
        Ok(Template { base: Arc::new(base) })
    }

    fn layout(&self, arena: VirtRange) -> Result<Layout> {
        let page = page_size_bytes();
        let mut regions: Vec<Region> = Vec::new();
        for FrozenPiece { range, prot, .. } in &self.frozen.layout {
            match regions.last_mut() {
                // Pieces of other files are gathered in one.
                Some(last) if last.prot == *prot && last.range.end() == range.start => {
                    last.range.len += range.len;
                }
                _ => {
                    regions.push(Region { range: *range, prot: *prot, inherit: Inherit::Copied });
                }
            }
        }
        let mut layout = Layout::new(arena.start, regions).ok_or_else(|| {
            Error::new(ErrorKind::Usage, OPERATION).because("the arena held nothing at the freeze")
        })?;
        for (range, inherit) in &self.declared {
            if !arena.covers(*range) || (range.start | range.len) & (page - 1) != 0 {
                return Err(Error::new(ErrorKind::Usage, OPERATION)
                    .on(*range)
                    .because("a region is whole pages of the arena"));
            }
            layout.declare(*range, *inherit);
        }
        Ok(layout)
    }

    /// A file with the memory that the clones share, as it was at the freeze.
    fn copy_shared(&self, layout: &Layout) -> cowslip_sys::Result<File> {
        let file = memfile::memfd("cowslip-shared", MemfdKind::Shmem, layout.file_len())?;
        memfile::seal(file.as_fd(), Seals::SHRINK | Seals::GROW)?;
        for region in layout.regions().iter().filter(|r| r.inherit == Inherit::Shared) {
            self.frozen.shown(region.range).write_to(file.as_fd(), layout.offset(*region))?;
        }
        File::new(ReservedFd::hold(file))
    }
}

/// Files with content, and its parts: each with the index of its file.
type Homes = (Vec<Arc<BackingFile>>, Vec<(VirtRange, usize)>);

fn in_their_files(pieces: &[FrozenPiece]) -> Homes {
    let (mut files, mut parts) = (Vec::<Arc<BackingFile>>::new(), Vec::new());
    for piece in pieces {
        let known = files.iter().position(|file| Arc::ptr_eq(file, &piece.file));
        parts.push((piece.range, known.unwrap_or(files.len())));
        if known.is_none() {
            files.push(Arc::clone(&piece.file));
        }
    }
    (files, parts)
}

/// Bytes that are not in the file with the most of them.
fn bytes_apart(pieces: &[FrozenPiece]) -> usize {
    let (files, parts) = in_their_files(pieces);
    let mut bytes = vec![0; files.len()];
    parts.iter().for_each(|(part, file)| bytes[*file] += part.len);
    bytes.iter().sum::<usize>() - bytes.iter().max().unwrap_or(&0)
}
