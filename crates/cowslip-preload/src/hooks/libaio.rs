//! AIO (`io_submit(2)`): the kernel writes into memory later. A call names its targets, and they leave then.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_int, c_long, c_void};
use core::ops::ControlFlow;

use cowslip::raw::Departure;
use cowslip_sys::given;

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
    const PREADV: u64 = 7;
    let detach_memory =
        |addr: u64, len: u64| detach::before_use(addr as usize, len as usize, Departure::Ring);
    given::each(requests, usize::try_from(count).unwrap_or(0), |request: usize| {
        // `struct iocb`: data, key and flags, operation and priority and descriptor, buffer, length, offset, …
        let Some([_, _, operation, buffer, len, ..]) = given::read::<[u64; 8]>(request) else {
            return ControlFlow::Break(());
        };
        match operation & 0xffff {
            PREAD => detach_memory(buffer, len),
            PREADV => given::each(buffer as usize, len as usize, |[addr, len]: [u64; 2]| {
                detach_memory(addr, len);
                ControlFlow::Continue(())
            }),
            _ => {}
        }
        ControlFlow::Continue(())
    });
}
