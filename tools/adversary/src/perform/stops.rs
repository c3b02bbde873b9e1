//! A stop of all threads, as by a debugger or a collector (`ptrace(2)`), and a read of the stopped memory.
#![allow(unsafe_code)]

use core::ffi::c_void;
use core::ptr::{null, null_mut};
use core::sync::atomic::Ordering::Relaxed;
use std::ffi::CString;
use std::time::{Duration, Instant};

use super::{Me, SKIP};
use crate::model::Page;
use crate::program::Call;
use crate::shared::shared;
use crate::sys;
use crate::words::PAGE;

/// Status of a stopper that may not trace the process.
pub(crate) const REFUSED: u8 = 3;

/// A thread that waits in the kernel for a child of `vfork(2)` does not stop before that ends.
const LONGEST_STOP: Duration = Duration::from_secs(1);

impl Me {
    /// Has another program stop all threads of this process, read pages that must be readable, and let go.
    pub(super) fn stop(&mut self, call: &Call) -> Option<()> {
        if !self.may_open {
            return SKIP;
        }
        let region = self.region(call.number(0))?;
        let span = region.span(call.number(1), call.number(2), Page::readable)?;
        if !region.pages[span.start].readable() {
            return SKIP;
        }
        let (at, len) = (region.at(span.start), span.len() * PAGE);
        let words = [sys::pid() as usize, at, len].map(|number| number.to_string());
        let words = ["adversary", "stopper"].into_iter().chain(words.iter().map(String::as_str));
        let words: Vec<CString> = words.map(|word| CString::new(word).expect("no zero")).collect();
        let mut arguments: Vec<*const libc::c_char> =
            words.iter().map(|word| word.as_ptr()).collect();
        arguments.push(null());
        let (mut pid, path) = (0, c"/proc/self/exe");
        // SAFETY: strings and a list that end with a zero.
        let error = unsafe {
            let arguments = arguments.as_ptr().cast();
            libc::posix_spawn(&mut pid, path.as_ptr(), null(), null(), arguments, libc::environ)
        };
        if let Err(errno) = sys::nonzero(error) {
            self.fail(&format!("spawn: errno {errno}"));
        }
        match sys::wait(pid) {
            Ok(0) => Some(()),
            Ok(status) if status == i32::from(REFUSED) << 8 => {
                shared().totals.refused.fetch_add(1, Relaxed);
                SKIP
            }
            other => self.fail(&format!("a read while all threads are stopped: status {other:?}")),
        }
    }
}

fn ptrace(request: u32, thread: i32) -> sys::Outcome {
    // SAFETY: no request here takes an address or data.
    let answer =
        unsafe { libc::ptrace(request, thread, null_mut::<c_void>(), null_mut::<c_void>()) };
    if answer == -1 { Err(sys::errno()) } else { Ok(0) }
}

fn has_stopped(thread: i32) -> bool {
    // SAFETY: the pointer is null, so no status is written.
    unsafe { libc::waitpid(thread, null_mut(), libc::__WALL | libc::WNOHANG) != 0 }
}

/// The stopper: returns its status. Another process may kill its parent meanwhile: then nothing is wrong.
pub(crate) fn stopper(pid: i32, at: usize, len: usize) -> u8 {
    let status = stop_and_read(pid, at, len);
    let until = Instant::now() + LONGEST_STOP;
    // The memory of a process ends before its children have another parent.
    while status != 0 && sys::parent() == pid && Instant::now() < until {
        sys::pause(10);
    }
    if sys::parent() == pid { status } else { 0 }
}

fn stop_and_read(pid: i32, at: usize, len: usize) -> u8 {
    let mut threads: Vec<i32> = Vec::new();
    let until = Instant::now() + LONGEST_STOP;
    loop {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let tasks = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
        let new: Vec<i32> = tasks.filter(|task| !threads.contains(task)).collect();
        if new.is_empty() {
            break;
        }
        for thread in new {
            match ptrace(libc::PTRACE_SEIZE, thread) {
                Ok(_) => _ = ptrace(libc::PTRACE_INTERRUPT, thread),
                Err(libc::EPERM) => return REFUSED,
                // It has ended.
                Err(_) => {}
            }
            threads.push(thread);
        }
    }
    let mut running = threads.clone();
    while !running.is_empty() && Instant::now() < until {
        running.retain(|thread| !has_stopped(*thread));
        std::thread::yield_now();
    }
    let mut bytes = vec![0_u8; len];
    let read = sys::process_vm_readv(pid, bytes.as_mut_ptr() as usize, at, len);
    threads.iter().for_each(|thread| _ = ptrace(libc::PTRACE_DETACH, *thread));
    match read {
        Ok(read) if read == len => 0,
        Err(libc::EPERM) => REFUSED,
        _ => 1,
    }
}
