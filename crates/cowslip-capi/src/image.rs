//! Images: saves frozen arenas to a file, and restores them.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::ops::ControlFlow;
use std::time::Duration;

use cowslip::Frozen;
use cowslip::image::{Image, Progress, RestoreOptions, Root, SaveOptions, Strategy, Via, save};

use crate::arena::{Source, backing, cowslip_arena, hand_over};
use crate::boundary::{self, Answer, Options, array, guard, hand_out, path, shared, string};
use crate::error::{Failure, cowslip_error, cowslip_status};
use crate::frozen::cowslip_frozen;
use crate::template::place;

/// Called now and then with the progress of long work, on the calling thread; a result other than 0 stops it
/// (COWSLIP_BUSY).
pub type cowslip_progress =
    Option<unsafe extern "C" fn(context: *mut c_void, done_bytes: u64, total_bytes: u64) -> c_int>;

/// A place that a restored program finds by name.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct cowslip_root {
    /// UTF-8.
    pub name: *const c_char,
    /// Its address in the arena.
    pub start: *const c_void,
    /// Its length.
    pub length: usize,
}

/// Options for saving.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct cowslip_save_options {
    /// sizeof(struct cowslip_save_options).
    pub size: usize,
    /// An image in the same folder, of the same arenas: save only the differences from it. NULL: none.
    pub parent: *const c_char,
    /// "none", "lz4", "zstd" or "zstd:LEVEL"; NULL: none.
    pub compression: *const c_char,
    /// Threads that write; 0: one per processor, 4 to 16.
    pub threads: usize,
    /// The places to find by name.
    pub roots: *const cowslip_root,
    /// Their number.
    pub root_count: usize,
    /// NULL: no progress is reported.
    pub progress: cowslip_progress,
    /// Its first argument.
    pub context: *mut c_void,
}

// SAFETY: numbers, pointers and a function that may be NULL, the size first.
unsafe impl Options for cowslip_save_options {}

/// Options for restoring.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct cowslip_restore_options {
    /// sizeof(struct cowslip_restore_options).
    pub size: usize,
    /// The number of the arena in the image, from 0.
    pub arena: u32,
    /// A cowslip_place.
    pub place: u32,
    /// A cowslip_backing.
    pub backing: u32,
    /// 1: return when all memory is present; 0: return at once, and read touched memory first.
    pub eager: u32,
    /// Threads that read, at most 16; 0: one per processor.
    pub threads: usize,
    /// Called during eager restores.
    pub progress: cowslip_progress,
    /// Its first argument.
    pub context: *mut c_void,
    /// The socket of a `cowslip serve` that must have the image. "": the file is read, even if the environment names a
    /// server. NULL: the server that COWSLIP_SERVE names is asked, and the file is read if there is none or it does not
    /// have the image.
    pub via: *const c_char,
}

// SAFETY: as above.
unsafe impl Options for cowslip_restore_options {}

/// Reports progress to C.
fn teller(tell: cowslip_progress, context: *mut c_void) -> impl FnMut(Progress) -> ControlFlow<()> {
    move |progress: Progress| match tell {
        // SAFETY: C's contract: the function takes these arguments.
        Some(tell) if unsafe { tell(context, progress.done_bytes, progress.total_bytes) } != 0 => {
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    }
}

/// Saves views to a file, durably, while the program runs: all or nothing. The file's mode is 0600.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_save(
    frozen: *const *const cowslip_frozen,
    count: usize,
    file: *const c_char,
    options: *const cowslip_save_options,
    error: *mut *mut cowslip_error,
) -> cowslip_status {
    let write = || {
        // SAFETY: C's contract.
        let given = unsafe { array(frozen, count, "frozen") }?;
        // SAFETY: C's contract.
        let view = |view: &*const cowslip_frozen| unsafe { shared(*view, "a view") };
        let views: Vec<&cowslip_frozen> = given.iter().map(view).collect::<Answer<_>>()?;
        if views.is_empty() {
            return Err(Failure::Usage("there is no view to save".to_owned()));
        }
        // SAFETY: C's contract.
        let (file, given) = unsafe { (path(file, "file")?, boundary::options(options)?) };
        // SAFETY: C's contract.
        let options = unsafe { save_options(&given, &views) }?;
        let mut progress = teller(given.progress, given.context);
        let views: Vec<&Frozen> = views.iter().map(|view| &view.frozen).collect();
        save(&views, file, &options, &mut progress)?;
        Ok(())
    };
    // SAFETY: C's contract.
    unsafe { guard(error, write) }
}

/// # Safety
/// C's contract.
unsafe fn save_options(
    given: &cowslip_save_options,
    views: &[&cowslip_frozen],
) -> Answer<SaveOptions> {
    let mut options = SaveOptions { threads: given.threads, ..SaveOptions::default() };
    if !given.parent.is_null() {
        // SAFETY: the caller promises it.
        options.parent = Some(unsafe { path(given.parent, "parent") }?.to_owned());
    }
    if !given.compression.is_null() {
        // SAFETY: the caller promises it.
        options.compression = unsafe { string(given.compression, "compression") }?.parse()?;
    }
    // SAFETY: the caller promises it.
    let roots = unsafe { array(given.roots, given.root_count, "roots") }?;
    let mut named = BTreeMap::new();
    for root in roots {
        // SAFETY: the caller promises it.
        let name = unsafe { string(root.name, "a root's name") }?;
        named.insert(name.to_owned(), place_of(root, name, views)?);
    }
    options.roots = named;
    Ok(options)
}

fn place_of(root: &cowslip_root, name: &str, views: &[&cowslip_frozen]) -> Answer<Root> {
    let start = root.start as usize;
    let holds = |view: &&cowslip_frozen| {
        view.arena.contains(start) && root.length <= view.arena.end() - start
    };
    let arena = views.iter().position(holds).ok_or_else(|| {
        Failure::Usage(format!("the root {name} is in none of the arenas that are saved"))
    })?;
    Ok(Root {
        arena: arena as u32,
        offset_bytes: (start - views[arena].arena.start) as u64,
        length_bytes: root.length as u64,
    })
}

/// Reads all of an image, and of the images that it builds on, and checks it: COWSLIP_CORRUPT if a byte is wrong.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_verify(
    file: *const c_char,
    progress: cowslip_progress,
    context: *mut c_void,
    error: *mut *mut cowslip_error,
) -> cowslip_status {
    let verify = || {
        // SAFETY: C's contract.
        let image = Image::open(unsafe { path(file, "file") }?)?;
        image.verify(&mut teller(progress, context))?;
        Ok(())
    };
    // SAFETY: C's contract.
    unsafe { guard(error, verify) }
}

/// Makes an arena with the content of an image. It may be used, frozen and saved at once. A damaged chunk raises SIGBUS
/// at its first touch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_restore(
    file: *const c_char,
    options: *const cowslip_restore_options,
    arena: *mut *mut cowslip_arena,
    error: *mut *mut cowslip_error,
) -> cowslip_status {
    let restore = || {
        if arena.is_null() {
            return Err(Failure::Null("arena"));
        }
        // SAFETY: C's contract.
        let (file, given) = unsafe { (path(file, "file")?, boundary::options(options)?) };
        let options = RestoreOptions {
            strategy: if given.eager == 0 { Strategy::Hybrid } else { Strategy::Eager },
            place: place(given.place)?,
            backing: backing(given.backing)?,
            threads: given.threads,
            // SAFETY: C's contract.
            via: unsafe { via(given.via) }?,
            ..RestoreOptions::default()
        };
        let mut progress = teller(given.progress, given.context);
        let restored = Image::open(file)?.restore(given.arena, &options, &mut progress)?;
        // SAFETY: C's contract.
        unsafe { hand_over(arena, "arena", cowslip_arena(Source::Restored(Box::new(restored)))) }
    };
    // SAFETY: C's contract.
    unsafe { guard(error, restore) }
}

/// # Safety
/// C's contract.
unsafe fn via(socket: *const c_char) -> Answer<Via> {
    if socket.is_null() {
        return Ok(Via::Environment);
    }
    // SAFETY: the caller promises it.
    let socket = unsafe { path(socket, "via") }?;
    Ok(if socket.as_os_str().is_empty() { Via::File } else { Via::Server(socket.to_owned()) })
}

/// Waits up to `timeout_ns` until all of a restored arena is present and independent of the file and of a server:
/// COWSLIP_BUSY if that takes longer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_restore_wait(
    arena: *const cowslip_arena,
    timeout_ns: u64,
    error: *mut *mut cowslip_error,
) -> cowslip_status {
    let wait = || {
        // SAFETY: C's contract.
        let Source::Restored(restored) = &unsafe { shared(arena, "arena") }?.0 else {
            return Ok(());
        };
        if restored.wait(Duration::from_nanos(timeout_ns))? {
            return Ok(());
        }
        let operation = "wait until an image is restored";
        let error = cowslip::Error::new(cowslip::ErrorKind::Busy, operation);
        Err(error.because("it is still being restored").advise("wait longer").into())
    };
    // SAFETY: C's contract.
    unsafe { guard(error, wait) }
}

/// The present place of the memory that was saved under this name: COWSLIP_USAGE if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_root_find(
    arena: *const cowslip_arena,
    name: *const c_char,
    start: *mut *mut c_void,
    length: *mut usize,
    error: *mut *mut cowslip_error,
) -> cowslip_status {
    let find = || {
        // SAFETY: C's contract.
        let (source, name) = unsafe { (&shared(arena, "arena")?.0, string(name, "name")?) };
        let found = match source {
            Source::Restored(restored) => restored.root(name),
            Source::Made(_) => None,
        };
        let range = found.ok_or_else(|| Failure::Usage(format!("there is no root {name}")))?;
        // SAFETY: C's contract.
        unsafe {
            hand_out(start, "start", range.start as *mut c_void)?;
            hand_out(length, "length", range.len)
        }
    };
    // SAFETY: C's contract.
    unsafe { guard(error, find) }
}
