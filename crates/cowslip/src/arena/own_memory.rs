//! Cowslip's own allocations must not lie in memory that it freezes.
//!
//! While memory is moved, or write-protected for a thaw, a thread that touches it waits for the thread that did that.
//! If the program's global allocator (`#[global_allocator]`, `malloc`) takes its memory from the arena, that very
//! thread would wait for itself, and so would the service thread, which a freeze waits for.

use std::hint::black_box;
use std::ptr;
use std::sync::Arc;

use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::units::VirtRange;

use crate::arena::state::{Shared, State};

/// Sizes from a list's first entries to a list of many spans. Allocators keep blocks of different sizes in different
/// places.
const SIZES_BYTES: [usize; 3] = [32, 512, 16 << 10];

/// [`ErrorKind::Usage`] if a thread that moves or protects memory of this arena would wait for itself.
pub(crate) fn check(operation: &'static str, shared: &Shared, state: &State) -> Result<()> {
    let Some(service) = shared.service(state) else { return Ok(()) };
    if !shared.range.contains(Arc::as_ptr(&service).addr()) && !is_in(shared) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Usage, operation)
        .on(shared.range)
        .because("the program's global allocator takes memory from this arena, and Cowslip would wait for itself")
        .advise("give it another arena, which is not frozen, or make this one without userfaultfd"))
}

/// True if Cowslip's own allocations lie in this arena.
pub(crate) fn is_in(shared: &Shared) -> bool {
    let is_inside = |address: usize| shared.range.contains(address);
    is_inside(ptr::from_ref(shared).addr())
        || SIZES_BYTES.iter().any(|&bytes| {
            let fresh = black_box(Vec::<u8>::with_capacity(bytes));
            !shared.range.intersect(VirtRange::new(fresh.as_ptr().addr(), bytes)).is_empty()
        })
}
