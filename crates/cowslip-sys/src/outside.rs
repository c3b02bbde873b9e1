#![allow(unsafe_code)]
//! Work that a stop of this process does not interrupt.
//!
//! A debugger, a profiler or a collector stops all threads of a process, and so does `SIGSTOP`: each of them stops as it
//! returns from a system call. [`run`] does its work in a task that shares this thread's memory and descriptors and is no
//! thread of this process. This thread waits for it in the kernel, as in `vfork(2)`, where no stop takes effect.
//!
//! The task is a child without an exit signal, for as long as the work takes. A program sees it if it waits for any
//! child with `__WALL` or `__WCLONE` just then (`wait(2)`).
//!
//! # Safety
//! The task has a stack of its own, and this thread's place for thread-local data, which this thread does not use until
//! the task has ended. Its work is therefore that of this thread, done elsewhere.

use core::ffi::c_void;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::failpoints::{self, Op};
use crate::process::{self, BlockedSignals};
use crate::procfs::own;
use crate::units::VirtRange;

/// Work, and its result once the task has ended.
struct Job<F, T> {
    /// The process that waits.
    pid: i32,
    work: Option<F>,
    result: Option<std::thread::Result<T>>,
}

/// Returns false if calls of such a task may be refused: a filter may pass them to the tracer of each thread
/// (`SECCOMP_RET_TRACE`), and the task has none.
pub fn is_possible() -> bool {
    const UNFILTERED: libc::c_long = 0;
    // SAFETY: prctl(2) takes no pointer here.
    let mode = unsafe { crate::passthrough::by_number()(libc::SYS_prctl, libc::PR_GET_SECCOMP) };
    mode == UNFILTERED || own::tracer_pid().is_none()
}

/// Returns true if the kernel allows this process one more task now: starts one that ends at once.
pub fn is_task_allowed() -> bool {
    extern "C" fn nothing(_: *mut c_void) {}
    let _blocked = BlockedSignals::enter();
    if !has_children_here() {
        return false;
    }
    let mut stack = [0_u128; 512];
    let stack = VirtRange::new(stack.as_mut_ptr() as usize, size_of_val(&stack));
    // SAFETY: the stack is used by nothing else until the task has ended.
    let pid = unsafe { begin(stack, nothing, core::ptr::null_mut()) };
    wait_for(pid);
    pid > 0
}

/// Waits for a task that has ended. On an error another thread has waited for it.
fn wait_for(pid: isize) {
    if pid > 0 {
        let nothing = core::ptr::null_mut::<c_void>();
        // SAFETY: wait4(2) writes nothing.
        unsafe {
            crate::passthrough::by_number()(
                libc::SYS_wait4,
                pid as i32,
                nothing,
                libc::__WALL,
                nothing,
            )
        };
    }
}

/// Does `work` in a task that no stop of this process interrupts, or in this thread if the kernel allows no further task.
/// The work neither asks for its process nor for its thread, and starts none.
///
/// # Safety
/// `stack` is writable memory that only this call uses.
pub unsafe fn run<F: FnOnce() -> T, T>(stack: VirtRange, work: F) -> T {
    // A handler would run as another process.
    let blocked = BlockedSignals::enter();
    let mut job = Job { pid: process::pid(), work: Some(work), result: None };
    let place = (&raw mut job).cast();
    let is_refused = failpoints::check(Op::TaskStart).is_err() || !has_children_here();
    // SAFETY: the caller lends the stack; `job` stays here, and is of the type that the function takes.
    let pid = if is_refused { -1 } else { unsafe { begin(stack, run_job::<F, T>, place) } };
    wait_for(pid);
    // No task was started, or it was killed before it began.
    if let Some(work) = job.work.take() {
        drop(blocked);
        return work();
    }
    drop(blocked);
    match job.result {
        Some(Ok(result)) => result,
        Some(Err(panic)) => resume_unwind(panic),
        // A signal has ended it half-way: threads would wait for ever for the rest of the work.
        None => std::process::abort(),
    }
}

/// Returns true if a child of this thread is in this process' PID namespace. The first child in a new one is its init
/// (`unshare(2)`): when that ends, the kernel allows no other child.
fn has_children_here() -> bool {
    let inode = |name| fs::metadata(name).map(|namespace| namespace.ino());
    let here = inode("/proc/thread-self/ns/pid");
    here.is_ok_and(|here| {
        inode("/proc/thread-self/ns/pid_for_children").is_ok_and(|node| node == here)
    })
}

extern "C" fn run_job<F: FnOnce() -> T, T>(job: *mut c_void) {
    // SAFETY: `run` passes a job of this type, and waits.
    let job = unsafe { &mut *job.cast::<Job<F, T>>() };
    // A stop of the process group would stop it as well. It ends with this thread: it has the descriptors of a process
    // that may be killed meanwhile, and their locks and ports.
    // SAFETY: setpgid(2), prctl(2) and getppid(2) take no pointer here.
    let parent = unsafe {
        crate::passthrough::by_number()(libc::SYS_setpgid, 0, 0);
        let signal = libc::SIGKILL as libc::c_ulong;
        crate::passthrough::by_number()(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, signal);
        crate::passthrough::by_number()(libc::SYS_getppid)
    };
    // The signal does not come if it has ended already.
    if parent == libc::c_long::from(job.pid)
        && let Some(work) = job.work.take()
    {
        job.result = Some(catch_unwind(AssertUnwindSafe(work)));
    }
}

/// Starts the task, and returns its number when it has ended; an error is negative.
///
/// # Safety
/// As for [`run`]; `entry` may be called with `job`.
#[cfg(target_arch = "x86_64")]
unsafe fn begin(stack: VirtRange, entry: extern "C" fn(*mut c_void), job: *mut c_void) -> isize {
    let flags = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_VFORK | libc::CLONE_UNTRACED;
    let top = stack.end() & !15;
    let answer: isize;
    // SAFETY: the task has the registers of this thread but for its stack, calls `entry`, and ends. It returns nowhere:
    // the tables for unwinding say so, or a backtrace in `entry` would read past the stack.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, {job}",
            ".cfi_remember_state",
            ".cfi_undefined rip",
            "call {entry}",
            "xor edi, edi",
            "mov eax, {exit}",
            "syscall",
            "ud2",
            ".cfi_restore_state",
            "2:",
            job = in(reg) job,
            entry = in(reg) entry,
            exit = const libc::SYS_exit,
            inout("rax") libc::SYS_clone as isize => answer,
            in("rdi") flags as isize,
            in("rsi") top,
            in("rdx") 0,
            in("r10") 0,
            in("r8") 0,
            out("rcx") _,
            out("r11") _,
        );
    }
    answer
}

/// No task can be started here.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn begin(_: VirtRange, _: extern "C" fn(*mut c_void), _: *mut c_void) -> isize {
    -1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_outside_with_the_memory_and_the_panics_of_this_thread() {
        let mut stack = vec![0u128; 16 << 10];
        let stack = VirtRange::new(stack.as_mut_ptr() as usize, 256 << 10);
        assert!(is_task_allowed());
        let here = (process::pid(), process::thread_id());
        let mut seen = Vec::new();
        for i in 0..100 {
            // SAFETY: the vector is used by nothing else.
            let there = unsafe {
                run(stack, || {
                    seen.push(vec![i; 100]);
                    (process::pid(), process::thread_id())
                })
            };
            assert!(there.0 == there.1 && there.0 != here.0, "{there:?} {here:?}");
        }
        assert!(seen.iter().enumerate().all(|(i, item)| *item == [i; 100]));
        assert_eq!((process::pid(), process::thread_id()), here);
        // SAFETY: as above.
        let panics = catch_unwind(|| unsafe { run(stack, || panic!("outside")) });
        assert_eq!(panics.unwrap_err().downcast_ref::<&str>(), Some(&"outside"));
    }
}
