//! `mremap` and `remap_file_pages`.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_int, c_void};

use cowslip::raw::Usage;
use cowslip::units::{ByteCount, VirtRange, page_size_bytes, round_up};
use cowslip::{Arena, Prot};
use cowslip_sys::process::BlockedSignals;
use cowslip_sys::{Errno, passthrough};

use crate::arena::mapping::map;
use crate::arena::ranges::{FAILED, replace_mapping};
use crate::arena::registry::arena_part;
use crate::hooks::madvise::{Answer, madvise, page_aligned, request};
use crate::hooks::mprotect::mprotect;
use crate::hooks::munmap::munmap;
use crate::rt::guard::errno_of;

const KNOWN: c_int = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mremap(
    addr: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    // SAFETY: the program's own call.
    let kernel = || unsafe { passthrough::mremap(addr, old_len, new_len, flags, to) };
    if let Some(shrunk) = shrunk(addr as usize, old_len, new_len, flags) {
        return shrunk;
    }
    let blocked = BlockedSignals::enter();
    let ours = ours(addr as usize, old_len, new_len, flags, to as usize);
    drop(blocked);
    if let Some(Err(Errno::FAULT)) = ours
        && let Some(moved) = moved_in_pieces(addr as usize, old_len, new_len, flags, to as usize)
    {
        return moved;
    }
    let detached =
        ours.as_ref().and_then(|piece| piece.as_ref().ok()).filter(|piece| piece.is_detached);
    if ours.is_none() || detached.is_some() {
        let moved = onto_arena(to as usize, new_len, flags, kernel);
        let stays = flags & libc::MREMAP_DONTUNMAP != 0;
        if let Some(Piece { arena, range, .. }) = detached.filter(|_| moved != FAILED && !stays) {
            let _blocked = BlockedSignals::enter();
            let new_len = round_up(new_len, page_size_bytes()).unwrap_or(new_len);
            arena.raw().note_remap(*range, VirtRange::new(moved as usize, new_len));
        }
        // Memory that left in pieces is several mappings to the kernel, and one to the program.
        let is_whole =
            ours.is_none() || moved != FAILED || cowslip_sys::errno::current() != Errno::FAULT;
        if is_whole {
            return moved;
        }
    }
    let mut blocked = BlockedSignals::enter();
    let moved = ours.unwrap_or(Err(Errno::FAULT));
    let moved = moved.and_then(|piece| in_arena(&piece, new_len, flags, to));
    moved.unwrap_or_else(|errno| {
        blocked.set_errno(errno);
        FAILED
    })
}

/// Shrinks memory that begins in an arena, in place, whatever its tail consists of.
fn shrunk(addr: usize, old_len: usize, new_len: usize, flags: c_int) -> Option<*mut c_void> {
    let page = page_size_bytes();
    let (old, new) = (round_up(old_len, page)?, round_up(new_len, page)?);
    let is_sound = addr.is_multiple_of(page) && flags & !libc::MREMAP_MAYMOVE == 0;
    if !is_sound || new == 0 || new > old {
        return None;
    }
    let usage = {
        let _blocked = BlockedSignals::enter();
        let (arena, first) = arena_part(addr, page)?;
        arena.raw().parts(first).first()?.1
    };
    // SAFETY: the program no longer uses the tail.
    let shrink = || unsafe { munmap((addr + new) as *mut c_void, old - new) };
    match usage {
        Usage::Free | Usage::Hole => None,
        _ if new == old || shrink() == 0 => Some(addr as *mut c_void),
        _ => Some(FAILED),
    }
}

/// Moves memory of several protections, perhaps with holes, to a place that the program named.
/// Linux 6.17 does that, and leaves what lies at the holes' places.
fn moved_in_pieces(
    addr: usize,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    to: usize,
) -> Option<*mut c_void> {
    let page = page_size_bytes();
    let range = VirtRange::new(addr, round_up(old_len, page)?);
    let is_fixed = flags == libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    if !is_fixed || range.len != round_up(new_len, page)? {
        return None;
    }
    let parts = {
        let _blocked = BlockedSignals::enter();
        arena_part(addr, range.len).filter(|(_, part)| *part == range)?.0.raw().parts(range)
    };
    let is_hole = |usage| matches!(usage, Usage::Free | Usage::Hole);
    if is_hole(parts.first()?.1) {
        return None;
    }
    let kind =
        |part: &(VirtRange, Usage, Prot)| (is_hole(part.1), part.1 == Usage::Foreign, part.2);
    let pieces = parts.chunk_by(|a, b| kind(a) == kind(b)).filter(|piece| !is_hole(piece[0].1));
    for piece in pieces {
        let (start, end) = (piece[0].0.start, piece[piece.len() - 1].0.end());
        let place = (to + start - addr) as *mut c_void;
        // SAFETY: a part of the program's own call.
        if unsafe { mremap(start as *mut c_void, end - start, end - start, flags, place) } == FAILED
        {
            return Some(FAILED);
        }
    }
    Some(to as *mut c_void)
}

/// Memory of the arena to be moved: handed out, with one protection.
struct Piece {
    arena: &'static Arena,
    range: VirtRange,
    prot: Prot,
    /// All of it belongs to the kernel by now.
    is_detached: bool,
}

/// Returns `None` if none of it is the arena's, or the kernel refuses the call anyway.
fn ours(
    addr: usize,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    to: usize,
) -> Option<Result<Piece, Errno>> {
    let page = page_size_bytes();
    let len = round_up(old_len, page)?;
    let (arena, part) = arena_part(addr, len.max(1))?;
    let parts = arena.raw().parts(part);
    if parts.iter().all(|(_, usage, _)| matches!(usage, Usage::Foreign | Usage::Hole)) {
        return None;
    }
    let is_sound = addr.is_multiple_of(page) && len > 0 && new_len > 0 && flags & !KNOWN == 0;
    let needs_may_move = flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0;
    let range = VirtRange::new(addr, len);
    let target = VirtRange::new(to, round_up(new_len, page)?);
    let is_free = to.is_multiple_of(page) && range.intersect(target).is_empty();
    let is_sound = is_sound && (flags & libc::MREMAP_FIXED == 0 || is_free);
    if !is_sound || needs_may_move && flags & libc::MREMAP_MAYMOVE == 0 {
        return Some(Err(Errno::INVAL));
    }
    let (Some((first, _, prot)), Some((last, ..))) = (parts.first(), parts.last()) else {
        return Some(Err(Errno::FAULT));
    };
    let is_one = parts.iter().all(|(_, usage, its)| {
        its == prot && matches!(usage, Usage::Used | Usage::Left | Usage::Detached)
    });
    if !is_one || VirtRange::between(first.start, last.end()) != range {
        return Some(Err(Errno::FAULT));
    }
    let is_detached = parts.iter().all(|(_, usage, _)| *usage == Usage::Detached);
    Some(Ok(Piece { arena, range, prot: *prot, is_detached }))
}

/// Moves other memory, perhaps to a place in the arena.
fn onto_arena(
    to: usize,
    new_len: usize,
    flags: c_int,
    kernel: impl Fn() -> *mut c_void,
) -> *mut c_void {
    if flags & libc::MREMAP_FIXED == 0 || arena_part(to, new_len).is_none() {
        return kernel();
    }
    let mut blocked = BlockedSignals::enter();
    let mut map = || {
        let moved = kernel();
        if moved == FAILED {
            blocked.set_errno(cowslip_sys::errno::current());
        }
        Some(moved).filter(|&moved| moved != FAILED)
    };
    let target = VirtRange::new(to, new_len).outer_aligned(page_size_bytes());
    replace_mapping(target, &mut map).unwrap_or(FAILED)
}

fn in_arena(
    piece: &Piece,
    new_len: usize,
    flags: c_int,
    to: *mut c_void,
) -> Result<*mut c_void, Errno> {
    let Piece { arena, range: old, prot, .. } = *piece;
    let page = page_size_bytes();
    let new_len = round_up(new_len, page).ok_or(Errno::INVAL)?;
    let is_fixed = flags & libc::MREMAP_FIXED != 0;
    let stays = flags & libc::MREMAP_DONTUNMAP != 0;
    if stays && new_len != old.len {
        return Err(Errno::INVAL);
    }
    if !is_fixed && !stays {
        if let Ok(true) = arena.raw().grow(old, ByteCount(new_len as u64)) {
            return Ok(old.start as *mut c_void);
        }
        if flags & libc::MREMAP_MAYMOVE == 0 {
            return Err(Errno::NOMEM);
        }
    }
    let (place, fixed) = if is_fixed { (to, libc::MAP_FIXED) } else { (core::ptr::null_mut(), 0) };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    // SAFETY: a new mapping, at the program's place if it named one.
    let new = unsafe { map(place, new_len, access, kind, -1, 0) };
    if new == FAILED {
        return Err(Errno::NOMEM);
    }
    let kept = VirtRange::new(old.start, old.len.min(new_len));
    // SAFETY: the target was mapped just now and is no part of the old place. The program moves the old content and
    // does not change it meanwhile.
    unsafe {
        let copied = arena.raw().copy_to(kept, new as usize).map_err(|error| errno_of(&error));
        if let Err(errno) =
            copied.and_then(|()| keep_wiped(&arena.raw().wiped_on_fork(kept), old, new))
        {
            munmap(new, new_len);
            return Err(errno);
        }
        if stays {
            arena.discard(old).map_err(|error| errno_of(&error))?;
        } else {
            let _ = arena.raw().unmap(old);
        }
        if prot != Prot::RW {
            mprotect(new, new_len, prot.bits() as c_int);
        }
    }
    Ok(new)
}

/// Has children find the copy at `new` empty where they would have found `old` empty.
fn keep_wiped(wiped: &[VirtRange], old: VirtRange, new: *mut c_void) -> Result<(), Errno> {
    wiped.iter().try_for_each(|part| {
        let copy = new.wrapping_byte_add(part.start - old.start);
        // SAFETY: no other code knows the copy yet; the advice changes no content here.
        match unsafe { madvise(copy, part.len, libc::MADV_WIPEONFORK) } {
            0 => Ok(()),
            _ => Err(cowslip_sys::errno::current()),
        }
    })
}

/// Works on shared mappings only (`remap_file_pages(2)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn remap_file_pages(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    page: usize,
    flags: c_int,
) -> c_int {
    // The kernel takes any address in the first page.
    let (start, whole) = page_aligned(addr, len);
    // SAFETY: the program's own call.
    let kernel = |_| unsafe { passthrough::remap_file_pages(addr, len, prot, page, flags) };
    request(start, whole, &Answer::Refuse, kernel)
}
