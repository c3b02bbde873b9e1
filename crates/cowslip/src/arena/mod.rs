//! Arenas: address ranges whose memory can be frozen.

pub(crate) mod allocate;
pub(crate) mod borrowed;
pub(crate) mod borrowed_base;
pub(crate) mod child;
pub(crate) mod chunk;
mod close;
pub(crate) mod copies;
pub(crate) mod copy_count;
pub(crate) mod deferred_free;
pub(crate) mod file_table;
mod files;
pub(crate) mod grow;
pub(crate) mod inheritance;
pub(crate) mod io;
pub(crate) mod own_memory;
pub(crate) mod readers;
pub(crate) mod residency;
pub(crate) mod share;
pub(crate) mod state;
mod trim;
mod zero_pages;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cowslip_sys::error::{During, Error, ErrorKind, Result};
use cowslip_sys::memory::{Advice, Prot};
use cowslip_sys::units::{ByteCount, CHUNK_BYTES, GIB_BYTES, VirtRange, round_up};
use cowslip_sys::{AsRawFd, Errno, process};

use crate::mapping::OwnSpace;
use crate::mapping::backing_file::BackingFile;
pub use crate::mapping::backing_file::{Backing, Pages};
use crate::memory::chunk_map::Chunk;
use crate::metrics::{Counters, Metrics};
use crate::service::Running;

pub use io::IoGuard;
use readers::UsersToken;
use state::Shared;

const BUILD: &str = "make an arena";

/// An address range, aligned to 1 GiB, whose memory can be frozen at one instant.
///
/// Handles are cheap to clone; the arena ends with the last of its handles, slices and views.
///
/// A `fork()` that Cowslip does not know of leaves live parts of an arena out of the child (`MADV_DONTFORK`): use
/// [`crate::fork`], or [`Arena::install_at_fork`] where other code forks.
///
/// ```
/// use cowslip::{Arena, units::ByteCount};
///
/// let arena = Arena::new(ByteCount::mib(64))?;
/// let mut counters = arena.slice::<u64>(1000)?;
/// counters[7] = 42;
/// let frozen = arena.freeze()?;
/// counters[7] = 43; // goes on at once, to a private copy
/// assert_eq!(frozen.slice(&counters)[7], 42);
/// # Ok::<(), cowslip::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Arena {
    pub(crate) handle: Arc<Handle>,
}

/// Ends the arena when the last user of it drops.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
}

/// How to make an [`Arena`].
#[derive(Clone, Debug)]
pub struct ArenaBuilder {
    capacity: ByteCount,
    backing: Backing,
    userfaultfd: bool,
    address: Option<usize>,
}

impl ArenaBuilder {
    /// Puts it at this address, a multiple of 1 GiB, instead of anywhere: the capacity's range must be free.
    pub fn at(mut self, address: usize) -> Self {
        self.address = Some(address);
        self
    }

    /// Sets the kind of memory that it is made of.
    pub fn backing(mut self, backing: Backing) -> Self {
        self.backing = backing;
        self
    }

    /// With `false` it freezes without userfaultfd even where userfaultfd works (like on a machine without it).
    pub fn userfaultfd(mut self, wanted: bool) -> Self {
        self.userfaultfd = wanted;
        self
    }

    /// Makes the arena.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the capacity is zero or more than the machine's memory and swap,
    /// [`ErrorKind::OutOfMemory`] if the address space or, for hugetlb, the pool is too small,
    /// [`ErrorKind::Busy`] if the address asked for is taken.
    pub fn build(self) -> Result<Arena> {
        let backing_file = self.open_store()?;
        self.build_on(backing_file)
    }

    fn len(&self) -> Result<usize> {
        let memory_size = process::memory_and_swap();
        if self.capacity.0 == 0 || self.capacity > memory_size {
            return Err(Error::new(ErrorKind::Usage, BUILD).because(format!(
                "its capacity must be above zero and at most the {memory_size} of memory and swap \
                 here, not {}",
                self.capacity
            )));
        }
        let len = usize::try_from(self.capacity.0).ok().and_then(|len| round_up(len, CHUNK_BYTES));
        len.ok_or_else(|| {
            Error::new(ErrorKind::OutOfMemory, BUILD).because("it is longer than the address space")
        })
    }

    /// The file behind the arena that will be [built](Self::build_on).
    pub(crate) fn open_store(&self) -> Result<Arc<BackingFile>> {
        BackingFile::open(self.backing, ByteCount(self.len()? as u64)).map(Arc::new)
    }

    /// Like [`Self::build`], on a file that was opened before and may have content already.
    pub(crate) fn build_on(self, file: Arc<BackingFile>) -> Result<Arena> {
        let len = self.len()?;
        let users = UsersToken::new()?;
        let place = match self.address {
            None => reserve_apart(len).during(BUILD)?,
            Some(address) => reserve_at(address, len)?,
        };
        let range = **place;
        let counters = Counters::create()?;
        let shared =
            Shared::new(place.leak(), Arc::clone(&file), counters, self.userfaultfd, users);
        let arena = Arena { handle: Arc::new(Handle { shared }) };
        let shared = arena.shared();
        let counters = &shared.counters;
        // Takes the first freeze's descriptor now: there may be none left then.
        shared.lock().generations.begin()?;
        let whole = shared.piece(range);
        file.map_live(whole, Prot::NONE).during(BUILD)?;
        // Otherwise a core dump would have the size of the capacity.
        whole.advise(Advice::DontDump).during(BUILD)?;
        counters.arena_start_address.store(range.start as u64, Relaxed);
        counters.capacity_bytes.store(len as u64, Relaxed);
        counters.is_owner.store(1, Relaxed);
        counters.file_descriptor.store(file.fd().as_raw_fd() as u64, Relaxed);
        counters.is_huge.store(u64::from(file.pages.is_huge()), Relaxed);
        Ok(arena)
    }
}

/// Reserves `len` bytes far from where the kernel places mappings of its own choice, so that holes in an arena stay
/// holes. If there is no room, they lie among those mappings.
fn reserve_apart(len: usize) -> Result<OwnSpace, Errno> {
    const BELOW_BYTES: usize = 96 << 40;
    const LOWEST: usize = 16 << 40;
    const MOST_TRIES: usize = 64;
    let near = OwnSpace::reserve(len, GIB_BYTES)?;
    let step = round_up(len, GIB_BYTES).ok_or(Errno::NOMEM)?;
    let starts = (0..MOST_TRIES)
        .map_while(|i| near.start.checked_sub(BELOW_BYTES)?.checked_sub(step.checked_mul(i)?));
    for start in starts.take_while(|start| *start >= LOWEST) {
        let apart = VirtRange::new(start, len);
        match OwnSpace::reserve_at(apart) {
            Ok(apart) => return near.unmap().map(|()| apart),
            Err(Errno::EXIST) => {}
            Err(_) => break,
        }
    }
    Ok(near)
}

fn reserve_at(address: usize, len: usize) -> Result<OwnSpace> {
    const OPERATION: &str = "make an arena at an address";
    let range = VirtRange::new(address, len);
    if !address.is_multiple_of(GIB_BYTES) || address.checked_add(len).is_none() {
        return Err(Error::new(ErrorKind::Usage, OPERATION)
            .on(range)
            .because("it must be a multiple of 1 GiB"));
    }
    match OwnSpace::reserve_at(range) {
        Ok(place) => Ok(place),
        Err(Errno::EXIST) => Err(Error::new(ErrorKind::Busy, OPERATION)
            .on(range)
            .because("something else is mapped there in this process")),
        Err(errno) => Err(Error::from_errno(OPERATION, errno).on(range)),
    }
}

impl Arena {
    /// An arena of `capacity`, on huge pages where the system lets this process have them.
    ///
    /// # Errors
    /// See [`ArenaBuilder::build`].
    pub fn new(capacity: ByteCount) -> Result<Self> {
        Self::builder(capacity).build()
    }

    /// A builder of an arena. Building it reserves address space; memory is taken as it is touched.
    pub fn builder(capacity: ByteCount) -> ArenaBuilder {
        ArenaBuilder { capacity, backing: Backing::default(), userfaultfd: true, address: None }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.handle.shared
    }

    /// Its addresses.
    pub fn range(&self) -> VirtRange {
        self.shared().range
    }

    /// The kind of pages that its memory is made of.
    pub fn pages(&self) -> Pages {
        self.shared().pages
    }

    /// Its counters now.
    pub fn metrics(&self) -> Metrics {
        let shared = self.shared();
        let state = shared.lock();
        shared.counters.frozen_chunks.store(state.not_live() as u64, Relaxed);
        shared.counters.kept_chunks.store(state.map.count(Chunk::Clean) as u64, Relaxed);
        drop(state);
        shared.counters.read()
    }

    /// Hands out zeroed memory, in whole pages, aligned to 2 MiB from that size on.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] if no free range is long enough; [`ErrorKind::Busy`] in a forked child.
    pub fn allocate(&self, len: ByteCount, prot: Prot) -> Result<VirtRange> {
        let len = usize::try_from(len.0).map_err(|_| {
            Error::new(ErrorKind::OutOfMemory, "allocate from an arena")
                .because("it is longer than the address space")
        })?;
        let shared = self.shared();
        shared.allocate(&mut shared.lock(), len, prot)
    }

    /// Like [`Self::allocate`], at exactly `range`; `false` if it is not free, or cannot be handed out now because it
    /// lies in frozen chunks.
    ///
    /// # Errors
    /// The kernel's.
    pub fn allocate_at(&self, range: VirtRange, prot: Prot) -> Result<bool> {
        let shared = self.shared();
        shared.allocate_at(&mut shared.lock(), range, prot)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let shared = &self.shared;
        let (worker, services, views, kept) = {
            let mut state = shared.lock();
            let services = shared.services.take().into_iter().chain(shared.services.take_retired());
            let services: Vec<_> = services.collect();
            // Other mappings may be in ranges that were given back.
            let kept = if state.is_closed { state.vma_map.used() } else { state.vma_map.mapped() };
            (state.worker.take(), services, std::mem::take(&mut state.retired_views), kept)
        };
        if let Some(worker) = worker {
            worker.stop();
        }
        services.into_iter().for_each(Running::stop);
        drop(views);
        for range in kept {
            let _ = shared.piece(range).unmap();
        }
    }
}
