//! Looks at all threads of a command at once: those that run, and the reason if all sleep.

use std::fs;
use std::time::{Duration, Instant};

use super::reading::{Reading, reading};
use crate::recording::MetricKind::Counter;

/// Looks begin at the first interval, and become as rare as the second in a longer run.
const INTERVALS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(10)];
/// The interval as a part of the run's age.
const OF_AGE: u32 = 8;
/// Looks take this part of a processor's time at most.
const LEAST_REST: u32 = 50;

/// Numbers of x86-64's system calls.
const WAIT4: &str = "61";
const WAITID: &str = "247";
const FUTEX: &str = "202";
/// Words of `/proc/PID/syscall`: a futex's operation, and its time limit.
const OPERATION: usize = 2;
const LIMIT: usize = 4;
/// A wait until a thread or a semaphore of another process says so: `FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME`, not
/// private. That is how `pthread_join` waits.
const JOIN: &str = "0x109";

/// The activity of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It runs, or is ready to.
    Active,
    /// It waits for a disk, or for the kernel otherwise.
    Blocked,
    /// It waits for a child or for the end of another thread.
    Joins,
    /// It waits for a lock, or another futex, without a limit of time.
    Locked,
    Asleep,
}

/// Seconds of a command in each of its states. A look stands for the time since the look before.
#[derive(Debug, Default)]
pub(super) struct States {
    start: Option<Instant>,
    last: Option<Look>,
    seen: f64,
    /// No thread was active, one was blocked.
    blocked: f64,
    /// No thread was active or blocked.
    asleep: f64,
    /// Of that, one waited for a lock, and the others for locks or for each other's end.
    locked: f64,
    /// The sum over threads that waited for a lock while another was active or blocked.
    lock_wait: f64,
    /// The sum over threads that were active beside another active one.
    overlap: f64,
    /// The sum over threads that were blocked beside an active or a blocked one.
    blocked_beside: f64,
    /// Looks so far, which take turns with the length of the interval: the command may have a rhythm.
    count: u32,
    is_call_hidden: bool,
}

#[derive(Clone, Copy, Debug)]
struct Look {
    at: Instant,
    took: Duration,
}

impl States {
    /// The command has begun.
    pub(super) fn begin(&mut self) {
        let at = Instant::now();
        (self.start, self.last) = (Some(at), Some(Look { at, took: Duration::ZERO }));
    }

    /// The time until the next look; `None` before the command begins.
    pub(super) fn patience(&self) -> Option<Duration> {
        let (start, last) = (self.start?, self.last?);
        let [first, most] = INTERVALS;
        let usual = ((last.at - start) / OF_AGE).clamp(first, most);
        // The golden ratio spreads its multiples evenly.
        let turn = 0.5 + (f64::from(self.count) * 0.618_034).fract();
        let next = last.at + usual.mul_f64(turn).max(last.took * LEAST_REST);
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Looks at these threads, given as a process and a thread, which were found since `at`.
    pub(super) fn look(&mut self, at: Instant, threads: &[(u32, u32)]) {
        let Some(last) = self.last else { return };
        let states: Vec<State> = threads.iter().filter_map(|thread| self.state(*thread)).collect();
        self.last = Some(Look { at, took: at.elapsed() });
        self.count += 1;
        if !states.is_empty() {
            self.add((at - last.at).as_secs_f64(), &states);
        }
    }

    fn add(&mut self, seconds: f64, states: &[State]) {
        let of = |state| states.iter().filter(|other| **other == state).count() as f64 * seconds;
        self.seen += seconds;
        let (active, blocked) = (of(State::Active), of(State::Blocked));
        match () {
            () if active > 0.0 => {
                self.overlap += active - seconds;
                self.blocked_beside += blocked;
            }
            () if blocked > 0.0 => {
                self.blocked += seconds;
                self.blocked_beside += blocked - seconds;
            }
            () => {
                self.asleep += seconds;
                if of(State::Locked) > 0.0 && of(State::Asleep) == 0.0 {
                    self.locked += seconds;
                }
                return;
            }
        }
        self.lock_wait += of(State::Locked);
    }

    /// The state of a thread that has not ended.
    fn state(&mut self, (process, thread): (u32, u32)) -> Option<State> {
        let folder = format!("/proc/{process}/task/{thread}");
        let stat = fs::read_to_string(format!("{folder}/stat")).ok()?;
        match stat[stat.rfind(')')? + 1..].trim_start().chars().next()? {
            'Z' | 'X' => return None,
            'R' => return Some(State::Active),
            'D' => return Some(State::Blocked),
            _ => {}
        }
        match fs::read_to_string(format!("{folder}/syscall")) {
            Ok(call) if cfg!(target_arch = "x86_64") => Some(State::of_call(&call)),
            // Other processors have other numbers.
            _ => {
                self.is_call_hidden = true;
                Some(State::Asleep)
            }
        }
    }

    pub(super) fn read(&self, into: &mut Vec<Reading>) {
        let [locked, lock_wait] =
            [self.locked, self.lock_wait].map(|seconds| (!self.is_call_hidden).then_some(seconds));
        for (name, value) in [
            ("process.seen_seconds", Some(self.seen)),
            ("process.blocked_seconds", Some(self.blocked)),
            ("process.asleep_seconds", Some(self.asleep)),
            ("process.locked_seconds", locked),
            ("process.lock_wait_seconds", lock_wait),
            ("process.overlap_seconds", Some(self.overlap)),
            ("process.blocked_beside_seconds", Some(self.blocked_beside)),
        ] {
            into.push(reading(name, Counter, value));
        }
    }
}

impl State {
    /// From `/proc/PID/syscall`: the number and the arguments, or `running` if it woke meanwhile.
    fn of_call(text: &str) -> Self {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        match words.first() {
            Some(&"running") => Self::Active,
            Some(&(WAIT4 | WAITID)) => Self::Joins,
            Some(&FUTEX) if words.get(OPERATION) == Some(&JOIN) => Self::Joins,
            Some(&FUTEX) if words.get(LIMIT) == Some(&"0x0") => Self::Locked,
            _ => Self::Asleep,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_tell_locks_from_other_sleep() {
        for (text, wanted) in [
            ("running\n", State::Active),
            ("202 0x7f00 0x80 0x2 0x0 0x0 0x0 0x7ffd 0x7f01\n", State::Locked),
            ("202 0x7f00 0x189 0x0 0x7ffd10 0x0 0xffffffff 0x7ffd 0x7f01\n", State::Asleep),
            ("202 0x7f00 0x109 0x4711 0x0 0x0 0xffffffff 0x7ffd 0x7f01\n", State::Joins),
            ("61 0xffffffffffffffff 0x7ffd 0x0 0x0 0x0 0x0 0x7ffd 0x7f01\n", State::Joins),
            ("230 0x0 0x0 0x7ffd 0x0 0x0 0x0 0x7ffd 0x7f01\n", State::Asleep),
            ("", State::Asleep),
        ] {
            assert_eq!(State::of_call(text), wanted, "{text}");
        }
    }

    #[test]
    fn each_moment_is_of_one_state_and_threads_beside_the_first_overlap() {
        use State::{Active, Asleep, Blocked, Joins, Locked};
        let mut states = States::default();
        states.add(1.0, &[Active, Active, Active, Asleep]);
        states.add(2.0, &[Joins, Locked, Locked]);
        states.add(4.0, &[Joins, Locked, Asleep]);
        states.add(8.0, &[Active, Locked]);
        states.add(16.0, &[Blocked, Blocked, Asleep]);
        states.add(32.0, &[Active, Blocked]);
        let alone = [states.seen, states.blocked, states.asleep, states.locked];
        assert_eq!(alone, [63.0, 16.0, 6.0, 2.0]);
        let beside = [states.lock_wait, states.overlap, states.blocked_beside];
        assert_eq!(beside, [8.0, 2.0, 48.0]);
    }
}
