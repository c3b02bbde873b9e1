//! glibc's settings of its malloc, in jemalloc's terms.
//!
//! | setting of glibc's | here |
//! | --- | --- |
//! | most arenas | the number of arenas, from when jemalloc begins |
//! | trim threshold up to its default | freed memory is returned at once, not within ten seconds |
//! | others | glibc's first MiBs ([`crate::early`]) have them if they leave these in their range |
//!
//! # Safety
//! Names and types of jemalloc's values are those of its version that is linked in. `mallopt(3)` has the type by which it
//! is called.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::transmute;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, Ordering::Relaxed};

use tikv_jemalloc_sys as jemalloc;

use crate::control::is_jemalloc;
use crate::libc_symbols::Next;

/// Texts of jemalloc's settings; `_RJEM_MALLOC_CONF` in the environment overrides them.
///
/// Few arenas: each has locks that a fork may take and release, and so copies, on both sides. Memory is returned after
/// ten seconds as by default, and in one step: the step between, `MADV_FREE`, does nothing in an arena. None comes from
/// `brk`, where glibc's memory lies ([`crate::early`]).
macro_rules! texts {
    ($($arenas:literal)*) => {[$({
        macro_rules! text {
            ($more:literal) => {
                concat!(
                    "muzzy_decay_ms:0,metadata_thp:disabled,dss:disabled,cache_oblivious:false,narenas:",
                    $arenas, $more, "\0",
                )
            };
        }
        [text!(""), text!(",dirty_decay_ms:0")]
    }),*]};
}

/// By the number of arenas, and with memory returned later or at once.
const TEXTS: [[&str; 2]; 4] = texts!(1 2 3 4);

#[unsafe(export_name = "_rjem_malloc_conf")]
#[used]
pub(crate) static CONFIGURATION: AtomicPtr<c_char> =
    AtomicPtr::new(TEXTS[TEXTS.len() - 1][0].as_ptr().cast_mut().cast());

/// jemalloc's default.
const LATER_MS: isize = 10_000;

/// glibc's default. A program that asks for less wants memory to be returned.
const TRIM_BYTES: i64 = 128 << 10;

/// The most arenas; 0 without such a setting.
static MOST_ARENAS: AtomicI64 = AtomicI64::new(0);
static RETURNS_AT_ONCE: AtomicBool = AtomicBool::new(false);
static IS_READ: AtomicBool = AtomicBool::new(false);

static MALLOPT: Next = Next::new(c"mallopt");

/// Sets glibc's malloc.
pub(crate) unsafe fn glibc(parameter: c_int, value: c_int) -> bool {
    type Function = unsafe extern "C" fn(c_int, c_int) -> c_int;
    // SAFETY: see the module.
    unsafe { transmute::<*mut c_void, Function>(MALLOPT.get())(parameter, value) != 0 }
}

/// A number in the environment: in a variable of its own, or among glibc's tunables.
fn given(variable: &CStr, tunable: &CStr) -> Option<i64> {
    // SAFETY: strings that end with a zero byte. The program changes its environment in no other thread meanwhile, as
    // for all readers of it.
    unsafe {
        let mut text = libc::getenv(variable.as_ptr());
        let tunables = libc::getenv(c"GLIBC_TUNABLES".as_ptr());
        if text.is_null() && !tunables.is_null() {
            text = libc::strstr(tunables, tunable.as_ptr());
            text = if text.is_null() { text } else { text.add(tunable.count_bytes()) };
        }
        (!text.is_null()).then(|| libc::strtoll(text, ptr::null_mut(), 0))
    }
}

fn asks_for_return(threshold: i64) -> bool {
    (0..=TRIM_BYTES).contains(&threshold)
}

/// Reads the settings in the environment, which those by `mallopt` override. Called before jemalloc begins.
pub(crate) fn begin() {
    if !IS_READ.swap(true, Relaxed) {
        let arenas = given(c"MALLOC_ARENA_MAX", c"glibc.malloc.arena_max=").unwrap_or(0);
        let threshold = given(c"MALLOC_TRIM_THRESHOLD_", c"glibc.malloc.trim_threshold=");
        MOST_ARENAS.store(arenas, Relaxed);
        RETURNS_AT_ONCE.store(threshold.is_some_and(asks_for_return), Relaxed);
    }
    let most = usize::try_from(MOST_ARENAS.load(Relaxed)).unwrap_or(0);
    let arenas = if most == 0 { TEXTS.len() } else { most.min(TEXTS.len()) };
    let text = TEXTS[arenas - 1][usize::from(RETURNS_AT_ONCE.load(Relaxed))];
    CONFIGURATION.store(text.as_ptr().cast_mut().cast(), Relaxed);
}

/// `mallopt(3)`.
pub(crate) unsafe fn set(parameter: c_int, value: c_int) -> c_int {
    begin();
    match parameter {
        libc::M_ARENA_MAX if is_jemalloc() => return 0,
        libc::M_ARENA_MAX => MOST_ARENAS.store(value.into(), Relaxed),
        libc::M_TRIM_THRESHOLD => {
            let at_once = asks_for_return(value.into());
            RETURNS_AT_ONCE.store(at_once, Relaxed);
            if is_jemalloc() {
                return_after(if at_once { 0 } else { LATER_MS });
            }
        }
        // They would have glibc take memory elsewhere.
        libc::M_MMAP_MAX | libc::M_MMAP_THRESHOLD => {}
        // SAFETY: the program's own call.
        _ => return unsafe { glibc(parameter, value) }.into(),
    }
    1
}

/// Sets the time after which freed memory is returned, in all arenas.
fn return_after(ms: isize) {
    let set = |name: &CStr, arena: Option<usize>| {
        let (mut path, mut len, mut ms) = ([0; 3], 3, ms);
        // SAFETY: names of jemalloc's; the value is an `ssize_t`.
        unsafe {
            if jemalloc::mallctlnametomib(name.as_ptr(), path.as_mut_ptr(), &raw mut len) != 0 {
                return false;
            }
            path[1] = arena.unwrap_or(path[1]);
            let (value, size) = ((&raw mut ms).cast(), size_of_val(&ms));
            let none = ptr::null_mut();
            jemalloc::mallctlbymib(path.as_ptr(), len, none, ptr::null_mut(), value, size) == 0
        }
    };
    set(c"arenas.dirty_decay_ms", None);
    // One more than there are is refused.
    let mut arena = 0;
    while set(c"arena.0.dirty_decay_ms", Some(arena)) {
        arena += 1;
    }
}
