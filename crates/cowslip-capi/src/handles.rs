//! What is handed out to C: a box, until it is given back.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Does `call`, which cannot fail but by a defect: `or` then.
pub(crate) fn contained<T>(or: T, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(or)
}

pub(crate) fn boxed<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// # Safety
/// NULL, or what [`boxed`] gave, once.
pub(crate) unsafe fn free<T>(pointer: *mut T) {
    if !pointer.is_null() {
        // SAFETY: the caller's.
        let value = unsafe { Box::from_raw(pointer) };
        contained((), || drop(value));
    }
}
