//! `dlsym(3)` of a function of the family: a lookup of glibc's finds the bundled one while that is the program's.
//!
//! A module with an allocator of its own passes foreign blocks to the `free` that it looked up in libc, as chdb does.
//! glibc's functions could do nothing with blocks that glibc did not hand out.
//!
//! # Safety
//! `dlsym` looks at the address that it returns to, so it is jumped to with that address in its place. A function of
//! the family is looked up from here: libraries that come after this one also come after it for all libraries that are
//! loaded later.

use core::ffi::{CStr, c_char, c_void};

use crate::libc_symbols::{dlsym_of_libc, of_libc};
use crate::theirs;

/// The answer, or the function that gives it.
#[repr(C)]
struct Meant {
    place: *mut c_void,
    is_answer: usize,
}

extern "C" fn meant(handle: *mut c_void, name: *const c_char) -> Meant {
    // SAFETY: the program's own argument, a string that ends with a zero byte.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
    let Some((name, ours)) = name.and_then(|name| Some((name, crate::of_family(name)?))) else {
        return Meant { place: dlsym_of_libc(), is_answer: 0 };
    };
    let found = of_libc(handle, name);
    let is_libcs = theirs::is_ours() && !found.is_null() && theirs::is_of_libc(found);
    Meant { place: if is_libcs { ours } else { found }, is_answer: 1 }
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlsym() {
    core::arch::naked_asm!(
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
