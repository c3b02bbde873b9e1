//! Shrinks a failing program: leaves out everything without which it still fails.

use std::time::{Duration, Instant};

use crate::program::{Op, Program};
use crate::run::{Mode, Place};

/// The number of rounds for a candidate, with several runs at once: failures may depend on chance.
const ROUNDS: usize = 3;
const AT_ONCE: usize = 4;

pub(crate) struct Shrinker<'a> {
    pub(crate) place: &'a Place,
    pub(crate) mode: Mode,
    pub(crate) job: usize,
    pub(crate) limit: Duration,
    pub(crate) until: Instant,
}

impl Shrinker<'_> {
    /// Its failure, if it fails and does not fail natively.
    fn failure(&self, program: &Program) -> Option<String> {
        let failure = (0..ROUNDS).find_map(|_| self.any_of_several(program))?;
        let natively = self.place.run(program, Mode::Native, self.job, self.limit).ok()?;
        (self.mode == Mode::Native || natively.failure.is_none()).then_some(failure)
    }

    fn any_of_several(&self, program: &Program) -> Option<String> {
        if Instant::now() > self.until {
            return None;
        }
        std::thread::scope(|scope| {
            let tries = (0..AT_ONCE).map(|index| {
                let job = (self.job + 1) * 100 + index;
                scope.spawn(move || {
                    self.place.run(program, self.mode, job, self.limit).ok()?.failure
                })
            });
            let tries: Vec<_> = tries.collect();
            tries.into_iter().filter_map(|thread| thread.join().ok().flatten()).last()
        })
    }

    /// The smallest program found in time, with its failure.
    pub(crate) fn shrink(&self, program: Program, failure: String) -> (Program, String) {
        let mut best = (program, failure);
        loop {
            let before = best.0.weight();
            self.leave_out_processes(&mut best);
            self.leave_out_threads(&mut best);
            self.leave_out_calls(&mut best);
            self.make_ordinary(&mut best);
            if best.0.weight() == before || Instant::now() > self.until {
                return best;
            }
        }
    }

    fn try_it(&self, best: &mut (Program, String), mut candidate: Program) -> bool {
        candidate.prune();
        if Instant::now() > self.until || candidate.weight() >= best.0.weight() {
            return false;
        }
        match self.failure(&candidate) {
            Some(failure) => {
                *best = (candidate, failure);
                true
            }
            None => false,
        }
    }

    fn leave_out_processes(&self, best: &mut (Program, String)) {
        for number in (1..best.0.processes.len()).rev() {
            let mut candidate = best.0.clone();
            leave_out_process(&mut candidate, number);
            self.try_it(best, candidate);
        }
    }

    fn leave_out_threads(&self, best: &mut (Program, String)) {
        for process in 0..best.0.processes.len() {
            for thread in (1..best.0.processes[process].threads.len()).rev() {
                let mut candidate = best.0.clone();
                let threads = &mut candidate.processes[process].threads;
                threads[thread].clear();
                threads[0].retain(|call| {
                    !matches!(call.op, Op::Start | Op::Join) || call.number(0) != thread
                });
                self.try_it(best, candidate);
            }
        }
    }

    /// Replaces special words by the usual ones.
    fn make_ordinary(&self, best: &mut (Program, String)) {
        for process in 0..best.0.processes.len() {
            for thread in 0..best.0.processes[process].threads.len() {
                for call in 0..best.0.thread(process, thread).len() {
                    let mut candidate = best.0.clone();
                    candidate.processes[process].threads[thread][call].make_ordinary();
                    self.try_it(best, candidate);
                }
            }
        }
    }

    /// Leaves out runs of calls: halves, quarters, down to single ones.
    fn leave_out_calls(&self, best: &mut (Program, String)) {
        for process in 0..best.0.processes.len() {
            for thread in 0..best.0.processes[process].threads.len() {
                let mut run = best.0.thread(process, thread).len().div_ceil(2);
                while run > 0 {
                    let mut end = best.0.thread(process, thread).len();
                    while end > 0 {
                        let start = end.saturating_sub(run);
                        let mut candidate = best.0.clone();
                        let calls = &mut candidate.processes[process].threads[thread];
                        calls.drain(start..end);
                        self.try_it(best, candidate);
                        end = start;
                    }
                    run = if run == 1 { 0 } else { run.div_ceil(2) };
                }
            }
        }
    }
}

/// Leaves out a process and its descendants.
fn leave_out_process(program: &mut Program, number: usize) {
    for thread in std::mem::take(&mut program.processes[number]).threads {
        for call in thread.iter().filter(|call| call.op == Op::Fork) {
            leave_out_process(program, call.number(0));
        }
    }
    let about = [Op::Fork, Op::Release, Op::Peek, Op::Poke, Op::Kill, Op::Wait];
    for thread in program.processes.iter_mut().flat_map(|process| &mut process.threads) {
        thread.retain(|call| !about.contains(&call.op) || call.number(0) != number);
    }
}
