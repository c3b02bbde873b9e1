//! When a program rests: its allocator then gives back what was freed.
//!
//! A program rests once it has used next to no processor time for some seconds. Memory is given back once in a while,
//! and only after work that may have freed some.

use super::settings::rest::{AGAIN_NS, LOOK_NS, QUIET_NS, SHARE, WORKED_NS};

/// Knowledge of the program's work: times by the clock, and by that of the process' use of processors.
#[derive(Debug)]
pub(crate) struct Rest {
    looked_ns: u64,
    /// The processor time that the process had used then, and at the last time that memory was given back.
    used_ns: u64,
    used_before_ns: u64,
    /// The last look at which it worked.
    worked_ns: u64,
    not_before_ns: u64,
}

impl Rest {
    pub(crate) fn new(now_ns: u64, used_ns: u64) -> Self {
        Self { looked_ns: now_ns, used_ns, used_before_ns: 0, worked_ns: now_ns, not_before_ns: 0 }
    }

    /// Time until the next look.
    pub(crate) fn left_ns(&self, now_ns: u64) -> u64 {
        (self.looked_ns + LOOK_NS).saturating_sub(now_ns)
    }

    /// True if there was work, and the program rests since. Asks for the processor time only at a look.
    pub(crate) fn is_due(&mut self, now_ns: u64, used_ns: impl FnOnce() -> u64) -> bool {
        if self.left_ns(now_ns) > 0 {
            return false;
        }
        let used_ns = used_ns();
        if used_ns.saturating_sub(self.used_ns) > (now_ns - self.looked_ns) / SHARE {
            self.worked_ns = now_ns;
        }
        (self.looked_ns, self.used_ns) = (now_ns, used_ns);
        now_ns >= self.not_before_ns.max(self.worked_ns + QUIET_NS)
            && used_ns.saturating_sub(self.used_before_ns) >= WORKED_NS
    }

    /// Notes that memory was given back.
    pub(crate) fn gave_back(&mut self, now_ns: u64, used_ns: u64) {
        (self.used_before_ns, self.not_before_ns) = (used_ns, now_ns + AGAIN_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first look at which it is due, of 100, if the program uses `share` of a processor from one to the next.
    fn first_due(rest: &mut Rest, from_ns: u64, share: impl Fn(u64) -> f64) -> Option<u64> {
        let mut used_ns = rest.used_ns;
        (1..=100).find(|look| {
            used_ns += (share(*look) * LOOK_NS as f64) as u64;
            rest.is_due(from_ns + look * LOOK_NS, || used_ns)
        })
    }

    #[test]
    fn a_program_that_works_is_left_alone() {
        assert_eq!(first_due(&mut Rest::new(0, 0), 0, |_| 0.5), None);
    }

    #[test]
    fn one_that_never_worked_has_freed_nothing() {
        assert_eq!(first_due(&mut Rest::new(0, 0), 0, |_| 0.0), None);
    }

    #[test]
    fn memory_is_given_back_some_seconds_after_the_work() {
        let works_for = 10;
        let due = first_due(&mut Rest::new(0, 0), 0, |look| f64::from(look <= works_for));
        assert_eq!(due, Some(works_for + QUIET_NS / LOOK_NS));
    }

    #[test]
    fn it_is_given_back_again_only_after_more_work_and_a_while() {
        let mut rest = Rest::new(0, 0);
        let due_ns = LOOK_NS * first_due(&mut rest, 0, |look| f64::from(look <= 1)).unwrap();
        rest.gave_back(due_ns, rest.used_ns);
        assert_eq!(first_due(&mut rest, due_ns, |_| 0.0), None);
        let from_ns = due_ns + 100 * LOOK_NS;
        rest.gave_back(from_ns, rest.used_ns);
        let again = first_due(&mut rest, from_ns, |look| if look == 1 { 1.0 } else { 0.0 });
        assert_eq!(again, Some(AGAIN_NS / LOOK_NS));
    }

    #[test]
    fn no_look_comes_before_its_time() {
        let mut rest = Rest::new(0, 0);
        assert_eq!(rest.left_ns(LOOK_NS / 4), LOOK_NS - LOOK_NS / 4);
        assert!(!rest.is_due(LOOK_NS - 1, || panic!("it looks")));
    }
}
