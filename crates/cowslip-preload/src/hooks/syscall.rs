//! `syscall(2)`: calls by number are checked like the functions of those names.
//!
//! Numbers that concern nothing here pass without a frame of ours, and so do those that start a thread or a child which
//! shares this memory (`CLONE_VM`): such a child returns on the caller's stack.
//!
//! # Safety
//! See [`crate::hooks`]; arguments are those that the program would have passed to libc's function of that name.
//! (Calls are checked on x86-64 only.)
#![cfg(target_arch = "x86_64")]

use core::ffi::{c_int, c_long, c_uint, c_ulong, c_void};

use cowslip_sys::passthrough;
use cowslip_sys::process::BlockedSignals;

use crate::arena::kernel_access;
use crate::arena::mapping::PLACED;
use crate::arena::registry::arena_part;
use crate::arena::setup_state::is_closed;
use crate::hooks::{
    clone, credentials, descriptors, direct_io, futex, io_uring, lent_pages, libaio, madvise,
    mlock, mmap, mprotect, mremap, munmap, open, prctl, proc_mem, pthread, rlimit, seccomp, shmat,
    unshare, userfaultfd, xdp,
};

const SYS_MSEAL: c_long = 462;

/// [`handle`] checks it.
const HANDLED: u8 = 1;
/// It may be a fork: [`clone`].
const FORKS: u8 = 2;

const NUMBERS: usize = 512;

static KINDS: [u8; NUMBERS] = {
    let mut kinds = [0; NUMBERS];
    let handled = [
        libc::SYS_read,
        libc::SYS_pread64,
        libc::SYS_readv,
        libc::SYS_preadv,
        libc::SYS_preadv2,
        libc::SYS_pwrite64,
        libc::SYS_pwritev,
        libc::SYS_pwritev2,
        libc::SYS_lseek,
        libc::SYS_open,
        libc::SYS_openat,
        libc::SYS_openat2,
        libc::SYS_open_by_handle_at,
        libc::SYS_pidfd_getfd,
        libc::SYS_recvmsg,
        libc::SYS_recvmmsg,
        libc::SYS_vmsplice,
        libc::SYS_sendto,
        libc::SYS_sendmsg,
        libc::SYS_sendmmsg,
        libc::SYS_process_vm_writev,
        libc::SYS_fcntl,
        libc::SYS_ioctl,
        libc::SYS_io_setup,
        libc::SYS_io_submit,
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
        libc::SYS_setsockopt,
        libc::SYS_shmat,
        libc::SYS_process_madvise,
        libc::SYS_creat,
        libc::SYS_dup,
        libc::SYS_futex,
        futex::SYS_FUTEX_WAITV,
        futex::SYS_FUTEX_WAIT,
        futex::SYS_FUTEX_REQUEUE,
        libc::SYS_set_tid_address,
        libc::SYS_set_robust_list,
        libc::SYS_rseq,
        libc::SYS_mmap,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_mprotect,
        libc::SYS_pkey_mprotect,
        libc::SYS_madvise,
        libc::SYS_mlock,
        libc::SYS_mlock2,
        libc::SYS_munlock,
        libc::SYS_mlockall,
        libc::SYS_remap_file_pages,
        SYS_MSEAL,
        libc::SYS_close,
        libc::SYS_close_range,
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_setuid,
        libc::SYS_setgid,
        libc::SYS_setreuid,
        libc::SYS_setregid,
        libc::SYS_setresuid,
        libc::SYS_setresgid,
        libc::SYS_setfsuid,
        libc::SYS_setfsgid,
        libc::SYS_setgroups,
        libc::SYS_capset,
        libc::SYS_landlock_restrict_self,
        libc::SYS_exit,
        libc::SYS_dup2,
        libc::SYS_dup3,
        libc::SYS_prctl,
        libc::SYS_seccomp,
        libc::SYS_setrlimit,
        libc::SYS_prlimit64,
    ];
    let mut i = 0;
    while i < handled.len() {
        kinds[handled[i] as usize] = HANDLED;
        i += 1;
    }
    kinds[libc::SYS_fork as usize] = FORKS;
    kinds[libc::SYS_clone as usize] = FORKS;
    kinds[libc::SYS_clone3 as usize] = FORKS;
    kinds
};

#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall() {
    core::arch::naked_asm!(
        "cmp rdi, {numbers}",
        "jae {other}",
        "lea rax, [rip + {kinds}]",
        "movzx eax, byte ptr [rax + rdi]",
        "test eax, eax",
        "jz {other}",
        "cmp eax, {handled}",
        "je {handle}",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 8",
        "call {is_fork}",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test al, al",
        "jnz {forking}",
        "jmp {other}",
        numbers = const NUMBERS,
        handled = const HANDLED,
        kinds = sym KINDS,
        handle = sym handle,
        is_fork = sym clone::is_fork,
        forking = sym clone::forking_call,
        other = sym passthrough::syscall,
    )
}

/// Handles a call of kind [`HANDLED`].
unsafe extern "C-unwind" fn handle(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let at = a as *mut c_void;
    let (len, int) = (b as usize, |value: c_long| value as c_int);
    // SAFETY: each function takes what the call of that number takes; the call is the program's own.
    unsafe {
        match number {
            libc::SYS_mmap => {
                return mmap_by_number(at, len, int(c), int(d), int(e), f) as c_long;
            }
            libc::SYS_munmap => return munmap::munmap(at, len).into(),
            libc::SYS_mprotect => return mprotect::mprotect(at, len, int(c)).into(),
            libc::SYS_mremap => {
                return mremap::mremap(at, len, c as usize, int(d), e as *mut c_void) as c_long;
            }
            libc::SYS_pkey_mprotect => {
                return mprotect::pkey_mprotect(at, len, int(c), int(d)).into();
            }
            libc::SYS_madvise => return madvise::madvise(at, len, int(c)).into(),
            libc::SYS_shmat => {
                return shmat::shmat(int(a), b as *const c_void, int(c)) as c_long;
            }
            libc::SYS_process_madvise => {
                let (vectors, advice) = (b as *const libc::iovec, int(d));
                return madvise::process_madvise(int(a), vectors, c as usize, advice, e as c_uint)
                    as c_long;
            }
            libc::SYS_mlock => return mlock::mlock(at, len).into(),
            libc::SYS_mlock2 => return mlock::mlock2(at, len, c as c_uint).into(),
            libc::SYS_munlock => return mlock::munlock(at, len).into(),
            libc::SYS_mlockall => return mlock::mlockall(int(a)).into(),
            libc::SYS_remap_file_pages => {
                return mremap::remap_file_pages(at, len, int(c), d as usize, int(e)).into();
            }
            SYS_MSEAL => return mprotect::mseal(at, len, c as c_ulong).into(),
            libc::SYS_close => return descriptors::close(int(a)).into(),
            libc::SYS_close_range => {
                return descriptors::close_range(a as c_uint, b as c_uint, int(c)).into();
            }
            libc::SYS_unshare => return unshare::unshare(int(a)).into(),
            libc::SYS_dup2 => return descriptors::dup2(int(a), int(b)).into(),
            libc::SYS_dup3 => return descriptors::dup3(int(a), int(b), int(c)).into(),
            libc::SYS_prctl => {
                return prctl::prctl(int(a), len, c as usize, d as usize, e as usize).into();
            }
            libc::SYS_setns
            | libc::SYS_setuid
            | libc::SYS_setgid
            | libc::SYS_setreuid
            | libc::SYS_setregid
            | libc::SYS_setresuid
            | libc::SYS_setresgid
            | libc::SYS_setfsuid
            | libc::SYS_setfsgid
            | libc::SYS_setgroups
            | libc::SYS_capset
            | libc::SYS_landlock_restrict_self => {
                return credentials::change(|| passthrough::syscall(number, a, b, c, d, e, f));
            }
            libc::SYS_exit => pthread::before_exit(),
            libc::SYS_seccomp => seccomp::before(a, c as usize),
            libc::SYS_ioctl => return userfaultfd::ioctl(int(a), b as c_ulong, c as usize).into(),
            libc::SYS_setrlimit => {
                return rlimit::setrlimit(a as c_uint, b as *const c_void).into();
            }
            libc::SYS_prlimit64 => {
                let (new, old) = (c as *const c_void, d as *mut c_void);
                return rlimit::prlimit(int(a), b as c_uint, new, old).into();
            }
            libc::SYS_io_setup => kernel_access::note_aio(),
            libc::SYS_io_submit => libaio::before_submit(b, c as usize),
            libc::SYS_setsockopt => xdp::before_option(int(b), int(c), d as usize),
            // This includes a ring that arrived in a message.
            libc::SYS_io_uring_setup | libc::SYS_io_uring_enter | libc::SYS_io_uring_register => {
                if !is_closed()
                    && let Err(errno) = io_uring::before_ring()
                {
                    BlockedSignals::enter().set_errno(errno);
                    return -1;
                }
            }
            libc::SYS_vmsplice | libc::SYS_sendto | libc::SYS_sendmsg | libc::SYS_sendmmsg => {
                lent_pages::before_call(number, [b, c, d]);
            }
            libc::SYS_process_vm_writev => {
                proc_mem::before_write(int(a), d as usize, e as usize);
            }
            libc::SYS_futex
            | futex::SYS_FUTEX_WAITV
            | futex::SYS_FUTEX_WAIT
            | futex::SYS_FUTEX_REQUEUE
            | libc::SYS_set_tid_address
            | libc::SYS_set_robust_list
            | libc::SYS_rseq => futex::before_call(number, [a, b, c, d, e]),
            _ => {
                proc_mem::before_call(number, b, c, d);
                open::before_call(number, b, c);
                direct_io::before_call(number, a, b, c);
            }
        }
        passthrough::syscall(number, a, b, c, d, e, f)
    }
}

/// `mmap` by `syscall(2)`: new memory is the kernel's, because the caller may be an allocator that must not be helped.
unsafe fn mmap_by_number(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the program's own call.
    unsafe {
        if flags & PLACED != 0 && arena_part(addr as usize, len).is_some() {
            mmap::mmap(addr, len, prot, flags, fd, offset)
        } else {
            passthrough::mmap(addr, len, prot, flags, fd, offset)
        }
    }
}
