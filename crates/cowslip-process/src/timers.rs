//! Timers of a process: `setitimer(2)`, and `timer_create(2)`. A fork has none of them.

use cowslip_sys::Result;
use libc::{
    SIGEV_NONE, SIGEV_SIGNAL, SIGEV_THREAD, SIGEV_THREAD_ID, SYS_setitimer, SYS_timer_create,
    SYS_timer_delete, SYS_timer_settime,
};

use crate::branch::Caller;

/// The most timers: the thread that asks for their times stands still for some calls each.
const MOST: usize = 256;
/// The highest number of a timer: the kernel gives numbers in order, so a copy makes and deletes as many.
const MOST_NUMBER: i32 = 4096;
/// Clocks that are the same for every process. The others have numbers of processes in them.
const CLOCKS: core::ops::Range<i32> = 0..12;

/// The timers of a process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Timers {
    /// Those of `setitimer(2)`, by their numbers: interval and remaining time, in seconds and microseconds.
    pub interval: [[u64; 4]; 3],
    /// Those of `timer_create(2)`, in ascending order of their numbers.
    pub posix: Vec<PosixTimer>,
}

/// A timer of `timer_create(2)`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PosixTimer {
    /// Its number in the kernel.
    pub number: i32,
    /// Its clock (`clock_gettime(2)`).
    pub clock: i32,
    /// The signal that it sends.
    pub signal: i32,
    /// The value that comes with the signal.
    pub value: u64,
    /// `sigev_notify` (`sigevent(3type)`).
    pub notify: i32,
    /// The process, or the thread, that gets the signal.
    pub receiver: i32,
    /// Interval and remaining time, in seconds and nanoseconds; all zeroes for a disarmed timer.
    pub time: [u64; 4],
}

impl PosixTimer {
    /// Reads the text of `/proc/PID/timers` (`proc_pid_timers(5)`). `None` if a copy could not have one of them.
    pub(crate) fn parse_all(text: &str) -> Option<Vec<Self>> {
        let lines: Vec<&str> = text.lines().collect();
        let timers: Option<Vec<Self>> = lines.chunks(4).map(Self::parse).collect();
        let mut timers = timers.filter(|timers| timers.len() <= MOST)?;
        timers.sort_unstable_by_key(|timer| timer.number);
        Some(timers)
    }

    fn parse(lines: &[&str]) -> Option<Self> {
        let [number, signal, notify, clock] = lines else { return None };
        let (signal, value) = signal.strip_prefix("signal: ")?.split_once('/')?;
        let value = u64::from_str_radix(value.trim_start_matches("0x"), 16).ok()?;
        let (notify, receiver) = notify.strip_prefix("notify: ")?.split_once('/')?;
        let notify = match notify {
            "signal" => SIGEV_SIGNAL,
            "none" => SIGEV_NONE,
            "thread" => SIGEV_THREAD,
            _ => return None,
        };
        let (kind, receiver) = receiver.split_once('.')?;
        let for_thread = if kind == "tid" { SIGEV_THREAD_ID } else { 0 };
        let number = number.strip_prefix("ID: ")?.parse().ok()?;
        let clock = clock.strip_prefix("ClockID: ")?.parse().ok()?;
        ((0..=MOST_NUMBER).contains(&number) && CLOCKS.contains(&clock)).then_some(Self {
            number,
            clock,
            signal: signal.parse().ok()?,
            value,
            notify: notify | for_thread,
            receiver: receiver.parse().ok()?,
            time: [0; 4],
        })
    }
}

/// Starts the timers of a copy, with their remaining times. A signal of one waits until the copy runs.
pub(crate) fn start(copy: &mut Caller<'_>, timers: &Timers) -> Result<()> {
    for (number, timer) in (0..).zip(&timers.interval) {
        if *timer != [0; 4] {
            let place = copy.put_words(0, timer)?;
            copy.call(SYS_setitimer, &[number, place, 0])?;
        }
    }
    let mut next = 0;
    for timer in &timers.posix {
        // `struct sigevent`: a value, a signal and a kind, a thread.
        let kind =
            u64::from(timer.signal.cast_unsigned()) | u64::from(timer.notify.cast_unsigned()) << 32;
        let event =
            copy.put_words(0, &[timer.value, kind, timer.receiver as u64, 0, 0, 0, 0, 0])?;
        let number = copy.place(64);
        while next <= timer.number {
            copy.call(SYS_timer_create, &[timer.clock as u64, event, number])?;
            let made = i32::from_ne_bytes(copy.get(64)?);
            if made != timer.number {
                copy.call(SYS_timer_delete, &[made as u64])?;
            }
            next = made + 1;
        }
        if timer.time != [0; 4] {
            let time = copy.put_words(0, &timer.time)?;
            copy.call(SYS_timer_settime, &[timer.number as u64, 0, time, 0])?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "ID: 3\n\
        signal: 14/0000000000000007\n\
        notify: signal/pid.4711\n\
        ClockID: 1\n\
        ID: 1\n\
        signal: 32/00007f0000001000\n\
        notify: signal/tid.4712\n\
        ClockID: 0\n";

    #[test]
    fn the_kernels_list_is_read() {
        let timers = PosixTimer::parse_all(TEXT).unwrap();
        let fields = |timer: &PosixTimer| {
            (timer.number, timer.clock, timer.signal, timer.value, timer.notify, timer.receiver)
        };
        assert_eq!(fields(&timers[0]), (1, 0, 32, 0x7f00_0000_1000, SIGEV_THREAD_ID, 4712));
        assert_eq!(fields(&timers[1]), (3, 1, 14, 7, SIGEV_SIGNAL, 4711));
        assert_eq!(PosixTimer::parse_all(""), Some(Vec::new()));
    }

    #[test]
    fn timers_that_no_copy_can_have_are_none() {
        for (from, to) in [
            ("ClockID: 1", "ClockID: -6"),
            ("ID: 3", "ID: 70000"),
            ("notify: signal", "notify: other"),
        ] {
            let text = TEXT.replace(from, to);
            assert_ne!(text, TEXT);
            assert_eq!(PosixTimer::parse_all(&text), None, "{text}");
        }
        assert_eq!(PosixTimer::parse_all("ID: 3\nsignal: 1/0\n"), None);
        assert_eq!(PosixTimer::parse_all(&TEXT.repeat(MOST)), None);
    }
}
