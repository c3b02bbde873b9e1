//! The service threads are not the program's: it does not see them where it counts its own. The bundled malloc learns
//! when a thread of the program ends past libc.
//!
//! Python warns at a fork when `/proc/self/stat` (`proc_pid_stat(5)`) shows more than one thread, because a fork copies
//! only one. A fork does no harm to ours.
//!
//! # Safety
//! See [`crate::hooks`].

use core::ffi::{CStr, c_char, c_void};

use cowslip_sys::process::{self, BlockedSignals};
use cowslip_sys::{AsFd, AsRawFd, memfile};

use crate::arena::{
    detach,
    registry::{arenas, config, guarded, is_own_process},
};
use crate::hooks::direct_io;
use crate::rt::next_symbol::Next;

const FILE: &CStr = c"/proc/self/stat";
/// The field's index after the name, which may hold spaces and ends with a parenthesis.
const THREADS: usize = 17;

/// The number of service threads in this process.
pub(crate) fn ours() -> u64 {
    arenas().filter(|arena| arena.raw().has_service()).count() as u64
}

/// Returns true if the calling thread is known to be the program's only one.
pub(crate) fn is_sole() -> bool {
    let _blocked = BlockedSignals::enter();
    // Where the program filters its calls, none is made to find out.
    !detach::is_closed() && is_alone()
}

/// Like [`is_sole`], even where the program filters its calls. Signals are blocked.
pub(crate) fn is_alone() -> bool {
    // A service thread that starts or ends meanwhile is missing from one of the two counts.
    let before = ours();
    process::thread_count().is_some_and(|threads| threads <= 1 + before.min(ours()))
}

/// Called before this thread ends by a system call (`exit(2)`). libc does not learn of it, and would have told the
/// bundled malloc, which has the thread in a list. With the last thread the process ends: the list is of no more use,
/// and in a child of `clone(2)` its locks may be held by threads that do not exist there.
#[cfg(target_arch = "x86_64")]
pub(crate) fn before_exit() {
    let tell = TELL.known();
    if config().off || tell.is_null() || !is_own_process() || is_sole() {
        return;
    }
    // SAFETY: the bundled malloc's function of that name has this type.
    unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(tell)() };
}

/// Not looked up by the thread that ends: a child forked meanwhile would inherit the dynamic linker's lock, which no
/// thread of it releases.
#[cfg(target_arch = "x86_64")]
static TELL: Next = Next::new(c"cowslip_thread_ends");

fn without(stat: &str, ours: u64) -> Option<String> {
    let (name, fields) = stat.rsplit_once(')')?;
    let mut fields: Vec<_> = fields.split(' ').map(str::to_owned).collect();
    let threads = fields.get_mut(THREADS + 1)?;
    *threads = threads.parse::<u64>().ok()?.saturating_sub(ours).max(1).to_string();
    Some(format!("{name}){}", fields.join(" ")))
}

/// Opens a file with the text that the program would read without us.
fn retold() -> Option<*mut libc::FILE> {
    let _blocked = BlockedSignals::enter();
    let ours = Some(ours()).filter(|&ours| ours > 0)?;
    let text = without(&std::fs::read_to_string("/proc/self/stat").ok()?, ours)?;
    let file = memfile::memfd("stat", memfile::MemfdKind::Shmem, 0).ok()?;
    memfile::write_at(file.as_fd(), text.as_bytes(), 0).ok()?;
    // SAFETY: fdopen(3) of a descriptor that no other code has, and that is the stream's from then on.
    let opened = unsafe { libc::fdopen(file.as_raw_fd(), c"r".as_ptr()) };
    if opened.is_null() {
        return None;
    }
    core::mem::forget(file);
    Some(opened)
}

unsafe fn open(next: &Next, path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: the program's own arguments, strings that end with a zero.
    let is_asked = unsafe {
        !path.is_null()
            && !mode.is_null()
            && CStr::from_ptr(path) == FILE
            && CStr::from_ptr(mode).to_bytes().starts_with(b"r")
    };
    if let Some(file) = is_asked.then(|| guarded(retold, || None)).flatten() {
        return file;
    }
    direct_io::before_stream_of(path);
    // SAFETY: libc's function of that name has this type; the call is the program's own.
    unsafe {
        core::mem::transmute::<
            *mut c_void,
            unsafe extern "C" fn(*const c_char, *const c_char) -> *mut libc::FILE,
        >(next.get())(path, mode)
    }
}

static FOPEN: Next = Next::new(c"fopen");
static FOPEN64: Next = Next::new(c"fopen64");

/// Looks for them now; see [`crate::hooks::fork::look_up`].
pub(crate) fn look_up() {
    FOPEN.get();
    FOPEN64.get();
    #[cfg(target_arch = "x86_64")]
    TELL.get();
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: the program's own call.
    unsafe { open(&FOPEN, path, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: the program's own call.
    unsafe { open(&FOPEN64, path, mode) }
}
