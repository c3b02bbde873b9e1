//! The original functions behind those that this library replaces (symbol interposition), and a macro to replace one.
//!
//! A function that only checks a request then calls the original function, as its last act: cancellation,
//! `errno` and the answer are that function's (`pthreads(7)`, cancellation points).
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{CStr, c_long, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::rt::loaded_objects;

/// A function of a library that comes after this one.
pub(crate) struct NextSymbol {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl NextSymbol {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Its address, or null if it was not looked up yet.
    #[inline(always)]
    pub(crate) fn known(&self) -> *mut c_void {
        self.found.load(Ordering::Relaxed)
    }

    /// Its address; if there is none, that of a function that fails with `ENOSYS`.
    pub(crate) fn get(&self) -> *mut c_void {
        let found = self.known();
        if found.is_null() { self.resolve() } else { found }
    }

    #[cold]
    #[inline(never)]
    extern "C" fn resolve(&self) -> *mut c_void {
        // SAFETY: a lookup of a symbol by name.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        let found = if found.is_null() { in_loaded_libraries(self.name) } else { found };
        if found.is_null() {
            // Not remembered: a library that has it may still be loaded.
            return none();
        }
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Returned by [`NextSymbol::get`] if there is no such function.
pub(crate) fn none() -> *mut c_void {
    missing as *mut c_void
}

extern "C" fn missing() -> c_long {
    // SAFETY: errno is a thread-local integer that is always there.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    -1
}

/// File names of objects with functions for a program's rings begin like this.
const RINGS: [&[u8]; 2] = [b"liburing", b"libaio"];

/// Searches libraries that were loaded in the scope of another one, such as a module's: `RTLD_NEXT` does not find them.
fn in_loaded_libraries(name: &CStr) -> *mut c_void {
    let Some(path) = RINGS.iter().find_map(|ring| loaded_objects::find(ring)) else {
        return ptr::null_mut();
    };
    // SAFETY: the object is opened only if it is still loaded, and stays so.
    unsafe {
        let object = libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if object.is_null() { ptr::null_mut() } else { libc::dlsym(object, name.as_ptr()) }
    }
}

/// Returns true if `function` is in libaio: other libraries may have names like `io_submit`.
pub(crate) fn is_of_libaio(function: *mut c_void) -> bool {
    let mut object = core::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: dladdr(3) fills it in unless it returns 0; the name lives as long as the object.
    unsafe {
        libc::dladdr(function, object.as_mut_ptr()) != 0
            && !object.assume_init_ref().dli_fname.is_null()
            && {
                let path = CStr::from_ptr(object.assume_init_ref().dli_fname).to_bytes();
                loaded_objects::is_named(path, b"libaio")
            }
    }
}

/// A name from text that ends with a zero byte.
pub(crate) const fn name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name ends with a zero, and has no other"),
    }
}

/// Declares a [`NextSymbol`] that [`resolve_all`] resolves.
macro_rules! next_symbol {
    ($visibility:vis $name:ident = $symbol:expr) => {
        $visibility static $name: $crate::rt::next_symbol::NextSymbol =
            $crate::rt::next_symbol::NextSymbol::new($symbol);
        const _: () = {
            #[unsafe(link_section = "cowslip_next")]
            #[used]
            static ENTRY: &$crate::rt::next_symbol::NextSymbol = &$name;
        };
    };
}

pub(crate) use next_symbol;

unsafe extern "C" {
    /// The beginning of the section, and its end: the linker's symbols (`ld(1)`).
    #[link_name = "__start_cowslip_next"]
    static FIRST: [usize; 0];
    #[link_name = "__stop_cowslip_next"]
    static END: [usize; 0];
}

/// Resolves all functions that [`next_symbol`] declares. A later call may be in a signal handler, where no lookup is
/// allowed, or in the child of a system call, where the dynamic linker's lock may be held by a thread that does not exist
/// there.
pub(crate) fn resolve_all() {
    let (first, end) =
        ((&raw const FIRST).cast::<&NextSymbol>(), (&raw const END).cast::<&NextSymbol>());
    // SAFETY: the section holds the entries of `next_symbol`, one after the other, and nothing else.
    let all = unsafe { core::slice::from_raw_parts(first, end.offset_from_unsigned(first)) };
    for symbol in all {
        symbol.get();
    }
}

/// Defines functions that do something before the original function of the same name.
///
/// `[NAMES](ARGUMENTS) -> ANSWER, if CONDITION => ACT;` calls ACT first, for functions of one type. While the condition
/// does not hold, a call costs its check and a jump.
macro_rules! interpose {
    (@function $name:ident($($argument:ident: $kind:ty),*) -> $answer:ty, if $condition:expr => $before:expr) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> $answer {
            type Original = unsafe extern "C-unwind" fn($($kind),*) -> $answer;

            /// A function of its own, so that other calls need no room on the stack.
            #[cold]
            #[inline(never)]
            unsafe extern "C-unwind" fn checked($($argument: $kind),*) -> $answer {
                if $condition {
                    $before;
                }
                // SAFETY: the library's function of that name has this type, and the call is the program's own.
                unsafe {
                    let original = core::mem::transmute::<*mut core::ffi::c_void, Original>(next_of::$name.get());
                    original($($argument),*)
                }
            }

            let original = next_of::$name.known();
            if original.is_null() || $condition {
                // SAFETY: as below.
                return unsafe { checked($($argument),*) };
            }
            // SAFETY: the library's function of that name has this type, and the call is the program's own.
            unsafe { core::mem::transmute::<*mut core::ffi::c_void, Original>(original)($($argument),*) }
        }
    };
    ($([$($name:ident)+] $arguments:tt -> $answer:ty, if $condition:expr => $before:expr;)*) => {
        #[allow(non_upper_case_globals)]
        mod next_of {
            $($(
                $crate::rt::next_symbol::next_symbol! {
                    pub(super) $name = $crate::rt::next_symbol::name(concat!(stringify!($name), "\0"))
                }
            )+)*
        }

        $($(
            $crate::rt::next_symbol::interpose! { @function $name $arguments -> $answer, if $condition => $before }
        )+)*
    };
}

pub(crate) use interpose;
