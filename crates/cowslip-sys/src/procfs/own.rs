//! This process, by its own files in `/proc` (`proc(5)`). Nothing here allocates, and no child of another thread's fork
//! keeps a descriptor.

use core::mem::MaybeUninit;
use core::str::FromStr;

use super::open::{open, open_self};
use crate::process::read_some;
use crate::reserved_fd::ReservedFd;
use crate::{AsRawFd, Errno};

/// The number of threads of this process, from the links of `/proc/self/task`; `None` if it cannot be read. A thread
/// counts until it has ended completely.
pub fn thread_count() -> Option<u64> {
    const LINKS_OF_A_DIRECTORY: u64 = 2;
    let links = rustix::fs::stat(c"/proc/self/task").ok()?.st_nlink as u64;
    links.checked_sub(LINKS_OF_A_DIRECTORY).filter(|&threads| threads > 0)
}

/// Once the main thread has ended: the number of other threads, including those that are about to end. `None` before,
/// and where `/proc` is not mounted. Allocates nothing and needs no descriptor.
pub fn threads_without_main() -> Option<u64> {
    // The main thread stays on the list until the last of the others has been removed.
    let threads = thread_count()?;
    // `/proc/self` describes the main thread, which has a program for as long as it has memory.
    let mut name = [MaybeUninit::uninit(); 1];
    let program = rustix::fs::readlinkat_raw(rustix::fs::CWD, c"/proc/self/exe", &mut name);
    (program.err() == Some(Errno::NOENT)).then(|| threads.saturating_sub(1))
}

/// Pages of this process that belong to no file, by `/proc/self/statm` (`proc_pid_statm(5)`).
pub fn anonymous_pages() -> Option<u64> {
    with_proc_text("self/statm", |text| {
        let mut fields = text.split_ascii_whitespace().skip(1);
        let mut next = || fields.next()?.parse::<u64>().ok();
        Some(next()?.saturating_sub(next()?))
    })
}

/// The process that traces this thread (`ptrace(2)`), from `/proc/thread-self/status` (`proc_pid_status(5)`); `None` if
/// there is none, or the file cannot be read. Allocates nothing.
pub fn tracer_pid() -> Option<i32> {
    let file = ReservedFd::open(|| open("thread-self/status")).ok()?;
    let mut text = [0u8; 512];
    let read = rustix::io::read(&file, &mut text[..]).ok()?;
    let text = core::str::from_utf8(&text[..read]).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("TracerPid:"))?;
    line.trim().parse().ok().filter(|&pid| pid != 0)
}

/// Returns true if this process is known to ignore `signal`, as nohup(1) makes it ignore `SIGHUP`.
pub fn ignores(signal: i32) -> bool {
    own_signals("SigIgn:").is_some_and(|ignored| ignored >> (signal - 1) & 1 == 1)
}

/// The signals that the main thread blocks, or blocked at its end; the lowest bit is signal 1.
pub fn blocked_signals_of_main() -> Option<u64> {
    own_signals("SigBlk:")
}

/// A set of signals in `/proc/self/status`; the lowest bit is signal 1.
fn own_signals(field: &str) -> Option<u64> {
    let mut text = [0; 4096];
    let set = read_own("status", &mut text)?.lines().find_map(|line| line.strip_prefix(field))?;
    u64::from_str_radix(set.trim(), 16).ok()
}

/// Calls `act` for each open descriptor of this process, without allocating; `false` if `/proc`
/// cannot be read.
pub fn for_each_descriptor(mut act: impl FnMut(i32)) -> bool {
    let Ok(folder) = ReservedFd::open(|| open("self/fd")) else { return false };
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut entries = rustix::fs::RawDir::new(&folder, &mut buffer);
    while let Some(entry) = entries.next() {
        let Ok(entry) = entry else { return false };
        let number = entry.file_name().to_str().ok().and_then(|name| name.parse().ok());
        if let Some(fd) = number.filter(|&fd| fd != folder.as_raw_fd()) {
            act(fd);
        }
    }
    true
}

/// The field at `index` of a short file in `/proc`, without allocating. No child of another thread keeps its descriptor.
pub(crate) fn field_of<T: FromStr>(name: &str, index: usize, end: char) -> Option<T> {
    with_proc_text(name, |text| {
        text.split_ascii_whitespace().nth(index)?.split(end).next()?.parse().ok()
    })
}

fn with_proc_text<T>(name: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    let file = ReservedFd::open(|| open(name)).ok()?;
    let mut text = [0u8; 96];
    let read = rustix::io::read(&file, &mut text[..]).ok()?;
    parse(core::str::from_utf8(&text[..read]).ok()?)
}

/// The beginning of a file of `/proc/self`, without allocating.
fn read_own<'a>(name: &str, text: &'a mut [u8]) -> Option<&'a str> {
    let file = ReservedFd::open(|| open_self(name)).ok()?;
    let read = read_some(&file, text).ok()?;
    core::str::from_utf8(&text[..read]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_the_main_thread_lives_no_thread_is_without_it() {
        assert_eq!(threads_without_main(), None);
    }
}
