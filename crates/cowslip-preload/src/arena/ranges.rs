//! A range of the program cut into the parts that arenas handle and those that are the kernel's.

use core::ffi::{c_int, c_void};

use cowslip::Arena;
use cowslip::units::{VirtRange, page_size_bytes, round_up};
use cowslip_sys::Errno;
use cowslip_sys::process::BlockedSignals;

use crate::arena::registry::{arena_part, parts};
use crate::rt::guard::guarded;

/// `MAP_FAILED`
pub(crate) const FAILED: *mut c_void = usize::MAX as *mut c_void;

/// Has `map` map something else over `range`; like
/// [`RawArena::replace_mapping`](cowslip::raw::RawArena::replace_mapping), for any number of arenas.
pub(crate) fn replace_mapping<T>(
    range: VirtRange,
    map: &mut dyn FnMut() -> Option<T>,
) -> Option<T> {
    match parts(range).find_map(|(arena, part)| Some((arena?, part))) {
        None => map(),
        Some((arena, part)) => {
            let rest = VirtRange::between(part.end(), range.end());
            arena.raw().replace_mapping(part, || replace_mapping(rest, map))
        }
    }
}

/// Handles the parts of a range in order, up to the first failure: those in arenas, and those of
/// the kernel. Returns `None` if all of it is the kernel's.
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
    arena_part(whole.start, whole.len)?;
    let mut blocked = BlockedSignals::enter();
    let failed = parts(whole).find_map(|(arena, part)| match arena {
        Some(arena) => guarded(|| ours(arena, part), || Err(Errno::NOMEM)).err(),
        None => (kernel(part) != 0).then(cowslip_sys::errno::current),
    });
    failed.into_iter().for_each(|errno| blocked.set_errno(errno));
    Some(if failed.is_some() { -1 } else { 0 })
}
