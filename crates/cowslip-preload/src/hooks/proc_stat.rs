//! `/proc/self/stat` (`proc_pid_stat(5)`) without the service threads: the program does not see them where it
//! counts its own.
//!
//! Python warns at a fork when the file shows more than one thread, because a fork copies only one. A fork does no harm
//! to ours.

use core::ffi::CStr;

use cowslip_sys::process::BlockedSignals;
use cowslip_sys::{AsFd, AsRawFd, memfile};

use crate::arena::service;

pub(super) const FILE: &CStr = c"/proc/self/stat";
/// The field's index after the name, which may hold spaces and ends with a parenthesis.
const THREADS: usize = 17;

fn without(stat: &str, ours: u64) -> Option<String> {
    let (name, fields) = stat.rsplit_once(')')?;
    let mut fields: Vec<_> = fields.split(' ').map(str::to_owned).collect();
    let threads = fields.get_mut(THREADS + 1)?;
    *threads = threads.parse::<u64>().ok()?.saturating_sub(ours).max(1).to_string();
    Some(format!("{name}){}", fields.join(" ")))
}

/// Opens a file with the text that the program would read without the service threads.
pub(super) fn open_without_services() -> Option<*mut libc::FILE> {
    let _blocked = BlockedSignals::enter();
    let ours = Some(service::count()).filter(|&ours| ours > 0)?;
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
