//! Signals, handled on a stack in the program's memory, and fatal signals.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::mem::zeroed;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, Ordering};

use super::threads::STACK;
use super::{FAILED, Me};
use crate::program::Call;
use crate::shared::shared;
use crate::sys;

/// Makes fatal signals report themselves.
pub(super) fn catch_crashes() {
    extern "C" fn crashed(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the arguments are the kernel's, for this handler.
        if unsafe { super::traps::is_trap(signal, info, context) } {
            return;
        }
        // SAFETY: `info` is the kernel's, for this handler.
        let at = unsafe { (*info).si_addr() };
        let tid = sys::thread_id();
        let places = shared().places();
        let place =
            places.iter().find(|place| place.3 == tid).map(|place| (place.0, place.1, place.2));
        shared().fail(&format!("signal {signal} at {at:?} in (process, thread, call) {place:?}"));
        sys::leave(FAILED)
    }
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL] {
        // SAFETY: all zeroes are a valid action; the handler has the signature for `SA_SIGINFO`.
        unsafe {
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = crashed as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
            libc::sigaction(signal, &action, null_mut());
        }
    }
}

/// A timer of a thread, and the stack on which its signals are handled.
pub(crate) struct Signals {
    timer: c_int,
    stack: usize,
}

static HANDLED: AtomicU32 = AtomicU32::new(0);

impl Me {
    /// Interrupts this thread at this interval in milliseconds; 0 stops that.
    pub(super) fn signals(&mut self, call: &Call) -> Option<()> {
        extern "C" fn handled(_: c_int) {
            // Use some of the stack.
            let used = [HANDLED.load(Ordering::Relaxed); 256];
            HANDLED.store(core::hint::black_box(used)[7].wrapping_add(1), Ordering::Relaxed);
        }
        self.stop_signals();
        let every = call.number(0) as i64;
        if every == 0 {
            return Some(());
        }
        let stack = sys::mmap(0, STACK, libc::PROT_READ | libc::PROT_WRITE, 0);
        let stack = stack.unwrap_or_else(|errno| self.fail(&format!("mmap: errno {errno}")));
        let mut timer: c_int = 0;
        // SAFETY: all zeroes are valid values of these types; the stack stays mapped until `stop_signals`.
        unsafe {
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = handled as *const () as usize;
            action.sa_flags = libc::SA_ONSTACK | libc::SA_RESTART;
            libc::sigaction(libc::SIGUSR1, &action, null_mut());
            let place = libc::stack_t { ss_sp: stack as *mut c_void, ss_flags: 0, ss_size: STACK };
            libc::sigaltstack(&place, null_mut());
            let mut event: libc::sigevent = zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = libc::SIGUSR1;
            event.sigev_notify_thread_id = sys::thread_id() as c_int;
            let clock = libc::CLOCK_MONOTONIC;
            if libc::syscall(libc::SYS_timer_create, clock, &event, &mut timer) != 0 {
                self.fail(&format!("timer_create: errno {}", sys::errno()));
            }
            let every = libc::timespec { tv_sec: 0, tv_nsec: every * 1_000_000 };
            let spec = libc::itimerspec { it_interval: every, it_value: every };
            let none = null_mut::<libc::itimerspec>();
            libc::syscall(libc::SYS_timer_settime, timer, 0, &spec, none);
        }
        self.signals = Some(Signals { timer, stack });
        Some(())
    }

    pub(super) fn stop_signals(&mut self) {
        let Some(Signals { timer, stack }) = self.signals.take() else { return };
        // SAFETY: the timer belongs to this thread; the stack is not in use, as this is not a handler.
        unsafe {
            libc::syscall(libc::SYS_timer_delete, timer);
            let mut none: libc::stack_t = zeroed();
            none.ss_flags = libc::SS_DISABLE;
            libc::sigaltstack(&none, null_mut());
        }
        self.expect("munmap", sys::munmap(stack, STACK), Ok(0));
    }
}
