//! Rings (`io_uring(7)`): the kernel writes into memory later, on its own.
//!
//! A ring's entries name memory, and lie in memory that ring and program share, where they cannot be seen. All memory
//! therefore leaves when a ring is made. [`kernel_access`](crate::arena::kernel_access) finds rings that the program
//! makes by system call instructions of its own.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{c_int, c_uint, c_void};

use cowslip::raw::Departure;
use cowslip_sys::{Errno, process};

use crate::arena::detach;
use crate::rt::config::config;
use crate::rt::guard::guarded;

/// Called before a ring is made, or before one is used that another process made. Returns the errno for the call if
/// memory could not leave: the ring would reach memory of an arena.
pub(crate) fn before_ring() -> Result<(), Errno> {
    if config().off {
        return Ok(());
    }
    if config().has_guest_memory {
        // QEMU waits for its descriptors by other calls then, and the machine's RAM stays.
        return Err(Errno::NOSYS);
    }
    let mut left = Ok(());
    process::uncancelled(|| {
        left = guarded(|| detach::all(Departure::Ring), || Err(Errno::NOMEM));
    });
    left
}

/// Functions of liburing that lead to a ring: they return a negative errno.
macro_rules! interpose_liburing {
    ($($name:ident($($argument:ident: $kind:ty),* $(,)?))*) => {
        #[allow(non_upper_case_globals)]
        mod next_of {
            $(
                pub(super) static $name: $crate::rt::next_symbol::NextSymbol =
                    $crate::rt::next_symbol::NextSymbol::new($crate::rt::next_symbol::name(concat!(stringify!($name), "\0")));
            )*
        }

        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
                if let Err(errno) = before_ring() {
                    return -errno.raw_os_error();
                }
                let original = next_of::$name.get();
                if original == crate::rt::next_symbol::none() {
                    return -libc::ENOSYS;
                }
                type Original = unsafe extern "C" fn($($kind),*) -> c_int;
                // SAFETY: liburing's function of that name has this type, and the call is the program's own.
                unsafe {
                    let original = core::mem::transmute::<*mut c_void, Original>(original);
                    original($($argument),*)
                }
            }
        )*
    };
}

interpose_liburing! {
    io_uring_setup(entries: c_uint, parameters: *mut c_void)
    io_uring_register(fd: c_uint, operation: c_uint, argument: *mut c_void, count: c_uint)
    io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint)
    io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void)
    io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, parameters: *mut c_void, memory: *mut c_void, len: usize)
    io_uring_queue_init_try_nosqarr(entries: c_uint, ring: *mut c_void, parameters: *mut c_void)
    io_uring_queue_mmap(fd: c_int, parameters: *mut c_void, ring: *mut c_void)
    io_uring_register_buffers(ring: *mut c_void, buffers: *const c_void, count: c_uint)
    io_uring_register_buffers_tags(ring: *mut c_void, buffers: *const c_void, tags: *const c_void, count: c_uint)
    io_uring_register_buffers_update_tag(ring: *mut c_void, first: c_uint, buffers: *const c_void, tags: *const c_void, count: c_uint)
    io_uring_register_buf_ring(ring: *mut c_void, request: *mut c_void, flags: c_uint)
}
