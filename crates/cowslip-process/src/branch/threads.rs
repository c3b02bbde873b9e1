//! The threads of a copy: the state of the instant, by their numbers of the instant.

use cowslip_sys::ptrace::{Registers, SignalInfo, Tracee};
use cowslip_sys::{Errno, Result};
use libc::{
    CLONE_CHILD_CLEARTID, CLONE_FILES, CLONE_FS, CLONE_SETTLS, CLONE_SIGHAND, CLONE_SYSVSEM,
    CLONE_THREAD, CLONE_VM, PR_SET_NAME, SIGSTOP, SS_DISABLE, SYS_clone3, SYS_prctl, SYS_rseq,
    SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_set_robust_list, SYS_set_tid_address,
    SYS_sigaltstack,
};

use super::caller::Caller;
use crate::thread::ThreadState;

/// Starts a task with a number of its own choice (`clone3(2)`), which is stopped.
pub(super) fn start(
    caller: &mut Caller<'_>,
    flags: u64,
    number: i32,
    clear_tid: u64,
    tls: u64,
) -> Result<Tracee> {
    /// The length of `struct clone_args`.
    const BYTES: usize = 88;
    let place = caller.put(BYTES, &number.to_ne_bytes())?;
    // Flags, a pidfd, the two places of the number, the exit signal, a stack and its length, the thread-local storage,
    // the numbers by namespace and their count, a control group.
    let arguments = caller.put_words(0, &[flags, 0, clear_tid, 0, 0, 0, 0, tls, place, 1, 0])?;
    caller.start(SYS_clone3, &[arguments, BYTES as u64])
}

/// Starts the thread, by calls of the main thread.
pub(super) fn start_thread(main: &mut Caller<'_>, thread: &ThreadState) -> Result<Tracee> {
    const SHARED: i32 = CLONE_VM
        | CLONE_FS
        | CLONE_FILES
        | CLONE_SIGHAND
        | CLONE_THREAD
        | CLONE_SYSVSEM
        | CLONE_SETTLS;
    let clears = if thread.clear_tid == 0 { 0 } else { CLONE_CHILD_CLEARTID };
    let flags = (SHARED | clears) as u64;
    start(main, flags, thread.id, thread.clear_tid, thread.registers.fs_base)
}

/// Gives a thread, the main one too, the state for which only the thread itself can ask the kernel. Its registers follow.
pub(super) fn equip(caller: &mut Caller<'_>, thread: &ThreadState, is_main: bool) -> Result<()> {
    if is_main {
        caller.call(SYS_set_tid_address, &[thread.clear_tid])?;
    }
    let (list, len) = thread.robust_list;
    if list != 0 {
        caller.call(SYS_set_robust_list, &[list, len])?;
    }
    if let Some((address, length, signature)) = thread.rseq {
        caller.call(SYS_rseq, &[address, length.into(), 0, signature.into()])?;
    }
    let stack = thread.alternate_stack.ok_or(Errno::NODATA)?;
    if stack.flags & SS_DISABLE as u32 == 0 {
        /// The kernel reports it, and does not take it.
        const ON_STACK: u32 = 1;
        let flags = u64::from(stack.flags & !ON_STACK);
        let place = caller.put_words(0, &[stack.start, flags, stack.bytes])?;
        caller.call(SYS_sigaltstack, &[place, 0])?;
    }
    let name = [thread.name.as_bytes(), b"\0"].concat();
    let place = caller.put(0, &name)?;
    caller.call(SYS_prctl, &[PR_SET_NAME as u64, place])?;
    Ok(())
}

/// Has signals wait for the process, or for one thread of it. They may be refused for their number (`RLIMIT_SIGPENDING`).
pub(super) fn queue(
    caller: &mut Caller<'_>,
    signals: &[SignalInfo],
    process: i32,
    thread: Option<i32>,
) -> Result<()> {
    // One that stops would stop the copy before it runs.
    for signal in signals.iter().filter(|signal| signal.number() != SIGSTOP) {
        let (number, place) = (signal.number() as u64, caller.put_words(0, &signal.0)?);
        let queued = match thread {
            Some(thread) => {
                let arguments = [process as u64, thread as u64, number, place];
                caller.call(SYS_rt_tgsigqueueinfo, &arguments)
            }
            None => caller.call(SYS_rt_sigqueueinfo, &[process as u64, number, place]),
        };
        match queued {
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Gives a thread its processors and its priority, as far as this process may: a fork has given it those of another.
pub(super) fn schedule(tracee: &Tracee, thread: &ThreadState) {
    let (processors, scheduling) = &thread.scheduling;
    let _ = processors.map(|processors| processors.assign(tracee.thread()));
    let _ = scheduling.map(|scheduling| scheduling.assign(tracee.thread()));
}

/// Sets the registers and the signal mask, with which the thread goes on.
pub(crate) fn set_state(tracee: &Tracee, thread: &ThreadState) -> Result<()> {
    tracee.set_extended_state(&thread.vectors)?;
    tracee.set_blocked_signals(thread.blocked)?;
    // No call is to be restarted: those that are to begin anew do so by their registers.
    tracee.set_registers(&Registers { orig_rax: u64::MAX, ..thread.restarted() })
}
