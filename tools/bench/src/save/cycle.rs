//! Results of one save, phase by phase.

use crate::demo::redis::load::Log;
use crate::demo::redis::measure::{Window, answered_in_each, slowest_of_each};
use crate::demo::redis::round::Times;

/// The phases of a cycle, and the whole.
pub(super) const PHASES: [&str; 5] = ["before", "during", "0-1 s", "1-5 s", "cycle"];
pub(super) const CYCLE: usize = 4;
/// A step of time, for which the longest time of a request is recorded.
const STEP_NS: u64 = 10_000_000;
/// A step counts if a request in it took longer.
pub(super) const LONG_MS: [u64; 4] = [2, 5, 10, 20];

/// A phase of one cycle, or of several together.
#[derive(Debug, Clone, Default)]
pub(super) struct Phase {
    pub(super) window: Window,
    /// Processor time of the server's main thread.
    pub(super) main_ns: u64,
    /// Steps with a request that took longer than each of [`LONG_MS`].
    pub(super) long_steps: [u64; 4],
}

impl Phase {
    fn merge(&mut self, other: &Self) {
        self.window.merge(&other.window);
        self.main_ns += other.main_ns;
        self.long_steps.iter_mut().zip(other.long_steps).for_each(|(all, one)| *all += one);
    }
}

/// The requests of a cycle over time, one value a step.
#[derive(Debug, Clone, Default)]
pub(super) struct TimeLine {
    pub(super) answered: Vec<u64>,
    pub(super) slowest_ns: Vec<u64>,
    /// Start and end of the save, in seconds.
    pub(super) save: (f64, f64),
}

impl TimeLine {
    pub(super) const STEP_S: f64 = STEP_NS as f64 / 1e9;
}

/// Results of one save.
#[derive(Debug, Clone)]
pub(super) struct Cycle {
    pub(super) phases: [Phase; 5],
    pub(super) fork_ns: u64,
    /// Processor time of Cowslip's threads, from the save on.
    pub(super) service_ns: u64,
    /// Processor time of the child that saved.
    pub(super) child_ns: u64,
    pub(super) extra_bytes: u64,
    /// Huge coverage of the server's memory after the cycle.
    pub(super) huge_coverage: f64,
    /// The longest stall since the program started, by its arena's counters.
    pub(super) longest_stall_ns: Option<u64>,
    /// Processors used by the clients.
    pub(super) client_processors: f64,
    pub(super) line: TimeLine,
}

/// The phases and the time line of a round that ended with the last phase.
pub(super) fn phases(times: &Times, logs: &[Log]) -> ([Phase; 5], TimeLine) {
    let stamps = &times.stamps;
    let (began_ns, ended_ns) = (stamps[0].at_ns, stamps[CYCLE].at_ns);
    let slowest_ns = slowest_of_each(logs, began_ns, ended_ns, STEP_NS);
    let span = |from: usize, to: usize| {
        let (from, to) = (&stamps[from], &stamps[to]);
        let cpu = to.cpu.since(from.cpu);
        let mut phase = Phase {
            window: Window::new(logs, from.at_ns, to.at_ns, cpu.all_ns),
            main_ns: cpu.main_ns,
            ..Phase::default()
        };
        // A step belongs to the phase that it begins in.
        for (step, slowest_ns) in slowest_ns.iter().enumerate() {
            let at_ns = began_ns + step as u64 * STEP_NS;
            if (from.at_ns..to.at_ns).contains(&at_ns) {
                for (count, long_ms) in phase.long_steps.iter_mut().zip(LONG_MS) {
                    *count += u64::from(*slowest_ns > long_ms * 1_000_000);
                }
            }
        }
        phase
    };
    let phases = [span(0, 1), span(1, 2), span(2, 3), span(3, 4), span(0, 4)];
    let seconds = |ns: u64| (ns - began_ns) as f64 / 1e9;
    let answered = answered_in_each(logs, began_ns, ended_ns, STEP_NS);
    let save = (seconds(stamps[1].at_ns), seconds(stamps[2].at_ns));
    (phases, TimeLine { answered, slowest_ns, save })
}

/// The phases of several cycles together.
pub(super) fn together(cycles: &[Cycle]) -> [Phase; 5] {
    let mut all: [Phase; 5] = Default::default();
    for cycle in cycles {
        all.iter_mut().zip(&cycle.phases).for_each(|(all, one)| all.merge(one));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::redis::consistency::Cut;
    use crate::demo::redis::cpu::Cpu;
    use crate::demo::redis::round::Stamp;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn phases_add_up_to_the_cycle_and_a_stall_is_in_those_that_it_reaches() {
        let stamp = |second: u64| Stamp {
            at_ns: second * SECOND,
            cpu: Cpu { all_ns: second * 3_000, main_ns: second * 2_000, ..Cpu::default() },
        };
        let stamps: Vec<_> = [1, 2, 4, 5, 9].map(stamp).to_vec();
        let cut = Cut { sent_ns: 2 * SECOND, replied_ns: 2 * SECOND };
        let times = Times { cut, stamps, extra_bytes: 0 };
        // A request each 5 ms of 1 ms, but for one of 25 ms that spans the end of the save.
        let mut reads: Vec<_> =
            (0..2_000).map(|i| i * 5_000_000).map(|at| (at, at + 1_000_000)).collect();
        reads.push((4 * SECOND - 15_000_000, 4 * SECOND + 10_000_000));
        let log = Log { reads, ..Log::default() };
        let (phases, line) = phases(&times, &[log]);

        let [before, during, soon, later, cycle] = &phases;
        assert_eq!((before.window.answered, during.window.answered), (200, 400));
        assert_eq!((soon.window.answered, later.window.answered), (201, 800));
        assert_eq!(cycle.window.answered, 1_601);
        assert_eq!(
            (during.window.cpu_ns, during.main_ns, cycle.window.cpu_ns),
            (6_000, 4_000, 24_000)
        );
        assert_eq!(before.long_steps, [0; 4]);
        assert_eq!(during.long_steps, [2; 4]);
        assert_eq!(soon.long_steps, [2; 4]);
        assert_eq!(cycle.long_steps, [4; 4]);
        assert_eq!(cycle.window.latencies.max_ns() / 1_000_000, 25);
        assert_eq!((line.answered.len(), line.slowest_ns.len(), line.save), (800, 800, (1.0, 3.0)));
        assert_eq!(line.answered.iter().sum::<u64>(), 1_601);
    }
}
