//! The content of memory as its mapping shows it, also where the program may not read it.

use cowslip_sys::memory::Prot;
use cowslip_sys::pagemap::Scanner;
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::units::VirtRange;
use cowslip_sys::{BorrowedFd, Errno, memfile};

use crate::arena::allocate::pages_of;
use crate::arena::state::{Chunk, Shared, State};
use crate::mapping::backing_file::read_part;
use crate::memory::vma_map::Usage;
use crate::service::Service;

/// A way to read memory under its addresses.
enum Source<'a> {
    /// By the mapping, which is readable.
    Mapping(&'a Shared),
    /// `/proc/self/mem` (`proc_pid_mem(5)`), which shows pages without rights as well.
    File(BorrowedFd<'a>),
}

impl Source<'_> {
    fn copy(&self, part: VirtRange, place: &mut [u8]) -> Result<(), Errno> {
        match self {
            Self::Mapping(shared) => shared.piece(part).copy_to(place),
            Self::File(file) => memfile::read_exact_at(*file, place, part.start as u64)?,
        }
        Ok(())
    }

    /// Copies all pages but those of zeroes, which the target has already.
    fn copy_nonzero(&self, part: VirtRange, place: &mut [u8]) -> Result<(), Errno> {
        let mut buffer = Vec::new();
        for page in pages_of(part) {
            let place = &mut place[page.start - part.start..][..page.len];
            match self {
                Self::Mapping(shared) if shared.piece(page).is_zero() => {}
                Self::Mapping(_) => self.copy(page, place)?,
                Self::File(_) => {
                    buffer.resize(page.len, 0);
                    self.copy(page, &mut buffer)?;
                    if buffer.iter().any(|byte| *byte != 0) {
                        place.copy_from_slice(&buffer);
                    }
                }
            }
        }
        Ok(())
    }
}

impl Shared {
    /// Copies the content of `range`, handed out with one protection, to `target`, which is as long and all zeroes.
    pub(super) fn copy_content(
        &self,
        state: &State,
        range: VirtRange,
        target: &mut [u8],
        service: Option<&Service>,
    ) -> Result<(), Errno> {
        let prot = state.vma_map.within(range).next().map_or(Prot::NONE, |span| span.prot);
        let shown = Source::Mapping(self);
        if prot.contains(Prot::READ) {
            return self.copy_from(&shown, state, range, target, service);
        }
        if let Some(file) = service.and_then(Service::memory)
            && self.copy_from(&Source::File(file), state, range, target, service).is_ok()
        {
            return Ok(());
        }
        // A thread that may not read it sees it for a moment, instead of dying.
        self.piece(range).protect(Prot::READ)?;
        let copied = self.copy_from(&shown, state, range, target, service);
        self.piece(range).protect(prot)?;
        copied
    }

    fn copy_from(
        &self,
        source: &Source<'_>,
        state: &State,
        range: VirtRange,
        target: &mut [u8],
        service: Option<&Service>,
    ) -> Result<(), Errno> {
        let usage = state.vma_map.within(range).next().map(|span| span.usage);
        let is_left = matches!(usage, Some(Usage::Left | Usage::Detached));
        self.by_chunk(range).try_for_each(|(i, part)| {
            let place = &mut target[part.start - range.start..][..part.len];
            if is_left {
                return source.copy(part, place);
            }
            // Of anonymous memory a page that is not there makes its reader wait: for this very thread, while it leaves.
            if state.files.are_renounced() && state.chunk(i) != Chunk::Anonymous {
                // The mapping shows the same.
                return source.copy_nonzero(part, place);
            }
            if state.chunk(i) != Chunk::Anonymous {
                match &state.borrowed_base {
                    Some(base) if state.chunk(i) == Chunk::Borrowed => {
                        base.read(self.range, part, place)?;
                    }
                    _ => drop(read_part(state.file_at(part.start), self.range, part, place)?),
                }
            }
            if state.chunk(i) == Chunk::Live {
                return Ok(());
            }
            let mut copied = Ok(());
            let mut copy = |run: VirtRange| {
                if copied.is_ok() {
                    copied = source.copy(run, &mut place[run.start - part.start..][..run.len]);
                }
            };
            let runs =
                |scanner: &Scanner<ReservedFd>| scanner.private_runs(part, &mut copy).map(drop);
            match self.with_scanner(service, runs) {
                Ok(()) => copied,
                // Without a descriptor or another way to find private pages, all pages are copied as shown.
                Err(_) if state.chunk(i) == Chunk::Anonymous => source.copy_nonzero(part, place),
                Err(_) => source.copy(part, place),
            }
        })
    }

    fn with_scanner<T>(
        &self,
        service: Option<&Service>,
        act: impl FnOnce(&Scanner<ReservedFd>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match service {
            Some(service) => act(&service.scanner),
            None => act(&Scanner::open()?),
        }
    }
}
