//! `fopen` and its family: a stream reads inside libc, past this library.
//!
//! All memory leaves before a stream over a descriptor whose reads write into page frames ([`direct_io`]).
//!
//! # Safety
//! See [`crate::hooks`].
//!
//! [`direct_io`]: crate::hooks::direct_io

use core::ffi::{CStr, c_char, c_int, c_void};

use cowslip::raw::Departure;
use cowslip_sys::process::{self, BlockedSignals};

use crate::arena::detach;
use crate::arena::setup_state::is_closed;
use crate::hooks::proc_stat;
use crate::rt::descriptor_kinds::{invalidate, may_pin, pins};
use crate::rt::guard::guarded;
use crate::rt::next_symbol::{NextSymbol, interpose, next_symbol};

interpose! {
    [fdopen _IO_fdopen](fd: c_int, mode: *const c_char) -> *mut c_void, if may_pin(fd) => before_stream(fd);
    [tmpfile tmpfile64]() -> *mut c_void, if true => before_stream_of(c"/tmp".as_ptr());
    [freopen freopen64](path: *const c_char, mode: *const c_char, stream: *mut c_void) -> *mut c_void, if true => before_stream_of(path);
}

fn before_stream(fd: c_int) {
    if !is_closed() && pins(fd) {
        detach_all();
    }
}

fn before_stream_of(path: *const c_char) {
    invalidate();
    if is_closed() {
        return;
    }
    let _kept = BlockedSignals::enter();
    // SAFETY: the program hands libc the same path, which reads it to its end.
    if unsafe { process::path_pins_readers(path) } {
        detach_all();
    }
}

fn detach_all() {
    process::uncancelled(|| {
        let left = || detach::all(Departure::DirectIo).is_ok();
        let _ = guarded(left, || false);
    });
}

unsafe fn open(next: &NextSymbol, path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: the program's own arguments, strings that end with a zero.
    let is_asked = unsafe {
        !path.is_null()
            && !mode.is_null()
            && CStr::from_ptr(path) == proc_stat::FILE
            && CStr::from_ptr(mode).to_bytes().starts_with(b"r")
    };
    if let Some(file) =
        is_asked.then(|| guarded(proc_stat::open_without_services, || None)).flatten()
    {
        return file;
    }
    before_stream_of(path);
    // SAFETY: libc's function of that name has this type; the call is the program's own.
    unsafe {
        core::mem::transmute::<
            *mut c_void,
            unsafe extern "C-unwind" fn(*const c_char, *const c_char) -> *mut libc::FILE,
        >(next.get())(path, mode)
    }
}

next_symbol! { FOPEN = c"fopen" }
next_symbol! { FOPEN64 = c"fopen64" }

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: the program's own call.
    unsafe { open(&FOPEN, path, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: the program's own call.
    unsafe { open(&FOPEN64, path, mode) }
}
