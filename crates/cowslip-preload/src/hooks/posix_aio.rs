//! `aio_read` and its family: a thread of libc's reads, past this library.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_int, c_void};
use core::ops::ControlFlow;

use cowslip_sys::user_memory;

use crate::hooks::direct_io::before_read;
use crate::rt::next_symbol::interpose;

interpose! {
    [aio_read aio_read64](request: *mut libc::aiocb) -> c_int, if true => before_aio(request);
    [lio_listio lio_listio64](mode: c_int, requests: *const *mut libc::aiocb, count: c_int, event: *mut c_void) -> c_int, if true => before_list(requests, count);
}

fn before_aio(request: *const libc::aiocb) {
    if !user_memory::is_readable(request as usize, size_of::<libc::aiocb>()) {
        return;
    }
    // SAFETY: it was there just now, and is the program's to hand over.
    let (fd, buffer, len) =
        unsafe { ((*request).aio_fildes, (*request).aio_buf, (*request).aio_nbytes) };
    before_read(fd, buffer as usize, len);
}

fn before_list(requests: *const *mut libc::aiocb, count: c_int) {
    let count = usize::try_from(count).unwrap_or(0);
    user_memory::each(requests as usize, count, |request: usize| {
        before_aio(request as *const libc::aiocb);
        ControlFlow::Continue(())
    });
}
