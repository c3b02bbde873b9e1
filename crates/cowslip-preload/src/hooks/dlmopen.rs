//! `dlmopen(3)` of a new namespace: its libraries, a libc among them, do not call the functions here.
//!
//! They could fork, map and unmap unseen. All memory therefore leaves before.
//!
//! # Safety
//! See [`crate::hooks`]. `dlmopen` looks at the address that it returns to, so it is jumped to.

use core::ffi::{c_long, c_void};

use cowslip::raw::Departure;

use crate::arena::detach;
use crate::rt::config::config;
use crate::rt::guard::guarded;
use crate::rt::next_symbol::NextSymbol;

const NEW: c_long = -1;

/// Returns the next `dlmopen`, after a look at the namespace.
extern "C" fn original(namespace: c_long) -> *mut c_void {
    static NEXT: NextSymbol = NextSymbol::new(c"dlmopen");
    if namespace == NEW && !config().off {
        let _ = guarded(|| detach::all(Departure::Namespace).is_ok(), || false);
    }
    NEXT.get()
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlmopen() {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "call {original}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        original = sym original,
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlmopen() {
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-48]!",
        "stp x0, x1, [sp, #16]",
        "str x2, [sp, #32]",
        "bl {original}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldr x2, [sp, #32]",
        "ldp x29, x30, [sp], #48",
        "br x16",
        original = sym original,
    )
}
