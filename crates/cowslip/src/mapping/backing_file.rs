//! The file behind an arena.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use cowslip_sys::error::{During, Error, Result, errno_of};
use cowslip_sys::memfile::{self, MemfdKind, Seals};
use cowslip_sys::memory::{self, Advice, Prot, Sharing};
use cowslip_sys::process::MemoryLimit;
use cowslip_sys::reserved_fd::{FileIdentity, ReservedFd, same_file};
use cowslip_sys::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{AsFd, BorrowedFd, Errno, OwnedFd, handed_out, procfs, tmpfs};

use crate::mapping::{ArenaPiece, OwnSpace, OwnedRange};

/// The kind of memory that an arena asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Backing {
    /// Transparent huge pages where the system lets a process have them, else base pages.
    #[default]
    Thp,
    /// Base pages only.
    Base,
    /// 2 MiB pages of the hugetlb pool; an allocation or a freeze that it cannot pay for is refused.
    Hugetlb,
}

/// The kind of memory that an arena has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Pages {
    /// Huge pages of a tmpfs mounted for this process alone.
    HugeTmpfs,
    /// Huge pages of a memfd, as `shmem_enabled` allows.
    HugeMemfd,
    /// Base pages of a memfd.
    Base,
    /// The hugetlb pool.
    Hugetlb,
}

impl Pages {
    /// True if the file is made of huge pages.
    pub fn is_huge(self) -> bool {
        self != Self::Base
    }
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HugeTmpfs => "huge pages (own tmpfs)",
            Self::HugeMemfd => "huge pages (memfd)",
            Self::Base => "base pages",
            Self::Hugetlb => "hugetlb pages",
        })
    }
}

#[derive(Debug)]
pub(crate) struct BackingFile {
    file: ReservedFd,
    identity: FileIdentity,
    pub(crate) pages: Pages,
    /// Set by [`Self::look`] or [`Self::set_exposed`].
    is_exposed: AtomicBool,
    /// A descriptor on the read-only clone of the file's mount, which the kernel opens once.
    on_clone: OnceLock<ReservedFd>,
}

impl BackingFile {
    pub(crate) fn open(backing: Backing, capacity: ByteCount) -> Result<Self> {
        const OPERATION: &str = "make the file behind an arena";
        let memfd = |kind| ReservedFd::open(|| memfile::memfd("cowslip", kind, capacity.0));
        let (file, pages) = match backing {
            Backing::Thp => match ReservedFd::open(|| tmpfs::huge_file(capacity.0)) {
                Ok(file) if system_denies_huge_pages() => (file, Pages::Base),
                Ok(file) => (file, Pages::HugeTmpfs),
                Err(_) => {
                    let file = memfd(MemfdKind::Shmem);
                    let pages = match shmem_gives_huge_pages() {
                        true => Pages::HugeMemfd,
                        false => Pages::Base,
                    };
                    (file.during(OPERATION)?, pages)
                }
            },
            Backing::Base => (memfd(MemfdKind::Shmem).during(OPERATION)?, Pages::Base),
            Backing::Hugetlb => {
                let file = memfd(MemfdKind::Hugetlb2M).during(OPERATION).map_err(pool_too_small)?;
                // An empty pool fails only when a page is taken from it.
                let taken = memfile::allocate(file.as_fd(), 0, CHUNK_BYTES as u64);
                taken.during(OPERATION).map_err(pool_too_small)?;
                memfile::punch_hole(file.as_fd(), 0, CHUNK_BYTES as u64).during(OPERATION)?;
                (file, Pages::Hugetlb)
            }
        };
        Self::new(file, pages).during(OPERATION)
    }

    /// Another file of the same kind, `len_bytes` long.
    pub(crate) fn another(&self, len_bytes: u64) -> Result<Self, Errno> {
        Self::of_kind(self.pages, len_bytes)
    }

    /// A file with pages of this kind, `len_bytes` long. There is no other file of hugetlb pages.
    pub(crate) fn of_kind(pages: Pages, len_bytes: u64) -> Result<Self, Errno> {
        // Beyond the limit the kernel sends a signal that ends the program.
        if MemoryLimit::FileSize.current().is_some_and(|limit| limit.0 < len_bytes) {
            return Err(Errno::FBIG);
        }
        let file = ReservedFd::open(|| match pages {
            Pages::HugeTmpfs => tmpfs::huge_file(len_bytes),
            Pages::HugeMemfd | Pages::Base => {
                memfile::memfd("cowslip", MemfdKind::Shmem, len_bytes)
            }
            Pages::Hugetlb => Err(Errno::NOTSUP),
        })?;
        Self::new(file, pages)
    }

    fn new(file: ReservedFd, pages: Pages) -> Result<Self, Errno> {
        // A file of a tmpfs refuses seals. Its inode has no name, and no seal is needed.
        let _ = memfile::seal(file.as_fd(), Seals::SHRINK | Seals::GROW);
        let identity = FileIdentity::from_fd(file.as_fd())?;
        let is_exposed = AtomicBool::new(false);
        Ok(Self { file, identity, pages, is_exposed, on_clone: OnceLock::new() })
    }

    /// In a child: keeps the descriptor.
    pub(crate) fn claim(&self) {
        self.file.claim();
        self.on_clone.get().into_iter().for_each(ReservedFd::claim);
    }

    /// A descriptor for reading, for other processes: one by which they cannot change the file, if
    /// this process may make such a one. [`handed_out::forbid_changes`] makes sure of it.
    pub(crate) fn for_readers(&self) -> Result<OwnedFd, Errno> {
        if self.pages == Pages::HugeTmpfs && self.on_clone.get().is_none() {
            let opened = ReservedFd::open(|| handed_out::open_on_clone(self.fd()));
            let _ = opened.map(|fd| self.on_clone.set(fd));
        }
        match self.on_clone.get().filter(|fd| same_file(fd.as_fd(), self.identity)) {
            Some(fd) => fd.as_fd().try_clone_to_owned().map_err(|error| errno_of(&error)),
            None => memfile::reopen_read_only(self.fd()),
        }
    }

    /// In a reader: tells the owner for good that an untrusted process maps the file, and may map any part of it. Both
    /// have the same open file description. A mapping of hugetlb pages cannot be made longer, and there is no other
    /// file for them: such a file is not exposed.
    pub(crate) fn expose(&self) -> Result<(), Errno> {
        self.check_identity()?;
        if self.pages == Pages::Hugetlb { Ok(()) } else { memfile::mark(self.fd()) }
    }

    /// In the owner: finds out if a reader has exposed the file. If it cannot be asked it counts as exposed.
    pub(crate) fn look(&self) {
        if self.check_identity().and_then(|()| memfile::is_marked(self.fd())) != Ok(false) {
            self.set_exposed();
        }
    }

    /// In the owner: notes that untrusted processes may get mappings of the file for good.
    pub(crate) fn set_exposed(&self) {
        if self.pages != Pages::Hugetlb {
            self.is_exposed.store(true, Relaxed);
        }
    }

    /// True if no chunk may become live in the file any more, even once its readers have ended.
    pub(crate) fn is_exposed(&self) -> bool {
        self.is_exposed.load(Relaxed)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(crate) fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// Fails if the program has closed our descriptor or put another file in its place: mapping that
    /// would replace the program's memory by strange content.
    pub(crate) fn check(&self) -> Result<()> {
        self.check_identity().map_err(|errno| {
            Error::from_errno("find the arena's file behind its descriptor", errno).because(CLOSED)
        })
    }

    /// Like [`Self::check`], with `BADF`: called before anything is written to the file, or punched into it.
    pub(crate) fn check_identity(&self) -> Result<(), Errno> {
        if same_file(self.fd(), self.identity) { Ok(()) } else { Err(Errno::BADF) }
    }

    /// Maps a piece of the arena so that writes reach the file. The file holds the content that the program saw there last.
    pub(crate) fn map_live(&self, piece: ArenaPiece, prot: Prot) -> Result<(), Errno> {
        piece.map(self.fd(), Sharing::Shared, prot)?;
        self.advise_live(piece);
        Ok(())
    }

    /// Like [`Self::map_live`], where nothing is mapped (else `EXIST`).
    pub(crate) fn map_in_hole(&self, hole: ArenaPiece, prot: Prot) -> Result<(), Errno> {
        memory::map_file_in_hole(**hole, self.fd(), hole.offset, prot)?;
        self.advise_live(hole);
        Ok(())
    }

    /// Best effort: without `DontFork` a fork that goes around us shares the memory, and without huge pages it is
    /// slower.
    fn advise_live(&self, piece: ArenaPiece) {
        let _ = piece.advise(Advice::DontFork);
        if self.pages == Pages::HugeMemfd {
            let _ = piece.advise(Advice::HugePage);
        }
    }
}

/// A write(2) to a memfd gets base pages unless a mapping asked for a huge one first.
pub(crate) fn take_huge_page(
    own: &BackingFile,
    arena: VirtRange,
    part: VirtRange,
) -> Result<(), Errno> {
    let chunk = part.outer_aligned(CHUNK_BYTES).intersect(arena);
    let place = OwnSpace::reserve_apart(CHUNK_BYTES, CHUNK_BYTES)?;
    let first = place.first(page_size_bytes());
    let taken = place
        .map_file(own.fd(), offset(arena, chunk), Sharing::Shared, Prot::RW)
        .and_then(|()| place.advise(Advice::HugePage))
        .and_then(|()| first.advise(Advice::PopulateWrite));
    place.unmap()?;
    taken
}

/// Reads the data of `file` from an offset on; at its holes neither the file nor `content` changes. True if there was
/// any data.
pub(crate) fn read_file(
    file: BorrowedFd<'_>,
    start: u64,
    content: &mut [u8],
) -> Result<bool, Errno> {
    let (mut at, end) = (start, start + content.len() as u64);
    while let Some((from, to)) = memfile::next_data(file, at, end)? {
        let place = &mut content[(from - start) as usize..(to - start) as usize];
        memfile::read_exact_at(file, place, from)?;
        at = to;
    }
    Ok(at > start)
}

/// Reads the data of `file` in a part of the arena; at its holes neither the file nor `content` changes. True if there
/// was any data.
pub(crate) fn read_part(
    file: &BackingFile,
    arena: VirtRange,
    part: VirtRange,
    content: &mut [u8],
) -> Result<bool, Errno> {
    let start = offset(arena, part);
    if file.pages == Pages::Hugetlb {
        // hugetlbfs does not say where its holes are.
        return memfile::read_exact_at(file.fd(), content, start).map(|()| true);
    }
    read_file(file.fd(), start, content)
}

/// Copies a part of `from` to the same place of `to`. The part begins at the offset `start`, `shown` maps it, and no
/// thread writes it. Holes stay holes.
pub(crate) fn copy_data(
    from: &BackingFile,
    to: &BackingFile,
    start: u64,
    shown: OwnedRange,
) -> Result<(), Errno> {
    let (mut at, end) = (start, start + shown.len as u64);
    while let Some((first, last)) = memfile::next_data(from.fd(), at, end)? {
        let place = shown.start + (first - start) as usize;
        let part = shown.part(VirtRange::new(place, (last - first) as usize));
        // If its source is not mapped, write(2) fills the fresh page with zeroes first.
        let _ = part.advise(Advice::PopulateRead);
        part.write_to(to.fd(), first)?;
        at = last;
    }
    Ok(())
}

/// True if `file` is known to have no hole in a part of the arena.
pub(crate) fn is_all_data(
    file: &BackingFile,
    arena: VirtRange,
    part: VirtRange,
) -> Result<bool, Errno> {
    // hugetlbfs does not say where its holes are.
    if file.pages == Pages::Hugetlb {
        return Ok(false);
    }
    let start = offset(arena, part);
    let whole = (start, start + part.len as u64);
    Ok(memfile::next_data(file.fd(), whole.0, whole.1)? == Some(whole))
}

/// True if a memfd gets huge pages when `madvise` asks for them.
fn shmem_gives_huge_pages() -> bool {
    let setting = procfs::shmem_setting();
    matches!(setting.as_deref(), Some("always" | "within_size" | "advise" | "force"))
}

/// True if the setting is `deny`, which overrides the mount options of a tmpfs.
fn system_denies_huge_pages() -> bool {
    procfs::shmem_setting().as_deref() == Some("deny")
}

/// The offset of a part of the arena in its file.
pub(crate) fn offset(arena: VirtRange, range: VirtRange) -> u64 {
    debug_assert!(arena.covers(range));
    (range.start - arena.start) as u64
}

pub(crate) const CLOSED: &str = "the program closed or replaced a descriptor that is not its own";

/// A refusal of a page of the hugetlb pool.
pub(crate) fn pool_too_small(error: Error) -> Error {
    error
        .because("the hugetlb pool is too small (HugePages_Free in /proc/meminfo)")
        .advise("enlarge it: `sysctl vm.nr_hugepages=N`")
}
