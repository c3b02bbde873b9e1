//! `dlmopen(3)` of a new namespace: its libraries, a libc among them, do not call the functions here.
//!
//! They could fork, map and unmap unseen. All memory therefore leaves before.
//!
//! # Safety
//! See [`crate::hooks`]. `dlmopen` looks at the address that it returns to, so it is jumped to.

use core::ffi::{c_long, c_void};

use cowslip::raw::Departure;

use crate::arena::{
    detach,
    registry::{config, guarded},
};
use crate::rt::next_symbol::Next;

const NEW: c_long = -1;

/// Returns the next `dlmopen`, after a look at the namespace.
extern "C" fn meant(namespace: c_long) -> *mut c_void {
    static NEXT: Next = Next::new(c"dlmopen");
    if namespace == NEW && !config().off {
        let _ = guarded(|| detach::everything(Departure::Namespace).is_ok(), || false);
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
        "call {meant}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        meant = sym meant,
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
        "bl {meant}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldr x2, [sp, #32]",
        "ldp x29, x30, [sp], #48",
        "br x16",
        meant = sym meant,
    )
}
