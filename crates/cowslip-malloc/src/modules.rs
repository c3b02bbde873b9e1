//! `dlopen(3)` with `RTLD_DEEPBIND`: a module that looks for its functions in its own libraries first.
//!
//! It would find glibc's `free` there, and pass it blocks that the bundled allocator gave to the program; PHP loads all
//! its modules this way. While the bundled allocator is the program's, the flag is left out: a module's own functions
//! then come after the program's, as they do without the flag.
//!
//! # Safety
//! `dlopen` looks at the address that it returns to, so it is jumped to with that address in its place.

use core::ffi::{c_int, c_void};

use crate::libc_symbols::Next;
use crate::other_allocator;

/// The function to go on with, and the remaining flags.
#[repr(C)]
struct Meant {
    function: *mut c_void,
    flags: usize,
}

extern "C" fn meant(_: *mut c_void, flags: c_int) -> Meant {
    static NEXT: Next = Next::new(c"dlopen");
    let kept = if other_allocator::is_ours() { flags & !libc::RTLD_DEEPBIND } else { flags };
    Meant { function: NEXT.get(), flags: kept as usize }
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlopen() {
    core::arch::naked_asm!(
        "push rdi",
        "call {meant}",
        "pop rdi",
        "mov esi, edx",
        "jmp rax",
        meant = sym meant,
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlopen() {
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "str x0, [sp, #16]",
        "bl {meant}",
        "mov x16, x0",
        "ldr x0, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "br x16",
        meant = sym meant,
    )
}
