//! Templates, which any process may clone privately.

use std::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::net::UnixStream;
use std::ptr;

use cowslip::image::Image;
use cowslip::{Place, Template, TemplateClone};

use crate::arena::hand_over;
use crate::boundary::{Answer, guard, hand_out, path, shared, string};
use crate::error::{Failure, cowslip_error, cowslip_status};
use crate::frozen::cowslip_frozen;
use crate::handles::{self, contained};

/// A frozen arena that any process may map.
#[derive(Debug)]
pub struct cowslip_template(Template);

/// A private copy of a template, in this process.
#[derive(Debug)]
pub struct cowslip_clone(TemplateClone);

/// The place for memory that had addresses before.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum cowslip_place {
    /// Anywhere.
    COWSLIP_PLACE_ANYWHERE = 0,
    /// At its former addresses, so that pointers into it stay valid.
    COWSLIP_PLACE_ORIGINAL = 1,
}

pub(crate) fn place(number: u32) -> Answer<Place> {
    match number {
        0 => Ok(Place::Anywhere),
        1 => Ok(Place::Original),
        _ => Err(Failure::Usage(format!("no cowslip_place is {number}"))),
    }
}

/// Makes a template of a view. The view is freed, even on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_template_new(
    frozen: *mut cowslip_frozen,
    template: *mut *mut cowslip_template,
    error: *mut *mut cowslip_error,
) -> cowslip_status {
    let make = || {
        if frozen.is_null() {
            return Err(Failure::Null("frozen"));
        }
        // SAFETY: C's contract: it is a box of ours, and no other code uses it now.
        let view = unsafe { Box::from_raw(frozen) };
        let made = cowslip_template(view.frozen.into_template()?);
        // SAFETY: C's contract.
        unsafe { hand_over(template, "template", made) }
    };
    // SAFETY: C's contract.
    unsafe { guard(error, make) }
}

/// Sends the template over a connected Unix socket to a process that calls cowslip_template_receive. It may be freed
/// when the other side has confirmed that it has the template.
///
/// `socket` must be open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_template_send(
    template: *const cowslip_template,
    socket: c_int,
    error: *mut *mut cowslip_error,
) -> cowslip_status {
    let send = || {
        // SAFETY: C's contract.
        let template = unsafe { shared(template, "template") }?;
        // SAFETY: C's contract.
        let socket = unsafe { borrowed(socket) }?;
        Ok(template.0.send(&socket)?)
    };
    // SAFETY: C's contract.
    unsafe { guard(error, send) }
}

/// Receives a template over a connected Unix socket, from a process that the caller trusts not to write to it.
///
/// `socket` must be open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_template_receive(
    socket: c_int,
    template: *mut *mut cowslip_template,
    error: *mut *mut cowslip_error,
) -> cowslip_status {
    let receive = || {
        if template.is_null() {
            return Err(Failure::Null("template"));
        }
        // SAFETY: C's contract.
        let socket = unsafe { borrowed(socket) }?;
        // SAFETY: C's contract: the other process is trusted.
        let received = unsafe { Template::receive(&socket) }?;
        // SAFETY: C's contract.
        unsafe { hand_over(template, "template", cowslip_template(received)) }
    };
    // SAFETY: C's contract.
    unsafe { guard(error, receive) }
}

/// # Safety
/// `socket` is open.
unsafe fn borrowed(socket: c_int) -> Answer<ManuallyDrop<UnixStream>> {
    if socket < 0 {
        return Err(Failure::Usage(format!("{socket} is no socket")));
    }
    // SAFETY: the caller promises it, and keeps the socket, which is not dropped.
    Ok(ManuallyDrop::new(unsafe { UnixStream::from_raw_fd(socket) }))
}

/// The template of one of an image's arenas, from the memory of the `cowslip serve` at the socket. Clones share the
/// server's memory except for written pages: any number of processes hold one copy. The call waits for an image that is
/// being loaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_template_via(
    file: *const c_char,
    arena: u32,
    socket: *const c_char,
    template: *mut *mut cowslip_template,
    error: *mut *mut cowslip_error,
) -> cowslip_status {
    let borrow = || {
        if template.is_null() {
            return Err(Failure::Null("template"));
        }
        // SAFETY: C's contract.
        let (file, socket) = unsafe { (path(file, "file")?, path(socket, "socket")?) };
        let made = cowslip_template(Image::open(file)?.template_via(socket, arena)?);
        // SAFETY: C's contract.
        unsafe { hand_over(template, "template", made) }
    };
    // SAFETY: C's contract.
    unsafe { guard(error, borrow) }
}

/// The place of the memory that was saved under this name in the image of a template from cowslip_template_via, for
/// cowslip_clone_at: COWSLIP_USAGE if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_template_root(
    template: *const cowslip_template,
    file: *const c_char,
    name: *const c_char,
    start: *mut *const c_void,
    length: *mut usize,
    error: *mut *mut cowslip_error,
) -> cowslip_status {
    let find = || {
        // SAFETY: C's contract.
        let template = unsafe { shared(template, "template") }?;
        // SAFETY: C's contract.
        let (file, name) = unsafe { (path(file, "file")?, string(name, "name")?) };
        let image = Image::open(file)?;
        let found = image.description().roots.get(name);
        let root = found.ok_or_else(|| Failure::Usage(format!("there is no root {name}")))?;
        let address = template.0.origin() + root.offset_bytes as usize;
        // SAFETY: C's contract.
        unsafe {
            hand_out(start, "start", address as *const c_void)?;
            hand_out(length, "length", root.length_bytes as usize)
        }
    };
    // SAFETY: C's contract.
    unsafe { guard(error, find) }
}

/// Frees the handle; clones stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_template_free(template: *mut cowslip_template) {
    // SAFETY: C's contract.
    unsafe { handles::free(template) };
}

/// Maps a private clone, at a cowslip_place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_clone_new(
    template: *const cowslip_template,
    place: u32,
    clone: *mut *mut cowslip_clone,
    error: *mut *mut cowslip_error,
) -> cowslip_status {
    let make = || {
        // SAFETY: C's contract.
        let template = unsafe { shared(template, "template") }?;
        let made = cowslip_clone(template.0.map(self::place(place)?)?);
        // SAFETY: C's contract.
        unsafe { hand_over(clone, "clone", made) }
    };
    // SAFETY: C's contract.
    unsafe { guard(error, make) }
}

/// The place of the arena's `address` in the clone, for reading and writing; NULL if the clone has nothing there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_clone_at(
    clone: *const cowslip_clone,
    address: *const c_void,
) -> *mut c_void {
    contained(ptr::null_mut(), || {
        // SAFETY: C's contract.
        let Ok(clone) = (unsafe { shared(clone, "clone") }) else { return ptr::null_mut() };
        let is_here = |region: &cowslip::Region| region.range().contains(address as usize);
        if !clone.0.regions().iter().any(is_here) {
            return ptr::null_mut();
        }
        clone.0.address(address as usize) as *mut c_void
    })
}

/// Resets the clone to the template, in place: all writes are dropped.
///
/// No other thread may use the clone meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_clone_reset(
    clone: *mut cowslip_clone,
    error: *mut *mut cowslip_error,
) -> cowslip_status {
    let reset = || {
        // SAFETY: C's contract: no other thread uses it.
        let clone = unsafe { clone.as_mut() }.ok_or(Failure::Null("clone"))?;
        Ok(clone.0.reset()?)
    };
    // SAFETY: C's contract.
    unsafe { guard(error, reset) }
}

/// Unmaps the clone.
///
/// Its memory must no longer be in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowslip_clone_free(clone: *mut cowslip_clone) {
    // SAFETY: C's contract.
    unsafe { handles::free(clone) };
}
