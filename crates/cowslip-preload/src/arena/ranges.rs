//! A range of the program cut into the parts that arenas handle and those that are the kernel's.

use core::ffi::{c_int, c_void};

use cowslip::Arena;
use cowslip::raw::Usage;
use cowslip::units::{VirtRange, page_size_bytes, round_up};
use cowslip_sys::Errno;
use cowslip_sys::process::{self, BlockedSignals};

use crate::arena::registry::{arena_part, parts};
use crate::rt::guard::guarded;

/// `MAP_FAILED`
pub(crate) const FAILED: *mut c_void = usize::MAX as *mut c_void;

/// Has `map` map something else over `range`, if `may` allows the usage of every part that lies in an arena; like
/// [`RawArena::replace_mapping`](cowslip::raw::RawArena::replace_mapping), for any number of arenas.
pub(crate) fn replace_mapping<T>(
    range: VirtRange,
    may: &dyn Fn(Usage) -> bool,
    map: &mut dyn FnMut() -> Option<T>,
) -> Option<T> {
    match parts(range).find_map(|(arena, part)| Some((arena?, part))) {
        None => map(),
        Some((arena, part)) => {
            let rest = VirtRange::between(part.end(), range.end());
            arena.raw().replace_mapping(part, may, || replace_mapping(rest, may, map))
        }
    }
}

/// Handles the parts of a range that lie in arenas, then has the kernel handle the others. Returns `None` if all of it
/// is the kernel's.
pub(crate) fn split(
    addr: *mut c_void,
    len: usize,
    ours: impl Fn(&'static Arena, VirtRange) -> Result<(), Errno>,
    kernel: impl Fn(VirtRange) -> c_int,
) -> Option<c_int> {
    let page = page_size_bytes();
    if !(addr as usize).is_multiple_of(page) {
        return None;
    }
    let whole = VirtRange::new(addr as usize, round_up(len, page)?);
    let mut blocked = BlockedSignals::enter();
    arena_part(whole.start, whole.len)?;
    for (arena, part) in parts(whole) {
        let Some(arena) = arena else { continue };
        if let Err(errno) = guarded(|| ours(arena, part), || Err(Errno::NOMEM)) {
            blocked.set_errno(errno);
            return Some(-1);
        }
    }
    for (_, part) in parts(whole).filter(|(arena, _)| arena.is_none()) {
        if kernel(part) != 0 {
            blocked.set_errno(process::current_errno());
            return Some(-1);
        }
    }
    Some(0)
}
