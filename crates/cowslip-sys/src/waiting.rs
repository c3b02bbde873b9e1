#![allow(unsafe_code)]
//! Waits for descriptors, with any call that this process may still use.
//!
//! `poll(2)` fails with `EINVAL` for more descriptors than `RLIMIT_NOFILE`, which a sandbox may have set to 0, and a
//! seccomp filter may refuse it to every thread; that limit does not apply to `select(2)`. A thread on which others
//! depend must not end for either reason.
//!
//! # Safety
//! The calls read and write only the arrays that they are given, within the given length.

use core::mem::MaybeUninit;
use core::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::failpoints::{self, Op};
use crate::{AsRawFd, BorrowedFd, Errno, Result, passthrough};

/// The most descriptors that one call waits for.
pub const MOST: usize = 64;

/// Waits until one of `fds` is readable, has hung up or is not open, or `timeout` has passed (`None`: for ever), or a
/// signal arrives. `ready[i]` is then true for each of these `fds[i]`.
///
/// # Errors
/// `EINVAL` for more than [`MOST`] descriptors; otherwise the error of `poll(2)`, if `select(2)` is refused as well.
pub fn readable(
    fds: &[BorrowedFd<'_>],
    ready: &mut [bool],
    timeout: Option<Duration>,
) -> Result<()> {
    if fds.len() > MOST || ready.len() != fds.len() {
        return Err(Errno::INVAL);
    }
    ready.fill(false);
    by_poll(fds, ready, timeout).or_else(|errno| by_select(fds, ready, timeout).map_err(|_| errno))
}

/// Waits like [`readable`] for any number of descriptors, where memory may be allocated and `poll(2)` is not refused.
///
/// # Errors
/// The error of `poll(2)`.
pub fn many_readable(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> Result<Vec<bool>> {
    failpoints::check(Op::Poll)?;
    let polled = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
    let mut polled: Vec<_> = polled.collect();
    match poll(&mut polled, timeout.map(timespec).as_ref()) {
        Ok(_) => Ok(polled.iter().map(|fd| !fd.revents().is_empty()).collect()),
        Err(Errno::INTR) => Ok(vec![false; fds.len()]),
        Err(errno) => Err(errno),
    }
}

fn timespec(timeout: Duration) -> Timespec {
    Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) }
}

fn by_poll(fds: &[BorrowedFd<'_>], ready: &mut [bool], timeout: Option<Duration>) -> Result<()> {
    failpoints::check(Op::Poll)?;
    let timeout = timeout.map(timespec);
    let mut polled: [MaybeUninit<PollFd<'_>>; MOST] = [const { MaybeUninit::uninit() }; MOST];
    for (place, fd) in polled.iter_mut().zip(fds) {
        place.write(PollFd::from_borrowed_fd(*fd, PollFlags::IN));
    }
    // SAFETY: the first `fds.len()` elements were just written, as there are at most MOST, and MaybeUninit<T> has
    // T's layout.
    let polled = unsafe {
        core::slice::from_raw_parts_mut(polled.as_mut_ptr().cast::<PollFd<'_>>(), fds.len())
    };
    match poll(polled, timeout.as_ref()) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok(()),
        Err(errno) => return Err(errno),
    }
    for (ready, fd) in ready.iter_mut().zip(polled.iter()) {
        *ready = !fd.revents().is_empty();
    }
    Ok(())
}

/// The number of descriptors that a set holds.
const NUMBERS: usize = 1 << 16;
const WORD_BITS: usize = u64::BITS as usize;

fn by_select(fds: &[BorrowedFd<'_>], ready: &mut [bool], timeout: Option<Duration>) -> Result<()> {
    failpoints::check(Op::Poll)?;
    let mut wanted = [0u64; NUMBERS / WORD_BITS];
    let mut end = 0;
    let number = |fd: &BorrowedFd<'_>| fd.as_raw_fd() as usize;
    for fd in fds {
        let word = wanted.get_mut(number(fd) / WORD_BITS).ok_or(Errno::BADF)?;
        *word |= 1 << (number(fd) % WORD_BITS);
        end = end.max(number(fd) + 1);
    }
    // The kernel may write the remaining time to it.
    let mut timeout = timeout.map(timespec);
    let timeout = timeout.as_mut().map_or(core::ptr::null_mut(), core::ptr::from_mut);
    let none = core::ptr::null_mut::<u64>();
    // SAFETY: pselect6(2) reads and writes the first `end` bits of the set, rounded up to a word, which it has, and the
    // time if there is one; Timespec is the kernel's structure.
    let answer = unsafe {
        passthrough::by_number()(
            libc::SYS_pselect6,
            end,
            wanted.as_mut_ptr(),
            none,
            none,
            timeout,
            core::ptr::null_mut::<u64>(),
        )
    };
    if answer < 0 {
        return match crate::errno::last() {
            Errno::INTR => Ok(()),
            errno => Err(errno),
        };
    }
    for (ready, fd) in ready.iter_mut().zip(fds) {
        *ready = wanted[number(fd) / WORD_BITS] >> (number(fd) % WORD_BITS) & 1 == 1;
    }
    Ok(())
}

/// Sleeps for `time`, or until a signal arrives.
///
/// # Errors
/// An error of the kernel, without having slept: a seccomp filter may refuse this call too.
pub fn nap(time: Duration) -> Result<()> {
    failpoints::check(Op::Nap)?;
    let time = timespec(time);
    let clock = libc::CLOCK_MONOTONIC;
    // SAFETY: clock_nanosleep(2) reads the time, which has the kernel's layout, and writes nothing.
    let answer = unsafe {
        passthrough::by_number()(
            libc::SYS_clock_nanosleep,
            clock,
            0,
            &raw const time,
            core::ptr::null_mut::<u64>(),
        )
    };
    match answer {
        0 => Ok(()),
        _ => match crate::errno::last() {
            Errno::INTR => Ok(()),
            errno => Err(errno),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AsFd;
    use crate::process;

    type Wait = fn(&[BorrowedFd<'_>], &mut [bool], Option<Duration>) -> Result<()>;

    #[test]
    fn both_ways_say_the_same() {
        let bells = [(); 3].map(|()| process::eventfd().unwrap());
        let fds = bells.each_ref().map(AsFd::as_fd);
        for wait in [by_poll as Wait, by_select, readable] {
            let mut ready = [false; 3];
            wait(&fds, &mut ready, Some(Duration::from_millis(1))).unwrap();
            assert_eq!(ready, [false; 3]);
            process::notify(fds[1]);
            wait(&fds, &mut ready, None).unwrap();
            assert_eq!(ready, [false, true, false]);
            process::drain(fds[1]).unwrap();
        }
    }

    #[test]
    fn more_than_it_can_wait_for_is_an_error() {
        let bell = process::eventfd().unwrap();
        let fds = [bell.as_fd(); MOST + 1];
        assert_eq!(readable(&fds, &mut [false; MOST + 1], None), Err(Errno::INVAL));
        process::notify(bell.as_fd());
        let mut ready = [false; MOST];
        readable(&fds[..MOST], &mut ready, None).unwrap();
        assert_eq!(ready, [true; MOST]);
    }

    #[test]
    fn a_nap_takes_its_time() {
        let began_ns = process::now_ns();
        nap(Duration::from_millis(3)).unwrap();
        assert!(process::now_ns() - began_ns >= 3_000_000);
    }
}
