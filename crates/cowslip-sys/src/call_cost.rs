//! The cost of a system call and of a context switch on this machine now.

use std::thread;

use rustix::io::{read, write};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::time::{ClockId, clock_gettime};

use crate::process::now_ns;
use crate::{OwnedFd, Result};

/// Calls in each measurement; the median of several counts.
const CALLS: u32 = 500;
const MEASUREMENTS: usize = 7;
/// Turns of two threads, which end early on a machine that does much else.
const TURNS: u32 = 200;
const LONGEST_NS: u64 = 10_000_000;

/// Nanoseconds of a short system call: a byte is read from a pipe or written to it.
pub fn call_ns() -> Result<f64> {
    let (from, to) = pipe_with(PipeFlags::CLOEXEC)?;
    let mut measured = Vec::new();
    for _ in 0..MEASUREMENTS {
        let began = now_ns();
        for _ in 0..CALLS {
            write(&to, &[1])?;
            read(&from, &mut [0])?;
        }
        measured.push((now_ns() - began) as f64 / f64::from(2 * CALLS));
    }
    measured.sort_unstable_by(f64::total_cmp);
    Ok(measured[MEASUREMENTS / 2])
}

/// Nanoseconds of processor time that a thread's wait for another thread takes, with its wake-up.
pub fn switch_ns() -> Result<f64> {
    let (from_here, to_there) = pipe_with(PipeFlags::CLOEXEC)?;
    let (from_there, to_here) = pipe_with(PipeFlags::CLOEXEC)?;
    let answer = move || {
        // It ends when the other end of the pipe is closed.
        while let Ok(1) = read(&from_here, &mut [0]) {
            if write(&to_here, &[1]).is_err() {
                break;
            }
        }
    };
    let started = thread::Builder::new().name("turns".to_owned()).spawn(answer);
    let other = started
        .map_err(|error| crate::Errno::from_io_error(&error).unwrap_or(crate::Errno::AGAIN))?;
    let measured = take_turns(&to_there, &from_there);
    drop(to_there);
    let _ = other.join();
    measured
}

fn take_turns(to: &OwnedFd, from: &OwnedFd) -> Result<f64> {
    let turn = || -> Result<()> {
        write(to, &[1])?;
        read(from, &mut [0])?;
        Ok(())
    };
    turn()?;
    let (began, used) = (now_ns(), processor_ns());
    let mut turns = 0;
    while turns < TURNS && now_ns() - began < LONGEST_NS {
        turn()?;
        turns += 1;
    }
    Ok((processor_ns() - used) / f64::from(2 * turns.max(1)))
}

/// Processor time of all threads of this process.
fn processor_ns() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

#[cfg(test)]
mod tests {
    #[test]
    fn calls_and_switches_take_time() {
        let (call, switch) = (super::call_ns().unwrap(), super::switch_ns().unwrap());
        assert!((10.0..1e6).contains(&call), "{call}");
        assert!((100.0..1e7).contains(&switch), "{switch}");
    }
}
