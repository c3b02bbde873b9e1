#![allow(unsafe_code)]
//! Children, signals and threads: the calls that the service thread and the fork path need.
//!
//! # Safety
//! Signal masks are per thread and restored by a guard; the rest takes and returns plain values.

use core::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags};

use crate::errno;
use crate::failpoints::{self, Op};
use crate::{AsFd, BorrowedFd, Errno, OwnedFd, Result, passthrough};

/// This thread's id.
pub fn thread_id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// The handle of `pthread_self(3)`; a forked child's thread has the same as its parent's.
pub fn thread_handle() -> usize {
    // SAFETY: takes nothing, changes nothing.
    unsafe { libc::pthread_self() as usize }
}

/// Returns true if this thread needs memory in `range` to go on, so that it would wait for itself: its stack, or the
/// state that libc and the kernel keep for it beside the thread pointer (`rseq` is written at every return from a
/// system call).
pub fn stands_in(range: crate::units::VirtRange) -> bool {
    let here = core::hint::black_box(0u8);
    let stack = core::ptr::from_ref(&here) as usize;
    range.contains(stack) || range.contains(thread_handle())
}

/// One `write(2)`.
pub fn write_once(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize> {
    rustix::io::write(fd, bytes)
}

/// One `read(2)`, repeated if a signal interrupts it.
pub fn read_some(file: impl AsFd, place: &mut [u8]) -> Result<usize> {
    retry_on_intr(|| rustix::io::read(&file, &mut *place))
}

/// Blocks every signal of this thread until dropped, defers its cancellation, and preserves `errno`.
///
/// A handler that ran while a lock of ours is held could call into the library again and wait for that lock forever. A
/// thread cancelled then, in a `read(2)` of ours for instance, would end with the lock held.
#[derive(Debug)]
pub struct BlockedSignals {
    mask: libc::sigset_t,
    cancel_state: i32,
    errno: i32,
}

impl BlockedSignals {
    /// Blocks all signals that can be blocked.
    pub fn enter() -> Self {
        let mut all = MaybeUninit::uninit();
        let mut mask = MaybeUninit::uninit();
        // SAFETY: both sets are written before they are read: `all` by sigfillset, `mask` by
        // pthread_sigmask, which cannot fail with SIG_BLOCK.
        unsafe {
            let errno = *libc::__errno_location();
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), mask.as_mut_ptr());
            let cancel_state = set_cancel_state(CANCEL_DISABLE);
            Self { mask: mask.assume_init(), cancel_state, errno }
        }
    }

    /// Leaves the present value of `errno` instead of the preserved one.
    pub fn keep_errno(&mut self) {
        // SAFETY: errno is a thread-local integer that is always there.
        self.errno = unsafe { *libc::__errno_location() };
    }

    /// Leaves this value in `errno` instead of the preserved one.
    pub fn set_errno(&mut self, errno: Errno) {
        self.errno = errno.raw_os_error();
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: `mask` is the mask that this thread had; errno is a thread-local integer. If the thread ends here,
        // its stack holds nothing of ours that needs to be dropped.
        unsafe {
            set_cancel_state(self.cancel_state);
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.mask, core::ptr::null_mut());
            // After a fork a write would copy the page, so an unchanged value is not written.
            let errno = libc::__errno_location();
            if *errno != self.errno {
                *errno = self.errno;
            }
        }
    }
}

/// A descriptor that becomes readable when the child `pid` has ended (`pidfd_open(2)`, Linux 5.3).
pub fn pidfd(pid: i32) -> Result<OwnedFd> {
    failpoints::check(Op::PidfdOpen)?;
    let pid = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
    rustix::process::pidfd_open(pid, PidfdFlags::empty())
}

/// Returns true if a pidfd refers to this process (`PIDFD_GET_INFO`, Linux 6.13; `false` before).
pub fn is_own_pidfd(pidfd: i32) -> bool {
    /// `PIDFD_SELF_THREAD_GROUP ..= PIDFD_SELF_THREAD`
    const SELF: core::ops::RangeInclusive<i32> = -10_001..=-10_000;
    const GET_INFO: libc::c_ulong = 0xc040_ff0b;
    const PROCESS: usize = 5;
    // `struct pidfd_info`: mask and control group of 64 bits, thread, process, parent, ...
    let mut info = [0u32; 16];
    info[0] = 1;
    // SAFETY: the kernel writes as many bytes as the request says, which `info` has.
    let is_told =
        pidfd >= 0 && unsafe { libc::ioctl(pidfd, GET_INFO as _, info.as_mut_ptr()) } == 0;
    SELF.contains(&pidfd) || is_told && info[PROCESS] == pid() as u32
}

/// Makes the calling thread block these signals, and no others; the lowest bit is signal 1.
pub fn set_signal_mask(blocked: u64) {
    const SIGNALS: i32 = 64;
    let mut mask = MaybeUninit::uninit();
    // SAFETY: the set is written by sigemptyset before it is read; an invalid signal is refused.
    unsafe {
        libc::sigemptyset(mask.as_mut_ptr());
        for signal in (1..=SIGNALS).filter(|signal| blocked >> (signal - 1) & 1 == 1) {
            libc::sigaddset(mask.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, mask.as_ptr(), core::ptr::null_mut());
    }
}

/// Lets processes that are started from here on inherit a descriptor, under its number (`FD_CLOEXEC`).
pub fn keep_across_exec(fd: BorrowedFd<'_>) -> Result<()> {
    rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())
}

/// A counter that wakes a poll (`eventfd(2)`).
pub fn eventfd() -> Result<OwnedFd> {
    rustix::event::eventfd(
        0,
        rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK,
    )
}

/// Adds one to an eventfd.
pub fn notify(fd: BorrowedFd<'_>) {
    // A full counter is a notification already.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// Resets an eventfd to zero; returns true if it was not zero.
///
/// # Errors
/// An error of the kernel, for example `EBADF` if the program closed it.
pub fn drain(fd: BorrowedFd<'_>) -> Result<bool> {
    match rustix::io::read(fd, &mut [0u8; 8][..]) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

pub use crate::waiting::{many_readable as wait_many_readable, readable as wait_readable};

/// The parent of this process.
pub fn parent_pid() -> i32 {
    rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get())
}

/// This process.
pub fn pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Returns true if `task` is this process, or a thread of it (`tgkill(2)`, no signal).
pub fn is_own_task(task: i32) -> bool {
    let pid = pid();
    // SAFETY: three numbers; signal 0 is only checked. The errno is a thread-local integer, and stays as it was.
    task == pid
        || unsafe {
            let errno = libc::__errno_location();
            let before = *errno;
            let answer = crate::passthrough::by_number()(libc::SYS_tgkill, pid, task, 0);
            *errno = before;
            answer == 0
        }
}

/// Keeps a descriptor open at exec, so that each program that this process starts from now on inherits it.
pub fn keep_at_exec(descriptor: BorrowedFd<'_>) -> Result<()> {
    rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::empty())
}

/// Has the kernel kill a command that this thread starts when the thread ends, however it ends (`PR_SET_PDEATHSIG`).
pub fn end_with_this_thread(command: &mut Command) {
    let parent = rustix::process::getpid();
    let ask = move || {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        // No signal comes if it has ended already.
        match rustix::process::getppid() == Some(parent) {
            true => Ok(()),
            false => Err(Errno::SRCH.into()),
        }
    };
    // SAFETY: the closure makes two system calls, and allocates nothing.
    unsafe { command.pre_exec(ask) };
}

/// Fills `buffer` with random bytes fit for keys (`getrandom(2)`).
pub fn fill_random(buffer: &mut [u8]) -> Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        done += retry_on_intr(|| rustix::rand::getrandom(&mut buffer[done..], flags))?;
    }
    Ok(())
}

/// The user as which this thread acts (`geteuid(2)`).
pub fn effective_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Nanoseconds of the monotonic clock.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Nanoseconds of processor time that this thread has used.
pub fn thread_cpu_ns() -> u64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}

/// Nanoseconds of processor time that this process has used.
pub fn cpu_ns() -> u64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}

/// Nanoseconds of processor time that the process `pid` has used, all its threads together (`clock_getcpuclockid(3)`);
/// `ESRCH` if there is none, or this process may not learn it.
pub fn cpu_ns_of(pid: i32) -> Result<u64> {
    let mut clock = 0;
    // SAFETY: clock_getcpuclockid(3) writes a clock's number through the pointer.
    match unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) } {
        0 => {}
        errno => return Err(Errno::from_raw_os_error(errno)),
    }
    let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime(2) writes a time through the pointer.
    match unsafe { libc::clock_gettime(clock, &raw mut used) } {
        0 => Ok(used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64),
        // The process is gone.
        _ => Err(Errno::SRCH),
    }
}

/// Returns true if `pid` is a child of this process that has not ended: then no other process can have the number. It
/// does not reap the child, and no handler of the program notices (`waitid(2)`).
pub fn is_running_child(pid: i32) -> bool {
    // SAFETY: plain numbers, for which zero is a value.
    let mut about: libc::siginfo_t = unsafe { core::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: waitid(2) writes to the structure behind the first pointer; the other one is null.
    let answer = unsafe {
        passthrough::by_number()(
            libc::SYS_waitid,
            libc::P_PID,
            pid,
            &raw mut about,
            flags,
            core::ptr::null_mut::<libc::rusage>(),
        )
    };
    // SAFETY: the kernel filled it in as for SIGCHLD, or left it all zeroes: the child runs.
    answer == 0 && unsafe { about.si_pid() } == 0
}

/// Waits for the child `pid` to end and returns its wait status.
pub fn wait_for(pid: i32) -> Result<i32> {
    let mut status = 0;
    // SAFETY: waitpid writes the status to the place it is given.
    match unsafe { libc::waitpid(pid, &mut status, 0) } {
        -1 => Err(errno::last()),
        _ => Ok(status),
    }
}

/// Asks all processes of the group that `leader` leads to end (`SIGTERM`) or, `at_once`, ends them
/// (`SIGKILL`). `ESRCH` if there are none, `EPERM` if they belong to another user.
pub fn end_group(leader: i32, at_once: bool) -> Result<()> {
    use rustix::process::{Signal, kill_process_group};
    let leader = Pid::from_raw(leader).ok_or(Errno::SRCH)?;
    kill_process_group(leader, if at_once { Signal::KILL } else { Signal::TERM })
}

/// Stops all processes of the group that `leader` leads (`SIGSTOP`), or lets them continue (`SIGCONT`). `ESRCH` if
/// there are none, `EPERM` if they belong to another user.
pub fn stop_group(leader: i32, stopped: bool) -> Result<()> {
    use rustix::process::{Signal, kill_process_group};
    let leader = Pid::from_raw(leader).ok_or(Errno::SRCH)?;
    kill_process_group(leader, if stopped { Signal::STOP } else { Signal::CONT })
}

/// Asks the process `pid` to end (`SIGTERM`) or, `at_once`, ends it (`SIGKILL`). `ESRCH` if there is none, `EPERM` if
/// it belongs to another user.
pub fn end(pid: i32, at_once: bool) -> Result<()> {
    use rustix::process::{Signal, kill_process};
    let pid = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
    kill_process(pid, if at_once { Signal::KILL } else { Signal::TERM })
}

/// Sends a standard signal. `EINVAL` if there is none of this number, `ESRCH` if there is no such process, `EPERM` if
/// it belongs to another user.
pub fn signal(pid: i32, signal: i32) -> Result<()> {
    use rustix::process::{Signal, kill_process};
    let pid = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
    kill_process(pid, Signal::from_named_raw(signal).ok_or(Errno::INVAL)?)
}

/// `fork(2)` through libc, which runs the program's `pthread_atfork` handlers: 0 in the child.
///
/// # Safety
/// The same as for fork(2): in the child of a program with threads only async-signal-safe functions
/// may be called.
pub unsafe fn fork() -> Result<i32> {
    // SAFETY: the caller respects the limits of a child.
    match unsafe { libc::fork() } {
        -1 => Err(errno::last()),
        pid => Ok(pid),
    }
}

/// Registers functions to be called around every fork of this process through libc (`pthread_atfork(3)`): the first
/// before it, the others after it in the parent (also if it failed) and in the child. The registration is permanent:
/// the library that contains them must not be unloaded.
pub fn at_fork(
    prepare: extern "C" fn(),
    in_parent: extern "C" fn(),
    in_child: extern "C" fn(),
) -> Result<()> {
    // SAFETY: the functions take nothing and live as long as their library.
    match unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) } {
        0 => Ok(()),
        errno => Err(Errno::from_raw_os_error(errno)),
    }
}

/// Ends this process at once (`_exit(2)`).
pub fn exit_now(code: i32) -> ! {
    // SAFETY: ends the process; nothing runs afterwards.
    unsafe { libc::_exit(code) }
}

/// Total memory and swap of this machine.
pub fn memory_and_swap() -> crate::units::ByteCount {
    let info = rustix::system::sysinfo();
    crate::units::ByteCount((info.totalram + info.totalswap) * u64::from(info.mem_unit))
}

/// The unused memory of this machine, by one call (`sysinfo(2)`): programs can have it, besides the memory that the
/// kernel reclaims for them.
pub fn free_memory() -> crate::units::ByteCount {
    let info = rustix::system::sysinfo();
    crate::units::ByteCount(info.freeram * u64::from(info.mem_unit))
}

/// The number of files that this process may open (`RLIMIT_NOFILE`).
pub fn file_limit() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current.unwrap_or(u64::MAX)
}

/// Raises this process's limit of open files to its maximum (`RLIMIT_NOFILE`).
pub fn raise_file_limit() -> Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)
}

/// A limit of this process that counts memory, or keeps files small (`getrlimit(2)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryLimit {
    /// `RLIMIT_AS`: address space, used or not.
    AddressSpace,
    /// `RLIMIT_DATA`: private writable memory.
    Data,
    /// `RLIMIT_FSIZE`: files.
    FileSize,
}

impl MemoryLimit {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::AddressSpace, Self::Data, Self::FileSize];

    /// Its name in `getrlimit(2)`.
    pub fn name(self) -> &'static str {
        match self {
            Self::AddressSpace => "RLIMIT_AS",
            Self::Data => "RLIMIT_DATA",
            Self::FileSize => "RLIMIT_FSIZE",
        }
    }

    /// The way to lift it.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::AddressSpace => {
                "`ulimit -v unlimited` lifts it, of afl-fuzz and its tools `-m none`"
            }
            Self::Data => "`ulimit -d unlimited` lifts it",
            Self::FileSize => "`ulimit -f unlimited` lifts it",
        }
    }

    /// The kernel's number for it.
    pub fn number(self) -> u32 {
        match self {
            Self::AddressSpace => libc::RLIMIT_AS,
            Self::Data => libc::RLIMIT_DATA,
            Self::FileSize => libc::RLIMIT_FSIZE,
        }
    }

    /// The current limit; `None`: unlimited.
    pub fn current(self) -> Option<crate::units::ByteCount> {
        use rustix::process::{Resource, getrlimit};
        let resource = match self {
            Self::AddressSpace => Resource::As,
            Self::Data => Resource::Data,
            Self::FileSize => Resource::Fsize,
        };
        getrlimit(resource).current.map(crate::units::ByteCount)
    }
}

/// Returns true if reads from `fd` bypass the page cache (`O_DIRECT`, `fcntl(2)`).
pub fn is_direct(fd: i32) -> bool {
    if fd < 0 {
        return false;
    }
    // SAFETY: the number is used for one question; if it is not open, the answer is `EBADF`.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::DIRECT))
}

/// Returns true if a plain read of `fd` may write to the reader's page frames, like one that bypasses the page cache.
pub fn pins_readers(fd: i32) -> bool {
    if fd < 0 {
        return false;
    }
    // SAFETY: the number is used for one question; if it is not open, the answer is `EBADF`.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    // A file system with a server may fail to answer, and may still pin pages: any error but EBADF
    // counts as true.
    rustix::fs::fstatfs(fd).map_or_else(|errno| errno != Errno::BADF, |system| is_pinning(&system))
}

/// Returns true if `fd` is a file in memory that is all holes, and its link in `/proc` begins with `name`.
pub fn is_empty_memfd(fd: i32, name: &str) -> bool {
    if fd < 0 {
        return false;
    }
    let mut path = [0; 32];
    let _ = std::io::Write::write_fmt(&mut &mut path[..], format_args!("/proc/self/fd/{fd}\0"));
    let mut link = [core::mem::MaybeUninit::uninit(); 64];
    let Ok(path) = core::ffi::CStr::from_bytes_until_nul(&path) else { return false };
    let is_named = rustix::fs::readlinkat_raw(rustix::fs::CWD, path, &mut link)
        .is_ok_and(|(link, _)| link.starts_with(name.as_bytes()));
    // SAFETY: the number is used for one question; if it is not open, the answer is `EBADF`.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    is_named && crate::memfile::allocated_bytes(fd) == Ok(0)
}

/// Like [`pins_readers`], for the file at `path`; `false` if nothing readable is there.
///
/// # Safety
/// A readable `path` ends with a zero byte.
pub unsafe fn path_pins_readers(path: *const core::ffi::c_char) -> bool {
    if !crate::user_memory::is_readable(path as usize, 1) {
        return false;
    }
    // SAFETY: it begins there, and the caller vouches for its end.
    let path = unsafe { core::ffi::CStr::from_ptr(path) };
    match rustix::fs::statfs(path) {
        Ok(system) => is_pinning(&system),
        // It may be about to be made.
        Err(Errno::NOENT) => {
            rustix::fs::statfs(folder(path.to_bytes())).is_ok_and(|system| is_pinning(&system))
        }
        Err(errno) => errno == Errno::NOSYS,
    }
}

/// The folder of a file.
fn folder(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|&byte| byte == b'/') {
        None => b".",
        Some(0) => b"/",
        Some(at) => &path[..at],
    }
}

/// File systems that pin the pages that a read fills until their server answers: FUSE and virtiofs with `direct_io`, 9p
/// and SMB without a cache, Lustre. The names are from `linux/magic.h`, the last one from Lustre's `lustre_user.h`.
const PINNING: [(&str, u32); 5] = [
    ("FUSE_SUPER_MAGIC", 0x6573_5546),
    ("V9FS_MAGIC", 0x0102_1997),
    ("CIFS_SUPER_MAGIC", 0xff53_4d42),
    ("SMB2_SUPER_MAGIC", 0xfe53_4d42),
    ("LL_SUPER_MAGIC", 0x0bd0_0bd0),
];

fn is_pinning(system: &rustix::fs::StatFs) -> bool {
    PINNING.iter().any(|(_, magic)| *magic == system.f_type as u32)
}

/// Does `act` with the cancellation of this thread deferred (`pthread_setcancelstate(3)`): a thread that may be
/// cancelled at any instant would end while it holds the locks of `act`.
pub fn uncancelled(act: impl FnOnce()) {
    // SAFETY: nothing here, before or after, depends on this thread continuing.
    let before = unsafe { set_cancel_state(CANCEL_DISABLE) };
    act();
    // SAFETY: restores the state. A thread cancelled meanwhile may end here, with nothing of ours to drop on its stack.
    unsafe { set_cancel_state(before) };
}

const CANCEL_DISABLE: i32 = 1;

/// Returns the former state. If `state` allows cancellation at any instant, a thread cancelled meanwhile ends here.
///
/// # Safety
/// The caller tolerates that end.
unsafe fn set_cancel_state(state: i32) -> i32 {
    unsafe extern "C-unwind" {
        fn pthread_setcancelstate(state: i32, before: *mut i32) -> i32;
    }
    let mut before = 0;
    // SAFETY: writes the state through the pointer; the caller vouches for the rest.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// Returns true if the process has one thread, also where there is no `/proc`, as in another root (`chroot(2)`). The
/// call that is made changes nothing, and is refused to one of several threads (`unshare(2)`).
pub fn is_single_threaded() -> bool {
    let flags = libc::c_long::from(libc::CLONE_THREAD);
    // SAFETY: the call takes no pointer, and this flag alone changes nothing: it succeeds for a thread that is alone, and
    // is refused to others.
    unsafe { crate::passthrough::by_number()(libc::SYS_unshare, flags) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_that_pin_are_those_of_the_kernels_header() {
        let Ok(header) = std::fs::read_to_string("/usr/include/linux/magic.h") else {
            println!("SKIPPED: linux/magic.h: the kernel's headers for programs are not installed");
            return;
        };
        let defined = |name: &str| {
            let mut words = header.lines().map(str::split_ascii_whitespace);
            words.find_map(|mut words| {
                let is_it = words.next() == Some("#define") && words.next() == Some(name);
                is_it.then(|| u32::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok())?
            })
        };
        for (name, magic) in PINNING {
            // Lustre is not in the kernel's tree.
            if name != "LL_SUPER_MAGIC" {
                assert_eq!(defined(name), Some(magic), "{name}");
            }
        }
    }
}
