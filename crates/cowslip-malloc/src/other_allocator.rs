//! The allocator that a program or its user brings: it takes precedence.
//!
//! It is in the program, in a library that a launcher preloads first, or in one that comes after this library: the first
//! `malloc` of the process is then another one than here, or the next function of the family is not glibc's. A
//! profiler's functions that pass calls on count as an allocator. The choice is made once, at the first call, which the
//! dynamic loader makes before the program begins: no block of one reaches the other.
//!
//! # Safety
//! The functions that are looked up are libc's of that name, in any library.

use core::ffi::{CStr, c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::libc_symbols::of_libc;
use crate::symbols;

const UNKNOWN: u8 = 0;
const OURS: u8 = 1;
const THEIRS: u8 = 2;

/// The functions that hand out blocks and take them back.
const FAMILY: [&CStr; 8] = [
    c"malloc",
    c"calloc",
    c"realloc",
    c"free",
    c"memalign",
    c"posix_memalign",
    c"aligned_alloc",
    c"malloc_usable_size",
];

static CHOICE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Returns true if the bundled allocator is the program's.
#[inline]
pub(crate) fn is_ours() -> bool {
    match CHOICE.load(Relaxed) {
        OURS => true,
        UNKNOWN => choose(),
        _ => false,
    }
}

#[cold]
fn choose() -> bool {
    let is_libcs = |name: &&CStr| is_of_libc(of_libc(libc::RTLD_NEXT, name));
    let is_ours = is_first() && FAMILY.iter().all(is_libcs) && !has_valgrind();
    if is_ours {
        crate::early::begin();
    }
    CHOICE.store(if is_ours { OURS } else { THEIRS }, Relaxed);
    if !is_ours {
        crate::look_up_all();
    }
    is_ours
}

/// Returns true if the process calls the `malloc` here. A program that is not position-independent and takes the
/// address of `malloc` has an entry without a definition, which the dynamic linker finds first.
fn is_first() -> bool {
    let first = of_libc(libc::RTLD_DEFAULT, c"malloc");
    first == crate::malloc as *mut c_void
        || (symbols::is_undefined(first) && !symbols::is_defined_before_here(c"malloc"))
}

pub(crate) fn is_of_libc(function: *mut c_void) -> bool {
    let object = |function: *const c_void| {
        let mut found = MaybeUninit::<libc::Dl_info>::uninit();
        // SAFETY: dladdr(3) fills it in unless it returns 0.
        unsafe {
            (libc::dladdr(function, found.as_mut_ptr()) != 0).then(|| found.assume_init().dli_fbase)
        }
    };
    object(function) == object(libc::gnu_get_libc_version as *const c_void)
}

/// valgrind replaces glibc's allocator with its own, and no other.
fn has_valgrind() -> bool {
    unsafe extern "C" fn look(object: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
        // SAFETY: dl_iterate_phdr(3) passes an object with a name.
        let path = unsafe { CStr::from_ptr((*object).dlpi_name) }.to_bytes();
        let is_it = path
            .rsplit(|&byte| byte == b'/')
            .next()
            .is_some_and(|file| file.starts_with(b"vgpreload_"));
        is_it.into()
    }
    // SAFETY: `look` gets the type that it expects.
    unsafe { libc::dl_iterate_phdr(Some(look), ptr::null_mut()) != 0 }
}
