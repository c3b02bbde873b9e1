//! `dlsym(3)` of a function of the family: a lookup of glibc's finds the bundled one while that is the program's.
//!
//! A module with an allocator of its own passes foreign blocks to the `free` that it looked up in libc, as chdb does.
//! glibc's functions could do nothing with blocks that glibc did not hand out.
//!
//! The next function (`RTLD_NEXT`) is the next one for the library that asks: a profiler's `free` that stands before
//! this library finds the one here, and one that stands after it finds libc's.
//!
//! # Safety
//! `dlsym` looks at the address that it returns to, so it is jumped to with that address in its place. Otherwise a
//! function of the family is looked up from here: libraries that come after this one also come after it for all
//! libraries that are loaded later.

use core::ffi::{CStr, c_char, c_void};
use core::mem::MaybeUninit;
use core::ptr;

use crate::libc_symbols::{dlsym_of_libc, of_libc};
use crate::other_allocator;

/// The answer, or the function that gives it.
#[repr(C)]
struct Meant {
    place: *mut c_void,
    is_answer: usize,
}

/// A library in the list of the dynamic linker (`link_map`, `dlinfo(3)`).
#[repr(C)]
struct Listed {
    _base: usize,
    _name: *const c_char,
    _dynamic: *const c_void,
    _next: *mut Listed,
    previous: *mut Listed,
}

/// The library of an address.
fn library_of(address: *const c_void) -> *mut Listed {
    const RTLD_DL_LINKMAP: libc::c_int = 2;
    let mut found = MaybeUninit::<libc::Dl_info>::uninit();
    let mut listed = ptr::null_mut();
    // SAFETY: dladdr1(3) fills in both unless it returns 0.
    unsafe { libc::dladdr1(address, found.as_mut_ptr(), &raw mut listed, RTLD_DL_LINKMAP) };
    listed.cast()
}

/// Returns true if the library with this address was loaded before this one.
fn stands_before(address: *const c_void) -> bool {
    let asker = library_of(address);
    let mut other = library_of(dlsym as *const c_void);
    while !asker.is_null() && !other.is_null() {
        // SAFETY: libraries that were loaded before this one are never unloaded, nor taken from the list.
        other = unsafe { (*other).previous };
        if other == asker {
            return true;
        }
    }
    false
}

extern "C" fn meant(handle: *mut c_void, name: *const c_char, asker: *const c_void) -> Meant {
    let passed_on = || Meant { place: dlsym_of_libc(), is_answer: 0 };
    // SAFETY: the program's own argument, a string that ends with a zero byte.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
    let Some((name, ours)) = name.and_then(|name| Some((name, crate::of_family(name)?))) else {
        return passed_on();
    };
    if !other_allocator::is_ours() || (handle == libc::RTLD_NEXT && stands_before(asker)) {
        return passed_on();
    }
    let found = of_libc(handle, name);
    let is_libcs = !found.is_null() && other_allocator::is_of_libc(found);
    Meant { place: if is_libcs { ours } else { found }, is_answer: 1 }
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlsym() {
    core::arch::naked_asm!(
        "mov rdx, [rsp]",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {meant}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test edx, edx",
        "jz 2f",
        "ret",
        "2:",
        "jmp rax",
        meant = sym meant,
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlsym() {
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "mov x2, x30",
        "bl {meant}",
        "mov x16, x0",
        "mov x17, x1",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "cbz x17, 2f",
        "mov x0, x16",
        "ret",
        "2:",
        "br x16",
        meant = sym meant,
    )
}
