//! Handles for C: boxes that live until they are freed.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls `call`, which can fail only by a defect, and returns `or` in that case.
pub(crate) fn contained<T>(or: T, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(or)
}

pub(crate) fn boxed<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// # Safety
/// NULL, or a pointer from [`boxed`], once.
pub(crate) unsafe fn free<T>(pointer: *mut T) {
    if !pointer.is_null() {
        // SAFETY: the caller promises it.
        let value = unsafe { Box::from_raw(pointer) };
        contained((), || drop(value));
    }
}
