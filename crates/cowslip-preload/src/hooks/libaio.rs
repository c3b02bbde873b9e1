//! AIO (`io_submit(2)`): the kernel reads and writes memory later, even if the program unmaps it. A
//! call names the buffers, and they leave then.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_int, c_long, c_void};
use core::ops::ControlFlow;

use cowslip::raw::Departure;
use cowslip_sys::user_memory;

use crate::arena::{detach, kernel_access};
use crate::rt::next_symbol::{NextSymbol, is_of_libaio};

static IO_SETUP: NextSymbol = NextSymbol::new(c"io_setup");
static IO_SUBMIT: NextSymbol = NextSymbol::new(c"io_submit");

#[unsafe(no_mangle)]
unsafe extern "C" fn io_setup(most: c_int, context: *mut c_void) -> c_int {
    type Original = unsafe extern "C" fn(c_int, *mut c_void) -> c_int;
    let original = IO_SETUP.get();
    if is_of_libaio(original) {
        kernel_access::note_aio();
    }
    // SAFETY: the call is the program's own; a function of this name in another library gets the registers it was
    // called with.
    unsafe { core::mem::transmute::<*mut c_void, Original>(original)(most, context) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn io_submit(context: usize, count: c_long, requests: *mut c_void) -> c_int {
    type Original = unsafe extern "C" fn(usize, c_long, *mut c_void) -> c_int;
    let original = IO_SUBMIT.get();
    if is_of_libaio(original) {
        before_submit(count, requests as usize);
    }
    // SAFETY: as above.
    unsafe { core::mem::transmute::<*mut c_void, Original>(original)(context, count, requests) }
}

/// Moves the buffers of the requests out of the arena.
pub(crate) fn before_submit(count: c_long, requests: usize) {
    const PREAD: u64 = 0;
    const PWRITE: u64 = 1;
    const PREADV: u64 = 7;
    const PWRITEV: u64 = 8;
    user_memory::each(requests, usize::try_from(count).unwrap_or(0), |request: usize| {
        // `struct iocb`: data, key and flags, operation and priority and descriptor, buffer, length, offset, …
        let Some([_, _, operation, buffer, len, ..]) = user_memory::read::<[u64; 8]>(request)
        else {
            return ControlFlow::Break(());
        };
        match operation & 0xffff {
            PREAD | PWRITE => detach::before_use(buffer as usize, len as usize, Departure::Ring),
            PREADV | PWRITEV => {
                detach::before_vector_use(buffer as usize, len as usize, Departure::Ring);
            }
            _ => {}
        }
        ControlFlow::Continue(())
    });
}
