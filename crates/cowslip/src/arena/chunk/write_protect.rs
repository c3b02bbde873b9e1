//! Write protection of a range that may be several mappings.

use cowslip_sys::Errno;
use cowslip_sys::pagemap::Scanner;
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::uffd::{Outcome, Uffd};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};

use crate::service::Service;

/// Halves a range that is several mappings to the kernel, between chunks if it is longer than one.
pub(crate) fn halves(range: VirtRange) -> (VirtRange, VirtRange) {
    let unit = if range.len > CHUNK_BYTES { CHUNK_BYTES } else { page_size_bytes() };
    let middle = (range.start + range.len / 2).next_multiple_of(unit);
    let middle = if middle < range.end() { middle } else { middle - unit };
    (VirtRange::between(range.start, middle), VirtRange::between(middle, range.end()))
}

/// Makes stores to `piece` wait, and looks: before Linux 6.5 the kernel passes over a huge page that another thread maps
/// meanwhile, and says that all is done. With a file, a page that is not there has a marker.
pub(crate) fn hold_writers(
    uffd: &Uffd<ReservedFd>,
    service: Option<&Service>,
    piece: VirtRange,
    has_file: bool,
) -> Result<(), Errno> {
    const ATTEMPTS: u32 = 100;
    let own = if service.is_none() { Some(Scanner::open()?) } else { None };
    let scanner = own.as_ref().or(service.map(|service| &service.scanner)).ok_or(Errno::NODEV)?;
    for _ in 0..ATTEMPTS {
        write_protect(uffd, piece, true)?;
        let mut holds_all = true;
        scanner.entries(piece, |_, entry| {
            holds_all &= entry.is_protected() || (entry.is_empty() && !has_file);
        })?;
        if holds_all {
            return Ok(());
        }
    }
    Err(Errno::AGAIN)
}

/// Makes stores to `piece` wait, or no longer.
pub(crate) fn write_protect(
    uffd: &Uffd<ReservedFd>,
    piece: VirtRange,
    protect: bool,
) -> Result<(), Errno> {
    match uffd.write_protect(piece, protect) {
        Ok(Outcome::Done | Outcome::AlreadyMapped) => Ok(()),
        Ok(Outcome::Again { .. }) => Err(Errno::AGAIN),
        // Older kernels (6.1) accept only one mapping in the range. Memory frozen at different times may be
        // several, each with its own history of copies.
        Err(Errno::NOENT) if piece.len > page_size_bytes() => {
            let (left, right) = halves(piece);
            write_protect(uffd, left, protect)?;
            write_protect(uffd, right, protect)
        }
        Err(errno) => Err(errno),
    }
}
