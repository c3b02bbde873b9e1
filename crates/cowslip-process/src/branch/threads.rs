//! The threads of a copy: the state of the instant, by their numbers of the instant.

use cowslip_sys::ptrace::{Registers, SignalInfo, Tracee};
use cowslip_sys::{Errno, OwnedFd, Result};
use libc::{
    CLONE_FILES, CLONE_FS, CLONE_SETTLS, CLONE_SIGHAND, CLONE_SYSVSEM, CLONE_THREAD, CLONE_VM,
    PR_SET_NAME, SIGSTOP, SS_DISABLE, SYS_clone3, SYS_prctl, SYS_rseq, SYS_rt_sigqueueinfo,
    SYS_rt_tgsigqueueinfo, SYS_set_robust_list, SYS_set_tid_address, SYS_sigaltstack,
};

use super::caller::Caller;
use super::chain::{self, Call, Chains};
use crate::thread::ThreadState;

/// Starts a task with a number of its own choice (`clone3(2)`), which is stopped.
pub(super) fn start(caller: &mut Caller<'_>, flags: u64, number: i32, tls: u64) -> Result<Tracee> {
    let place = caller.put(CLONE_ARGUMENTS_BYTES as usize, &number.to_ne_bytes())?;
    let arguments = caller.put_words(0, &clone_arguments(flags, place, tls))?;
    caller.start(SYS_clone3, &[arguments, CLONE_ARGUMENTS_BYTES])
}

pub(crate) const CLONE_ARGUMENTS_BYTES: u64 = 88;

/// `struct clone_args`: flags, a pidfd, the two places of the number, the exit signal, a stack and its length, the thread-local
/// storage, the numbers by namespace and their count, a control group.
fn clone_arguments(flags: u64, number: u64, tls: u64) -> [u64; 11] {
    [flags, 0, 0, 0, 0, 0, 0, tls, number, 1, 0]
}

/// The flags of a new thread.
const THREAD: i32 =
    CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS;

/// Starts the thread, by a call of the main thread.
pub(super) fn start_thread(main: &mut Caller<'_>, thread: &ThreadState) -> Result<Tracee> {
    start(main, THREAD as u64, thread.id, thread.registers.fs_base)
}

/// The arguments of the call that starts the thread, by the place of its number and the end of its stack. If it is let go before
/// it is equipped, its end writes nowhere.
pub(crate) fn arguments_to_start(thread: &ThreadState, number: u64, stack_end: u64) -> [u64; 11] {
    const STACK_BYTES: u64 = 64;
    let mut arguments = clone_arguments(THREAD as u64, number, thread.registers.fs_base);
    arguments[5..7].copy_from_slice(&[stack_end - STACK_BYTES, STACK_BYTES]);
    arguments
}

/// The call that starts the thread.
pub(super) fn call_to_start(chains: &mut Chains, thread: &ThreadState) -> Call {
    let number = chains.put(&thread.id.to_ne_bytes());
    let arguments = clone_arguments(THREAD as u64, number, thread.registers.fs_base);
    (SYS_clone3, [chains.put_words(&arguments), CLONE_ARGUMENTS_BYTES, 0, 0, 0, 0])
}

/// Gives stopped threads the state for which only they themselves can ask, all at the same time.
pub(crate) fn equip(
    chains: &mut Chains,
    memory: &OwnedFd,
    tasks: &mut [Tracee],
    states: &[&ThreadState],
) -> Result<()> {
    let mut firsts = Vec::new();
    for state in states {
        let calls = calls_to_equip(chains, state)?;
        firsts.push(chains.add(state.id, &calls));
    }
    chains.write(memory)?;
    for (task, registers) in tasks.iter_mut().zip(&firsts) {
        chain::begin(task, registers)?;
    }
    for (task, state) in tasks.iter_mut().zip(states) {
        chain::finish(task)?;
        check(task, state)?;
    }
    Ok(())
}

/// The calls by which a thread gets the state for which only the thread itself can ask the kernel. They get
/// values that the kernel gave, and do not fail, but for the call that [`check`] is about.
fn calls_to_equip(chains: &mut Chains, thread: &ThreadState) -> Result<Vec<Call>> {
    let mut calls = vec![(SYS_set_tid_address, [thread.clear_tid, 0, 0, 0, 0, 0])];
    let (list, len) = thread.robust_list;
    if list != 0 {
        calls.push((SYS_set_robust_list, [list, len, 0, 0, 0, 0]));
    }
    if let Some((address, length, signature)) = thread.rseq {
        calls.push((SYS_rseq, [address, length.into(), 0, signature.into(), 0, 0]));
    }
    let stack = thread.alternate_stack.ok_or(Errno::NODATA)?;
    if stack.flags & SS_DISABLE as u32 == 0 {
        /// The kernel reports it, and does not take it.
        const ON_STACK: u32 = 1;
        let flags = u64::from(stack.flags & !ON_STACK);
        let place = chains.put_words(&[stack.start, flags, stack.bytes]);
        calls.push((SYS_sigaltstack, [place, 0, 0, 0, 0, 0]));
    }
    let name = chains.put(&[thread.name.as_bytes(), b"\0"].concat());
    calls.push((SYS_prctl, [PR_SET_NAME as u64, name, 0, 0, 0, 0]));
    Ok(calls)
}

/// Fails unless a thread's restartable sequences are registered.
fn check(tracee: &Tracee, thread: &ThreadState) -> Result<()> {
    let is_equipped = thread.rseq.is_none() || tracee.rseq()? == thread.rseq;
    if is_equipped { Ok(()) } else { Err(Errno::INVAL) }
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
pub(crate) fn schedule(tracee: &Tracee, thread: &ThreadState) {
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
