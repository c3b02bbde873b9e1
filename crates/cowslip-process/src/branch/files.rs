//! Open files of a copy's own.
//!
//! A fork shares open files, not only descriptors: offsets, counts and timers would be those of the program that goes on.
//! Each is made anew with the state of the instant, and takes the numbers that the old one had. A file that cannot be made
//! anew stays shared, as after `fork(2)`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use cowslip_sys::target::Target;
use cowslip_sys::{AsFd, Errno, Result, shared_queue};
use libc::{
    AT_FDCWD, O_ACCMODE, O_APPEND, O_DIRECT, O_DSYNC, O_LARGEFILE, O_NOATIME, O_NOFOLLOW,
    O_NONBLOCK, O_PATH, O_SYNC, O_WRONLY, SEEK_SET, SYS_clock_gettime, SYS_close, SYS_dup3,
    SYS_epoll_create1, SYS_epoll_ctl, SYS_eventfd2, SYS_lseek, SYS_openat, SYS_pipe2,
    SYS_signalfd4, SYS_timerfd_create, SYS_timerfd_settime, TFD_TIMER_ABSTIME,
};

use super::caller::Caller;
use super::sockets::Sockets;
use crate::descriptors::{self, DescriptorState};
use crate::look::is_terminal;
use crate::queues::Waiting;

/// One open file, and the descriptors that refer to it.
pub(super) struct OpenFile<'a> {
    /// The first is the one of least number.
    pub(super) numbers: Vec<&'a DescriptorState>,
    /// The name that the kernel gives it.
    pub(super) link: String,
    /// The flags of `open(2)`.
    pub(super) flags: i32,
}

impl OpenFile<'_> {
    pub(super) fn first(&self) -> i32 {
        self.numbers[0].number
    }

    pub(super) fn state(&self) -> &DescriptorState {
        self.numbers[0]
    }

    pub(super) fn nonblocking(&self) -> i32 {
        self.flags & O_NONBLOCK
    }

    pub(super) fn inode(&self, kind: &str) -> Option<u64> {
        descriptors::inode(&self.link, kind)
    }

    /// The kind of an anonymous file, such as `eventfd`.
    fn anonymous(&self) -> Option<&str> {
        self.link.strip_prefix("anon_inode:").map(|kind| kind.trim_matches(['[', ']']))
    }

    fn is_only_written(&self) -> bool {
        self.flags & O_ACCMODE == O_WRONLY
    }
}

/// The surroundings of new files.
pub(super) struct Surroundings<'a> {
    /// The copy.
    pub(super) process: &'a Target,
    /// Bytes that the program had sent to itself.
    pub(super) queues: &'a Waiting,
    /// The copy's descriptors of new standard streams.
    pub(super) streams: [u64; 3],
    /// The program's number.
    pub(super) program: i32,
    pub(super) has_own_network: bool,
    /// The number of a pipe that the program reads, and the bytes for the copy.
    pub(super) job: Option<(i32, &'a [u8])>,
}

/// Renews the open files of a copy.
pub(super) fn renew(
    copy: &mut Caller<'_>,
    holder: &Target,
    states: &[DescriptorState],
    around: &Surroundings<'_>,
) -> Result<()> {
    let streams = around.streams;
    let files = open_files(holder, states)?;
    let mut sockets = Sockets::new(holder, &files)?;
    let pipe = |file: &OpenFile<'_>| file.inode("pipe");
    for file in &files {
        let new = match file.anonymous() {
            // Descriptors are in ascending order.
            None if file.first() < 3 => {
                take_streams(copy, streams, file)?;
                None
            }
            Some(kind) => of_kind(copy, kind, file)?,
            None if around.job.is_some_and(|(number, _)| file.first() == number) => {
                let [read, write] = new_pipe(copy)?;
                let (_, job) = around.job.unwrap_or_default();
                fill_pipe(around, write, job)?;
                copy.call(SYS_close, &[write])?;
                Some(read)
            }
            None if pipe(file).is_some() => {
                let write = files.iter().find(|other| {
                    pipe(other) == pipe(file) && other.is_only_written() && other.first() > 2
                });
                renew_pipe(copy, &files, around, file, write)?
            }
            None if file.link.starts_with("socket:") => {
                sockets.renew(copy, file, &files, around)?;
                None
            }
            None => reopened(copy, holder, around.program, file)?,
        };
        if let Some(new) = new {
            take_numbers(copy, new, file)?;
            copy.call(SYS_close, &[new])?;
        }
    }
    sockets.finish(copy)?;
    for stream in streams {
        copy.call(SYS_close, &[stream])?;
    }
    // Sets of files are filled once all files are there.
    for file in files.iter().filter(|file| file.anonymous() == Some("eventpoll")) {
        fill_set(copy, file)?;
    }
    Ok(())
}

/// The open files of the holder: its descriptors are those of the instant.
pub(super) fn open_files<'a>(
    holder: &Target,
    states: &'a [DescriptorState],
) -> Result<Vec<OpenFile<'a>>> {
    let states: BTreeMap<i32, &DescriptorState> =
        states.iter().map(|state| (state.number, state)).collect();
    let mut files: Vec<OpenFile<'a>> = Vec::new();
    for (number, link) in descriptors::links(holder.pid())? {
        // It was opened while the states were read: by another process that shares the descriptors.
        let Some(state) = states.get(&number) else { continue };
        let mut same = None;
        for file in files.iter_mut().filter(|file| file.link == link) {
            if holder.is_same_file(file.first(), number)? {
                same = Some(file);
                break;
            }
        }
        match same {
            Some(file) => file.numbers.push(state),
            None => {
                let flags = state.number("flags", 8).unwrap_or(0) as i32;
                files.push(OpenFile { numbers: vec![state], link, flags });
            }
        }
    }
    Ok(files)
}

/// Gives new standard streams the numbers of an old one. Others of its numbers follow the first.
fn take_streams(copy: &mut Caller<'_>, streams: [u64; 3], file: &OpenFile<'_>) -> Result<()> {
    for state in &file.numbers {
        let of_number = |number: i32| streams.get(number as usize).copied();
        let stream = of_number(state.number).or(of_number(file.first())).ok_or(Errno::BADF)?;
        copy.call(SYS_dup3, &[stream, state.number as u64, state.closes_at_exec()])?;
    }
    Ok(())
}

/// Gives a new open file the numbers of an old one.
pub(super) fn take_numbers(copy: &mut Caller<'_>, new: u64, file: &OpenFile<'_>) -> Result<()> {
    for state in &file.numbers {
        copy.call(SYS_dup3, &[new, state.number as u64, state.closes_at_exec()])?;
    }
    Ok(())
}

/// Makes an anonymous file anew; `None` if that is not possible.
fn of_kind(copy: &mut Caller<'_>, kind: &str, file: &OpenFile<'_>) -> Result<Option<u64>> {
    let (state, nonblocking) = (file.state(), file.nonblocking() as u64);
    match kind {
        "eventfd" => {
            let count = state.number("eventfd-count", 16).unwrap_or(0);
            let semaphore = state.number("eventfd-semaphore", 10).unwrap_or(0);
            if count > u64::from(u32::MAX) {
                return Err(Errno::OVERFLOW);
            }
            // The flags of a new one have the numbers of these.
            copy.call(SYS_eventfd2, &[count, nonblocking | semaphore]).map(Some)
        }
        "timerfd" => timer(copy, state, nonblocking).map(Some),
        "signalfd" => {
            let mask = state.number("sigmask", 16).unwrap_or(0);
            let place = copy.put_words(0, &[mask])?;
            copy.call(SYS_signalfd4, &[!0, place, 8, nonblocking]).map(Some)
        }
        "eventpoll" => copy.call(SYS_epoll_create1, &[0]).map(Some),
        _ => Ok(None),
    }
}

const NS_PER_S: u64 = 1_000_000_000;

fn timer(copy: &mut Caller<'_>, state: &DescriptorState, nonblocking: u64) -> Result<u64> {
    let new =
        copy.call(SYS_timerfd_create, &[state.number("clockid", 10).unwrap_or(0), nonblocking])?;
    let (interval, left) = (state.time("it_interval"), state.time("it_value"));
    let (Some(interval), Some(left)) = (interval, left) else { return Ok(new) };
    // One that has expired, and was not read, would be taken for one that is not set.
    let ticks = state.number("ticks", 10).unwrap_or(0);
    let has_expired = left == (0, 0) && (interval != (0, 0) || ticks != 0);
    let mut next = if has_expired { (0, 1) } else { left };
    // A timer for a moment, not for a time, also ends when the clock is set.
    let flags = state.number("settime flags", 8).unwrap_or(0);
    if flags & TFD_TIMER_ABSTIME as u64 != 0 && next != (0, 0) {
        let place = copy.put_words(0, &[0, 0])?;
        copy.call(SYS_clock_gettime, &[state.number("clockid", 10).unwrap_or(0), place])?;
        let now: [u8; 16] = copy.get(0)?;
        let word = |at: usize| u64::from_ne_bytes(now[at..at + 8].try_into().expect("8 bytes"));
        let ns = word(8) + next.1;
        next = (word(0) + next.0 + ns / NS_PER_S, ns % NS_PER_S);
    }
    let place = copy.put_words(0, &[interval.0, interval.1, next.0, next.1])?;
    copy.call(SYS_timerfd_settime, &[new, flags, place, 0])?;
    Ok(new)
}

/// The flags of a file that is opened once more.
pub(super) const KEPT: i32 =
    O_ACCMODE | O_APPEND | O_NONBLOCK | O_DIRECT | O_DSYNC | O_SYNC | O_NOATIME | O_LARGEFILE;

/// Opens a file or a folder once more, at the offset of the instant. `None` if it stays shared: a device without a state, or a
/// file that the program could no longer open.
fn reopened(
    copy: &mut Caller<'_>,
    holder: &Target,
    program: i32,
    file: &OpenFile<'_>,
) -> Result<Option<u64>> {
    let kind = fs::metadata(descriptor(holder.pid(), file.first())).map(|file| file.file_type());
    let Ok(kind) = kind else { return Ok(None) };
    if kind.is_fifo() {
        return ended(copy, file).map(Some);
    }
    if is_terminal(&file.link) {
        return null(copy, file.flags & O_ACCMODE).map(Some);
    }
    if file.flags & O_PATH != 0 || !(kind.is_file() || kind.is_dir()) {
        return Ok(None);
    }
    // Its own, where the program has opened its own.
    let own = file.link.strip_prefix(&format!("/proc/{program}/"));
    let path = match own {
        Some(rest) => format!("/proc/self/{rest}\0"),
        None => format!("/proc/self/fd/{}\0", file.first()),
    };
    let path = copy.put(0, path.as_bytes())?;
    let flags = (file.flags & KEPT & !O_NOFOLLOW) as u64;
    let Ok(new) = copy.call(SYS_openat, &[AT_FDCWD as u64, path, flags, 0]) else {
        return Ok(None);
    };
    let offset = file.state().number("pos", 10).unwrap_or(0);
    match copy.call(SYS_lseek, &[new, offset, SEEK_SET as u64]) {
        // A file without offsets, such as a namespace's.
        Ok(_) | Err(Errno::SPIPE | Errno::INVAL) => Ok(Some(new)),
        Err(errno) => Err(errno),
    }
}

/// Makes a pipe anew, with the bytes that wait in it, if the program has both ends. `None` if that is done.
fn renew_pipe(
    copy: &mut Caller<'_>,
    files: &[OpenFile<'_>],
    around: &Surroundings<'_>,
    file: &OpenFile<'_>,
    write: Option<&OpenFile<'_>>,
) -> Result<Option<u64>> {
    if file.is_only_written() {
        let has_reader = |other: &OpenFile<'_>| {
            other.link == file.link && !other.is_only_written() && other.first() > 2
        };
        // Made with the end to read.
        return if files.iter().any(has_reader) { Ok(None) } else { ended(copy, file).map(Some) };
    }
    let Some(write) = write else { return ended(copy, file).map(Some) };
    let [read_end, write_end] = new_pipe(copy)?;
    set_nonblocking(copy, read_end, file)?;
    take_numbers(copy, read_end, file)?;
    copy.call(SYS_close, &[read_end])?;
    if let Some(waiting) = around.queues.get(&file.link).filter(|bytes| !bytes.is_empty()) {
        fill_pipe(around, write_end, waiting)?;
    }
    set_nonblocking(copy, write_end, write)?;
    take_numbers(copy, write_end, write)?;
    copy.call(SYS_close, &[write_end])?;
    Ok(None)
}

/// Fills a pipe of the copy. Its number is read from memory that others may write: the file is looked at.
fn fill_pipe(around: &Surroundings<'_>, number: u64, bytes: &[u8]) -> Result<()> {
    let pipe = around.process.descriptor(number as i32)?;
    shared_queue::fill_pipe(pipe.as_fd(), bytes)
}

/// A pipe with its other end in another program: the copy reads its end, and writes nowhere.
fn ended(copy: &mut Caller<'_>, file: &OpenFile<'_>) -> Result<u64> {
    if file.is_only_written() {
        return null(copy, O_WRONLY);
    }
    let [read, write] = new_pipe(copy)?;
    copy.call(SYS_close, &[write])?;
    set_nonblocking(copy, read, file)?;
    Ok(read)
}

fn null(copy: &mut Caller<'_>, access: i32) -> Result<u64> {
    let path = copy.put(0, b"/dev/null\0")?;
    copy.call(SYS_openat, &[AT_FDCWD as u64, path, access as u64, 0])
}

/// A pipe of the copy: its end to read, and its end to write.
fn new_pipe(copy: &mut Caller<'_>) -> Result<[u64; 2]> {
    let place = copy.place(0);
    copy.call(SYS_pipe2, &[place, 0])?;
    copy.get_pair()
}

fn descriptor(pid: i32, number: i32) -> PathBuf {
    Path::new("/proc").join(pid.to_string()).join("fd").join(number.to_string())
}

pub(super) fn set_nonblocking(copy: &mut Caller<'_>, new: u64, file: &OpenFile<'_>) -> Result<()> {
    let flags = file.nonblocking() as u64;
    copy.call(libc::SYS_fcntl, &[new, libc::F_SETFL as u64, flags]).map(drop)
}

/// Makes sets of files anew, with their members of the instant.
pub(super) fn renew_sets(task: &mut Caller<'_>, files: &[OpenFile<'_>]) -> Result<()> {
    let sets = || files.iter().filter(|file| file.anonymous() == Some("eventpoll"));
    for file in sets() {
        let new = task.call(SYS_epoll_create1, &[0])?;
        take_numbers(task, new, file)?;
        task.call(SYS_close, &[new])?;
    }
    sets().try_for_each(|file| fill_set(task, file))
}

/// Adds the files to a new set that the old one had (`epoll(7)`).
fn fill_set(copy: &mut Caller<'_>, file: &OpenFile<'_>) -> Result<()> {
    const ADD: u64 = libc::EPOLL_CTL_ADD as u64;
    for watched in file.state().text.lines().filter_map(Watched::parse) {
        let event = [&watched.events.to_ne_bytes()[..], &watched.data.to_ne_bytes()].concat();
        let place = copy.put(0, &event)?;
        match copy.call(SYS_epoll_ctl, &[file.first() as u64, ADD, watched.number as u64, place]) {
            // A descriptor that was closed, while another kept its file open; a file that is always ready.
            Ok(_) | Err(Errno::BADF | Errno::PERM | Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Returns true if one of the sets has a descriptor of this number.
pub(super) fn is_watched(states: &[DescriptorState], number: u32) -> bool {
    let mut lines = states.iter().flat_map(|state| state.text.lines());
    lines.any(|line| Watched::parse(line).is_some_and(|watched| watched.number == number))
}

/// A file in a set, such as `tfd:        5 events:       19 data:         40000000005`.
#[derive(PartialEq, Eq, Debug)]
struct Watched {
    number: u32,
    events: u32,
    data: u64,
}

impl Watched {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("tfd:")?.split_ascii_whitespace();
        let number = words.next()?.parse().ok()?;
        let mut after = |name: &str| words.find(|word| *word == name).and_then(|_| words.next());
        let events = u32::from_str_radix(after("events:")?, 16).ok()?;
        let data = u64::from_str_radix(after("data:")?, 16).ok()?;
        Some(Self { number, events, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_set_is_read() {
        let line = "tfd:        5 events: 80000019 data:         400000005  pos:0 ino:9 sdev:a";
        let watched = Watched { number: 5, events: 0x8000_0019, data: 0x4_0000_0005 };
        assert_eq!(Watched::parse(line), Some(watched));
        assert_eq!(Watched::parse("pos:\t0"), None);
    }
}
