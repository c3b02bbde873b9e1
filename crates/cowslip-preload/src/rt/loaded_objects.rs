//! The loaded objects: the program and its libraries (`dl_iterate_phdr(3)`).

use core::ffi::{CStr, c_int, c_void};
use std::ffi::CString;

/// Returns true if the file name of an object begins with `name`.
pub(crate) fn is_named(path: &[u8], name: &[u8]) -> bool {
    path.rsplit(|&byte| byte == b'/').next().is_some_and(|file| file.starts_with(name))
}

pub(crate) fn is_loaded(name: &[u8]) -> bool {
    find(name).is_some()
}

/// The path of the first object with a file name that begins with `name`.
pub(crate) fn find(name: &[u8]) -> Option<CString> {
    struct Wanted<'a> {
        name: &'a [u8],
        found: Option<CString>,
    }
    unsafe extern "C" fn look(
        object: *mut libc::dl_phdr_info,
        _: usize,
        wanted: *mut c_void,
    ) -> c_int {
        // SAFETY: dl_iterate_phdr(3) passes an object with a name, and `find`'s pointer to its own variable, which no
        // other code uses meanwhile.
        let (path, wanted) =
            unsafe { (CStr::from_ptr((*object).dlpi_name), &mut *wanted.cast::<Wanted<'_>>()) };
        let is_found = is_named(path.to_bytes(), wanted.name);
        if is_found {
            wanted.found = Some(path.to_owned());
        }
        is_found.into()
    }
    let mut wanted = Wanted { name, found: None };
    // SAFETY: `look` gets the type that it expects.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut wanted).cast()) };
    wanted.found
}
