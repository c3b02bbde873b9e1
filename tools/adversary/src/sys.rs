//! The calls of a program, through libc's symbols, where a preloaded library sees them.
//!
//! # Safety
//! All addresses are in the program's memory: these calls themselves returned them, and by the model they are
//! still valid. No Rust object lies there, so no change of that memory affects one. For this reason the
//! wrappers are safe functions, and none is called with another address.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use std::time::{Duration, Instant};

/// The longest time of an exec.
const EXEC: Duration = Duration::from_secs(2);

/// The return value of a call, or its errno.
pub(crate) type Outcome = Result<usize, c_int>;

pub(crate) fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn outcome(returned: isize) -> Outcome {
    if returned == -1 { Err(errno()) } else { Ok(returned as usize) }
}

/// The outcome of a function that returns the error number.
pub(crate) fn nonzero(error: c_int) -> Outcome {
    if error == 0 { Ok(0) } else { Err(error) }
}

/// `pthread_create(3)`. While another thread of the process is in `execve(2)` the kernel returns `EAGAIN`
/// (`copy_fs`, for threads that would share state that the exec must not change). This tries again until that
/// thread is the only one, or has failed.
///
/// # Safety
/// That of pthread_create(3): `main` takes `argument`.
pub(crate) unsafe fn create_thread(
    handle: &mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    main: extern "C-unwind" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> Outcome {
    // SAFETY: only libc's own unwinding may pass it.
    let main: extern "C" fn(*mut c_void) -> *mut c_void = unsafe { core::mem::transmute(main) };
    let until = Instant::now() + EXEC;
    loop {
        // SAFETY: the caller keeps the contract.
        match nonzero(unsafe { libc::pthread_create(handle, attributes, main, argument) }) {
            Err(libc::EAGAIN) if Instant::now() < until => std::thread::yield_now(),
            outcome => return outcome,
        }
    }
}

macro_rules! calls {
    ($($name:ident($($arg:ident: $type:ty),*) => $call:expr;)+) => {$(
        pub(crate) fn $name($($arg: $type),*) -> Outcome {
            // SAFETY: see the module.
            outcome(unsafe { $call } as isize)
        }
    )+};
}

fn pointer(addr: usize) -> *mut c_void {
    addr as *mut c_void
}

fn vector(addr: usize, len: usize) -> libc::iovec {
    libc::iovec { iov_base: pointer(addr), iov_len: len }
}

calls! {
    mmap(addr: usize, len: usize, prot: c_int, flags: c_int) =>
        libc::mmap(pointer(addr), len, prot, flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
    munmap(addr: usize, len: usize) => libc::munmap(pointer(addr), len);
    mprotect(addr: usize, len: usize, prot: c_int) => libc::mprotect(pointer(addr), len, prot);
    madvise(addr: usize, len: usize, advice: c_int) => libc::madvise(pointer(addr), len, advice);
    mlock(addr: usize, len: usize) => libc::mlock(pointer(addr), len);
    munlock(addr: usize, len: usize) => libc::munlock(pointer(addr), len);
    mremap(addr: usize, len: usize, new: usize, flags: c_int, to: usize) =>
        libc::mremap(pointer(addr), len, new, flags, pointer(to));
    write(fd: c_int, addr: usize, len: usize) => libc::write(fd, pointer(addr), len);
    read(fd: c_int, addr: usize, len: usize) => libc::read(fd, pointer(addr), len);
    pwrite(fd: c_int, addr: usize, len: usize, at: usize) =>
        libc::pwrite(fd, pointer(addr), len, at as i64);
    pread(fd: c_int, addr: usize, len: usize, at: usize) =>
        libc::pread(fd, pointer(addr), len, at as i64);
    writev(fd: c_int, addr: usize, len: usize) => {
        let halves = [vector(addr, len / 2), vector(addr + len / 2, len - len / 2)];
        libc::writev(fd, halves.as_ptr(), 2)
    };
    readv(fd: c_int, addr: usize, len: usize) => {
        let halves = [vector(addr, len / 2), vector(addr + len / 2, len - len / 2)];
        libc::readv(fd, halves.as_ptr(), 2)
    };
    vmsplice(pipe: c_int, addr: usize, len: usize) =>
        libc::vmsplice(pipe, &vector(addr, len), 1, libc::SPLICE_F_GIFT | libc::SPLICE_F_NONBLOCK);
    send_lent(socket: c_int, addr: usize, len: usize) =>
        libc::send(socket, pointer(addr), len, libc::MSG_ZEROCOPY | libc::MSG_DONTWAIT);
    set_option(socket: c_int, option: c_int, value: c_int) => {
        let (at, len) = ((&raw const value).cast(), size_of::<c_int>());
        libc::setsockopt(socket, libc::SOL_SOCKET, option, at, len as libc::socklen_t)
    };
    process_vm_readv(pid: i32, to: usize, from: usize, len: usize) =>
        libc::process_vm_readv(pid, &vector(to, len), 1, &vector(from, len), 1, 0);
    process_vm_writev(pid: i32, from: usize, to: usize, len: usize) =>
        libc::process_vm_writev(pid, &vector(from, len), 1, &vector(to, len), 1, 0);
    fork() => libc::fork();
    under_fork() => _Fork();
    fork_by_syscall() => libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0);
    kill(pid: i32) => libc::kill(pid, libc::SIGKILL);
    close(fd: c_int) => libc::close(fd);
    close_range(first: libc::c_uint, flags: c_int) => libc::close_range(first, libc::c_uint::MAX, flags);
    unshare(flags: c_int) => libc::unshare(flags);
    no_new_privileges() => libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    same_users() => libc::setresuid(libc::uid_t::MAX, libc::uid_t::MAX, libc::uid_t::MAX);
    same_users_of_thread() => libc::syscall(libc::SYS_setresuid, -1, -1, -1);
    shmget(len: usize) => libc::shmget(libc::IPC_PRIVATE, len, libc::IPC_CREAT | 0o600);
    shmat(id: c_int, addr: usize, flags: c_int) => libc::shmat(id, pointer(addr), flags);
    shmdt(addr: usize) => libc::shmdt(pointer(addr));
    shm_remove(id: c_int) => libc::shmctl(id, libc::IPC_RMID, null_mut());
    process_madvise(addr: usize, len: usize, advice: c_int) => {
        let fd = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) as c_int;
        let done = libc::syscall(libc::SYS_process_madvise, fd, &vector(addr, len), 1, advice, 0);
        let error = errno();
        if fd >= 0 {
            libc::close(fd);
        }
        *libc::__errno_location() = error;
        done
    };
    wake_op(at: usize, other: usize, op: c_int) => {
        let how = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
        libc::syscall(libc::SYS_futex, at, how, 1, 1_usize, other, op)
    };
    futex(at: usize, op: c_int, value: u32) =>
        libc::syscall(libc::SYS_futex, at, op, value, null_mut::<libc::timespec>(), 0, 0);
}

unsafe extern "C" {
    fn _Fork() -> c_int;
}

pub(crate) fn pid() -> i32 {
    // SAFETY: it takes no arguments.
    unsafe { libc::getpid() }
}

pub(crate) fn parent() -> i32 {
    // SAFETY: it takes no arguments.
    unsafe { libc::getppid() }
}

pub(crate) fn thread_id() -> u32 {
    // SAFETY: it takes no arguments.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Ends the process at once, like a kill, but with a status.
pub(crate) fn leave(status: c_int) -> ! {
    // SAFETY: it runs no handlers.
    unsafe { libc::_exit(status) }
}

/// Makes the kernel kill this process when the parent's thread that made it ends; leaves if the parent has
/// already ended.
pub(crate) fn die_with_parent(parent: i32) {
    // SAFETY: the arguments are numbers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    if self::parent() != parent {
        leave(0);
    }
}

/// Ends only the thread, without libc.
pub(crate) fn exit_thread() -> ! {
    // SAFETY: the thread's values were given up, or are leaked.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    leave(0)
}

/// Sleeps for the whole time, regardless of signals.
pub(crate) fn pause(ms: usize) {
    std::thread::sleep(std::time::Duration::from_millis(ms as u64));
}

/// The wait status of a child that has ended.
pub(crate) fn wait(pid: i32) -> Result<c_int, c_int> {
    loop {
        let mut status = 0;
        // SAFETY: the pointer is to `status`.
        match unsafe { libc::waitpid(pid, &mut status, 0) } {
            -1 if errno() == libc::EINTR => {}
            -1 => return Err(errno()),
            _ => return Ok(status),
        }
    }
}

/// Opens a file, with `O_CLOEXEC`.
pub(crate) fn open(path: &str, flags: c_int) -> Result<c_int, c_int> {
    let path = std::ffi::CString::new(path).expect("a path has no zero");
    // SAFETY: the string ends with a zero.
    let fd = unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, 0o666) };
    outcome(fd as isize).map(|fd| fd as c_int)
}

/// Both ends of a pipe or of a pair of sockets: the first reads what the second writes.
pub(crate) fn channel(is_socket: bool) -> Result<[c_int; 2], c_int> {
    let mut ends = [0; 2];
    // SAFETY: there is room for both.
    let made = unsafe {
        if is_socket {
            libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr())
        } else {
            libc::pipe(ends.as_mut_ptr())
        }
    };
    outcome(made as isize).map(|_| ends)
}
