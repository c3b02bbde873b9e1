//! How private pages get into the file.
//!
//! A few with `pwrite(2)`. Many through a *window*: a part of the file, mapped while the arena is locked, which saves
//! half a microsecond a page. Only a chunk that one huge page holds is copied through the window: it is mapped as a
//! whole or not at all, so that no store into it can fault (and a file without room for it is an errno, not a SIGBUS).
//!
//! Writers of the runs are held off (see [`super`]), so that they do not change while they are read.

use cowslip_sys::memory::Prot;
use cowslip_sys::pagemap::Scanner;
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{Errno, memfile, streaming};

use crate::mapping::OwnedRange;
use crate::mapping::backing_file::{BackingFile, Pages, offset};
use crate::plan::settings::thaw::WRITTEN_BYTES;
use crate::service::Window;

/// Private pages that follow one another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// Where they are.
    pub(super) from: OwnedRange,
    /// Where the arena has them.
    pub(super) to: VirtRange,
    /// The protection that the program gave them.
    pub(super) prot: Prot,
}

/// Copies `runs` of private pages, in one chunk, into the file, and returns their number of pages. A chunk that
/// `is_base` stays on base pages.
pub(super) fn copy_out(
    backing_file: &BackingFile,
    arena: VirtRange,
    runs: &[Run],
    is_base: bool,
    window: &Window,
    scanner: &Scanner<ReservedFd>,
) -> Result<u64, Errno> {
    let Some(first) = runs.first() else { return Ok(0) };
    for Run { from, prot, .. } in runs {
        if !prot.contains(Prot::READ) {
            // Guarded memory may hold content too. No thread can write it, and it is mapped anew, guarded, as soon as
            // it is copied.
            from.protect(Prot::READ)?;
        }
    }
    let chunk = VirtRange::new(first.to.start & !(CHUNK_BYTES - 1), CHUNK_BYTES);
    let must = backing_file.pages == Pages::Hugetlb;
    let in_file = (offset(arena, chunk), offset(arena, chunk) + chunk.len as u64);
    if is_base && memfile::next_data(backing_file.fd(), in_file.0, in_file.1)?.is_none() {
        // A write to an empty place of the file may take a huge page there.
        window.take_base_page(backing_file.fd(), offset(arena, first.to))?;
    }
    let has_huge = backing_file.pages.is_huge() && !is_base;
    let bytes: usize = runs.iter().map(|run| run.from.len).sum();
    let is_worth_it = bytes > WRITTEN_BYTES;
    let place = if must || (has_huge && is_worth_it) {
        match window.show(backing_file, arena, chunk, scanner) {
            Ok(place) => Some(place),
            // hugetlbfs has no write(2).
            Err(errno) if must => return Err(errno),
            Err(_) => None,
        }
    } else {
        None
    };
    let mut pages = 0;
    for (i, Run { from, to, .. }) in runs.iter().enumerate() {
        match place {
            Some(place) => {
                let to = VirtRange::new(place.start + (to.start - chunk.start), to.len);
                let next = runs.get(i + 1).map(|next| next.from.start);
                // The window maps the same part of the file, by one huge page that is there. Only the file's pages are
                // written, and nothing but the arena maps them, privately.
                from.stream_to(place.part(to), next);
            }
            None => from.write_to(backing_file.fd(), offset(arena, *to))?,
        }
        pages += (from.len / page_size_bytes()) as u64;
    }
    streaming::finish();
    Ok(pages)
}
