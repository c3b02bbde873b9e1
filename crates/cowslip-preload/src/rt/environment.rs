//! The program's environment, without the variables of `cowslip run`, so that programs it starts run as without
//! Cowslip.
//!
//! libc's `setenv` and `unsetenv` are not called: a program may have its own in their place, as bash does. The entries
//! are removed from the array that the program was started with, which `environ(7)` and `main` show.
//!
//! # Safety
//! Arrays of strings are as `execve(2)` has them: pointers to strings that end with a zero byte, and a null pointer at
//! the end.

use core::ffi::{CStr, c_char};
use std::ffi::CString;
use std::sync::OnceLock;

use crate::rt::config::config;

const PRELOAD: &[u8] = b"LD_PRELOAD=";
const LIBRARIES: &[u8] = b"COWSLIP_LIBRARIES=";
/// Auditing libraries (`rtld-audit(7)`), which leave too little room for the bundled malloc's thread-local storage.
const AUDITS: &[u8] = b"LD_AUDIT=";
const MALLOC: &[u8] = b"/libcowslip_malloc.so";

/// The variables that `cowslip run` sets.
const OURS: [&[u8]; 13] = [
    LIBRARIES,
    b"COWSLIP_ARENA_AFTER=",
    b"COWSLIP_BACKING=",
    b"COWSLIP_CAPACITY=",
    b"COWSLIP_CHILD_MEMORY=",
    b"COWSLIP_CHILD_SHARE=",
    b"COWSLIP_FOLLOW_EXEC=",
    b"COWSLIP_GUEST_MEMORY=",
    b"COWSLIP_LOG=",
    b"COWSLIP_PLAIN=",
    b"COWSLIP_REPORT=",
    b"COWSLIP_RESPECT_THP_DISABLE=",
    b"COWSLIP_THRESHOLD=",
];

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// The removed entries.
struct Hidden {
    /// The beginning of `LD_PRELOAD`, without a colon at its end.
    libraries: Vec<u8>,
    entries: Vec<CString>,
}

static HIDDEN: OnceLock<Hidden> = OnceLock::new();

fn is_ours(entry: &CStr) -> bool {
    OURS.iter().any(|name| entry.to_bytes().starts_with(name))
}

/// `LD_PRELOAD` without the libraries that it begins with; `None` if there are no others.
fn without(entry: &[u8], libraries: &[u8]) -> Option<CString> {
    let value = entry.strip_prefix(PRELOAD)?;
    let rest = value.strip_prefix(libraries).unwrap_or(value);
    let others = rest.strip_prefix(b":").unwrap_or(rest);
    (!others.is_empty()).then(|| CString::new([PRELOAD, others].concat()).ok()).flatten()
}

/// The entries of an array, up to its end.
///
/// # Safety
/// See the module.
unsafe fn entries<'a>(array: *const *const c_char) -> impl Iterator<Item = &'a CStr> {
    (0..).map_while(move |i| {
        // SAFETY: the array goes on until the null pointer.
        unsafe {
            let entry = *array.add(i);
            (!entry.is_null()).then(|| CStr::from_ptr(entry))
        }
    })
}

/// Removes our entries. Called by the constructor of this library, before the program has threads.
pub(crate) fn hide() {
    // SAFETY: no other code uses the environment yet; entries are only moved to the front.
    unsafe {
        let array = environ;
        if array.is_null() || HIDDEN.get().is_some() {
            return;
        }
        let ours: Vec<CString> =
            entries(array.cast()).filter(|entry| is_ours(entry)).map(CStr::to_owned).collect();
        let libraries = ours.iter().find_map(|entry| entry.to_bytes().strip_prefix(LIBRARIES));
        let libraries = libraries.unwrap_or_default().to_vec();
        let hidden = HIDDEN.get_or_init(|| Hidden { libraries, entries: ours });
        if config().follows_exec {
            return;
        }
        let (mut from, mut to) = (array, array);
        while !(*from).is_null() {
            let entry = CStr::from_ptr(*from);
            let mut kept = (!is_ours(entry)).then_some(*from);
            if entry.to_bytes().starts_with(PRELOAD) {
                // Leaked: it is used as long as the program runs.
                kept = without(entry.to_bytes(), &hidden.libraries).map(CString::into_raw);
            }
            if let Some(entry) = kept {
                *to = entry;
                to = to.add(1);
            }
            from = from.add(1);
        }
        *to = core::ptr::null_mut();
    }
}

/// An environment for `execve(2)`.
pub(crate) struct Environment {
    pointers: Vec<*const c_char>,
    _texts: Vec<CString>,
}

impl Environment {
    pub(crate) fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }

    /// The environment that the program passes on, with our entries or without them. A program that is audited gets the
    /// preload library alone.
    ///
    /// # Safety
    /// See the module.
    pub(crate) unsafe fn from_pointer(given: *const *const c_char, helps: bool) -> Option<Self> {
        let hidden = HIDDEN.get().filter(|hidden| !hidden.libraries.is_empty())?;
        // SAFETY: the program's own array.
        let is_audited = unsafe { is_audited(given) };
        let is_kept = |library: &&[u8]| !(is_audited && library.ends_with(MALLOC));
        let libraries = hidden.libraries.split(|&byte| byte == b':').filter(is_kept);
        let libraries = libraries.collect::<Vec<_>>().join(&b':');
        let mut texts = if helps { hidden.entries.clone() } else { Vec::new() };
        if is_audited {
            texts.retain(|entry| !entry.to_bytes().starts_with(LIBRARIES));
            texts.extend(CString::new([LIBRARIES, &libraries].concat()).ok().filter(|_| helps));
        }
        let mut pointers = Vec::new();
        let mut preload = None;
        // SAFETY: the program's own array.
        let given = if given.is_null() { Vec::new() } else { unsafe { entries(given) }.collect() };
        for entry in given {
            if entry.to_bytes().starts_with(PRELOAD) {
                preload = without(entry.to_bytes(), &hidden.libraries);
            } else if !is_ours(entry) {
                pointers.push(entry.as_ptr());
            }
        }
        let others = preload.as_ref().map(|entry| &entry.to_bytes()[PRELOAD.len()..]);
        let preload = match (helps, others) {
            (true, Some(others)) => Some([PRELOAD, &libraries, b":", others].concat()),
            (true, None) => Some([PRELOAD, &libraries].concat()),
            (false, Some(others)) => Some([PRELOAD, others].concat()),
            (false, None) => None,
        };
        texts.extend(preload.and_then(|preload| CString::new(preload).ok()));
        pointers.extend(texts.iter().map(|text| text.as_ptr()));
        pointers.push(core::ptr::null());
        Some(Self { pointers, _texts: texts })
    }
}

/// Returns true if a program with this environment is audited.
///
/// # Safety
/// See the module.
pub(crate) unsafe fn is_audited(given: *const *const c_char) -> bool {
    let is_it =
        |entry: &CStr| entry.to_bytes().strip_prefix(AUDITS).is_some_and(|names| !names.is_empty());
    // SAFETY: as the caller promised.
    !given.is_null() && unsafe { entries(given) }.any(is_it)
}

/// The program's current environment.
pub(crate) fn current() -> *const *const c_char {
    // SAFETY: the program's own variable, read as libc reads it.
    unsafe { environ.cast() }
}

/// Puts these entries into the program's environment, each in place of one of the same name, and removes those that
/// begin with one of `names`. The process has one thread. The new array is never freed: libc copies it when the program
/// changes its environment.
pub(crate) fn replace(entries_to_add: &[CString], names: &[&[u8]]) {
    let name_of = |entry: &CString| {
        let bytes = entry.as_bytes();
        bytes[..bytes.iter().position(|&byte| byte == b'=').map_or(bytes.len(), |at| at + 1)]
            .to_vec()
    };
    let mut gone: Vec<Vec<u8>> = entries_to_add.iter().map(name_of).collect();
    gone.extend(names.iter().map(|name| name.to_vec()));
    // SAFETY: see the module; no other code uses the environment meanwhile.
    unsafe {
        let old = environ;
        let kept = if old.is_null() { Vec::new() } else { entries(old.cast()).collect() };
        let is_kept = |entry: &&CStr| !gone.iter().any(|name| entry.to_bytes().starts_with(name));
        let kept = kept.into_iter().filter(is_kept).map(|entry: &CStr| entry.as_ptr().cast_mut());
        let added = entries_to_add.iter().map(|entry| entry.clone().into_raw());
        let array: Vec<*mut c_char> = kept.chain(added).chain([core::ptr::null_mut()]).collect();
        environ = Vec::leak(array).as_mut_ptr();
    }
}
