//! Between C and Rust: no panic leaves, no pointer is used unchecked.

use std::any::Any;
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::{mem, ptr, slice};

use crate::error::{Failure, cowslip_error, cowslip_status};
use crate::handles::{boxed, free};

pub(crate) type Answer<T = ()> = Result<T, Failure>;

/// Calls `call`, and reports its failure or its panic.
///
/// # Safety
/// `error` is NULL or may be written to.
pub(crate) unsafe fn guard(
    error: *mut *mut cowslip_error,
    call: impl FnOnce() -> Answer,
) -> cowslip_status {
    let answer = catch_unwind(AssertUnwindSafe(call));
    let answer = answer.unwrap_or_else(|panic| Err(Failure::Panic(message(&*panic))));
    let (status, reason) = match answer {
        Ok(()) => (cowslip_status::COWSLIP_OK, ptr::null_mut()),
        Err(failure) => (failure.status(), boxed(failure.into_error())),
    };
    if error.is_null() {
        // SAFETY: boxed just now, or NULL.
        unsafe { free(reason) };
    } else {
        // SAFETY: the caller promises it.
        unsafe { error.write(reason) };
    }
    status
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// # Safety
/// NULL, or points to a T for as long as the result is used.
pub(crate) unsafe fn shared<'a, T>(pointer: *const T, name: &'static str) -> Answer<&'a T> {
    // SAFETY: the caller promises it.
    unsafe { pointer.as_ref() }.ok_or(Failure::Null(name))
}

/// # Safety
/// NULL, or points to memory for a T.
pub(crate) unsafe fn hand_out<T>(to: *mut T, name: &'static str, value: T) -> Answer {
    if to.is_null() {
        return Err(Failure::Null(name));
    }
    // SAFETY: the caller promises it, and it is not NULL.
    unsafe { to.write(value) };
    Ok(())
}

/// # Safety
/// `count` elements, or NULL.
pub(crate) unsafe fn array<'a, T>(
    first: *const T,
    count: usize,
    name: &'static str,
) -> Answer<&'a [T]> {
    match (first.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::Null(name)),
        // SAFETY: the caller promises it.
        (false, _) => Ok(unsafe { slice::from_raw_parts(first, count) }),
    }
}

/// # Safety
/// NULL, or a string that ends with a NUL.
pub(crate) unsafe fn string<'a>(text: *const c_char, name: &'static str) -> Answer<&'a str> {
    if text.is_null() {
        return Err(Failure::Null(name));
    }
    // SAFETY: the caller promises it.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::Usage(format!("{name} is not UTF-8")))
}

/// # Safety
/// NULL, or a string that ends with a NUL.
pub(crate) unsafe fn path<'a>(text: *const c_char, name: &'static str) -> Answer<&'a Path> {
    if text.is_null() {
        return Err(Failure::Null(name));
    }
    // SAFETY: the caller promises it.
    let text = unsafe { CStr::from_ptr(text) };
    Ok(Path::new(OsStr::from_bytes(text.to_bytes())))
}

/// Options: a structure of plain fields that begins with its size, with zeroes for the defaults.
///
/// # Safety
/// `repr(C)`, its first field is the `size_t` of its size, and any bytes, including zeroes, are valid for the others.
pub(crate) unsafe trait Options: Copy {}

/// The options that the caller's version has; fields that a newer library adds are zero.
///
/// # Safety
/// NULL, or points to as many bytes as its first field says.
pub(crate) unsafe fn options<T: Options>(given: *const T) -> Answer<T> {
    // SAFETY: zeroes are valid (Options).
    let mut options: T = unsafe { mem::zeroed() };
    if given.is_null() {
        return Ok(options);
    }
    // SAFETY: its first field is a size_t.
    let size_bytes = unsafe { given.cast::<usize>().read() };
    if size_bytes < size_of::<usize>() {
        return Err(Failure::Usage("options must begin with their size".to_owned()));
    }
    let known = size_bytes.min(size_of::<T>());
    // SAFETY: as many bytes are readable (the caller promises it) and writable, and any bytes are valid.
    unsafe { ptr::copy_nonoverlapping(given.cast::<u8>(), (&raw mut options).cast(), known) };
    let size_known = size_of::<T>();
    if size_bytes > size_known {
        // SAFETY: as many bytes are readable (the caller promises it).
        let rest = unsafe {
            slice::from_raw_parts(given.cast::<u8>().add(size_known), size_bytes - size_known)
        };
        if rest.iter().any(|&byte| byte != 0) {
            return Err(Failure::Usage("options that this library is too old for".to_owned()));
        }
    }
    Ok(options)
}
