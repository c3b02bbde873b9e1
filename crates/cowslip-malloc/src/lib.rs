//! jemalloc in place of glibc's malloc, for programs with a heap worth an arena: from its first MiB on ([`early`]).
//!
//! glibc's malloc takes its memory from the kernel without calling a function that could be replaced; jemalloc calls
//! `mmap`, which is the preload library's. jemalloc's locks survive a fork from a program with threads (it registers
//! `pthread_atfork` handlers), which is not true of every allocator.
//!
//! `cowslip run` preloads this library after the preload library, unless `--malloc=keep` asks for the program's own
//! allocator. If the program or its user brings an allocator, all calls go to that one ([`other_allocator`]). A build of this
//! crate needs jemalloc's setting in the repository's `.cargo/config.toml`.
//!
//! # Safety
//! Every function is libc's of that name (`malloc(3)`, `posix_memalign(3)`): its caller keeps to that contract, which
//! jemalloc's function of the same name has too. The whole family is replaced, so no memory of one allocator reaches
//! the other.

#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the functions are libc's, documented there")]

mod control;
mod early;
mod figures;
mod forks;
mod large;
mod libc_symbols;
mod lookups;
mod modules;
mod other_allocator;
mod preload;
mod rest;
mod settings;
mod symbols;
mod threads;

use core::ffi::{c_int, c_void};

/// Functions of the family: calls theirs, or the function after the `=`.
macro_rules! replaced {
    ($($name:ident($($argument:ident: $kind:ty),*) $(-> $answer:ty)? = $ours:path;)*) => {
    #[allow(non_upper_case_globals)]
    mod next_of {
        $(
            pub(super) static $name: crate::libc_symbols::Next = crate::libc_symbols::Next::new(
                match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name with a zero in it"),
                },
            );
        )*
    }

    /// Looks for theirs before the dynamic linker keeps a message that it frees at the next lookup: by the `free` that
    /// would be looked for.
    pub(crate) fn look_up_all() {
        $(next_of::$name.get();)*
    }

    $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $kind),*) $(-> $answer)? {
            if other_allocator::is_ours() {
                // SAFETY: the program's own call, to the function of the same contract.
                return unsafe { $ours($($argument),*) };
            }
            // SAFETY: the function of that name has this type, and the call is the program's own.
            unsafe {
                core::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn($($kind),*) $(-> $answer)?,
                >(next_of::$name.get())($($argument),*)
            }
        }
    )*

        /// The function of that name here, if it is one of the family.
        pub(crate) fn of_family(name: &core::ffi::CStr) -> Option<*mut c_void> {
            $(if name.to_bytes() == stringify!($name).as_bytes() {
                return Some($name as *mut c_void);
            })*
            None
        }
    };
}

replaced! {
    malloc(size: usize) -> *mut c_void = early::malloc;
    calloc(count: usize, size: usize) -> *mut c_void = early::calloc;
    realloc(pointer: *mut c_void, size: usize) -> *mut c_void = early::realloc;
    free(pointer: *mut c_void) = early::free;
    posix_memalign(place: *mut *mut c_void, alignment: usize, size: usize) -> c_int = early::posix_memalign;
    aligned_alloc(alignment: usize, size: usize) -> *mut c_void = early::aligned_alloc;
    malloc_usable_size(pointer: *mut c_void) -> usize = early::malloc_usable_size;
    memalign(alignment: usize, size: usize) -> *mut c_void = on_a_boundary;
    valloc(size: usize) -> *mut c_void = on_a_page;
    pvalloc(size: usize) -> *mut c_void = of_pages;
    reallocarray(pointer: *mut c_void, count: usize, size: usize) -> *mut c_void = of_an_array;
    malloc_trim(pad: usize) -> c_int = figures::trim;
    mallopt(parameter: c_int, value: c_int) -> c_int = settings::set;
    mallinfo() -> libc::mallinfo = figures::old_info;
    mallinfo2() -> libc::mallinfo2 = figures::info;
    malloc_stats() = figures::print;
    malloc_info(options: c_int, file: *mut libc::FILE) -> c_int = figures::print_xml;
}

fn page_bytes() -> usize {
    // SAFETY: sysconf(3) reads a constant of the system.
    (unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) as usize
}

/// glibc's memalign(3) rounds the alignment up to a power of two.
unsafe fn on_a_boundary(alignment: usize, size: usize) -> *mut c_void {
    match alignment.checked_next_power_of_two() {
        // SAFETY: the program's own call, with a valid alignment.
        Some(alignment) => unsafe { early::aligned_alloc(alignment, size) },
        None => no_memory(),
    }
}

unsafe fn on_a_page(size: usize) -> *mut c_void {
    // SAFETY: the program's own call; valloc(3) aligns to a page.
    unsafe { early::aligned_alloc(page_bytes(), size) }
}

unsafe fn of_pages(size: usize) -> *mut c_void {
    let page = page_bytes();
    match size.checked_next_multiple_of(page) {
        // SAFETY: the program's own call; pvalloc(3) aligns to a page and whole pages.
        Some(whole) => unsafe { early::aligned_alloc(page, whole.max(page)) },
        None => no_memory(),
    }
}

/// Calls the `realloc` of the process, as libc does: the block may be of a library that stands before this one.
unsafe fn of_an_array(pointer: *mut c_void, count: usize, size: usize) -> *mut c_void {
    type Function = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
    static FIRST: libc_symbols::Next = libc_symbols::Next::first(c"realloc");
    match count.checked_mul(size) {
        // SAFETY: the program's own call; realloc(3) has this type.
        Some(size) => unsafe {
            core::mem::transmute::<*mut c_void, Function>(FIRST.get())(pointer, size)
        },
        None => no_memory(),
    }
}

fn no_memory() -> *mut c_void {
    // SAFETY: errno is a thread-local integer that is always there.
    unsafe { *libc::__errno_location() = libc::ENOMEM };
    core::ptr::null_mut()
}
