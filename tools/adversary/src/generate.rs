//! A program from a seed. The same seed gives the same program.

use fastrand::Rng;

use crate::program::{Call, Kind, OPERATIONS, Op, Process, Program};
use crate::shared::{COUNTERS, PROCESSES};

/// Weights of the operations that a thread may do anywhere.
const OFTEN: &[(Op, u32)] = &[
    (Op::Map, 12),
    (Op::MapOver, 4),
    (Op::Unmap, 5),
    (Op::Protect, 7),
    (Op::Advise, 14),
    (Op::Lock, 2),
    (Op::Unlock, 1),
    (Op::Resize, 5),
    (Op::Move, 4),
    (Op::LeaveBehind, 2),
    (Op::Allocate, 5),
    (Op::Free, 3),
    (Op::Fill, 24),
    (Op::Touch, 5),
    (Op::Trap, 5),
    (Op::Segment, 2),
    (Op::Verify, 6),
    (Op::Copy, 22),
    (Op::Direct, 3),
    (Op::Send, 4),
    (Op::Fork, 14),
    (Op::Spawn, 1),
    (Op::Stop, 2),
    (Op::Stream, 3),
    (Op::Count, 5),
    (Op::Futex, 3),
    (Op::Locks, 2),
    (Op::Signals, 2),
    (Op::Descriptors, 2),
    (Op::Tables, 1),
    (Op::Border, 2),
    (Op::Lend, 1),
    (Op::Pause, 7),
];

/// The regions and children that may exist when a call is made.
#[derive(Clone, Default)]
struct Known {
    /// The process leaves its children behind.
    leaves: bool,
    /// Each region and its pages.
    regions: Vec<(u32, u32)>,
    children: Vec<u32>,
}

struct Generator<'a> {
    rng: Rng,
    program: Program,
    next_region: u32,
    most_processes: usize,
    /// Operations and words to leave out.
    without: &'a [String],
}

/// The program of a seed.
pub(crate) fn generate(seed: u64, without: &[String]) -> Program {
    let mut rng = Rng::with_seed(seed);
    let most_processes = rng.usize(2..12).min(PROCESSES);
    let program = Program::default();
    let mut generator = Generator { rng, program, next_region: 0, most_processes, without };
    if generator.one_in(12) {
        generator.program.options.push("--follow-exec".to_owned());
    }
    if generator.one_in(4) {
        generator.program.options.extend(["--arena-after", "512K"].map(str::to_owned));
    }
    if generator.one_in(12) {
        generator.program.options.extend(["--threshold", "4K"].map(str::to_owned));
    }
    generator.process(Known::default(), 0);
    generator.program
}

impl Generator<'_> {
    fn one_in(&mut self, n: u32) -> bool {
        self.rng.u32(..n) == 0
    }

    fn allows(&self, name: &str) -> bool {
        !self.without.iter().any(|out| out == name)
    }

    /// 4 KiB to 16 MiB, mostly 256 KiB to 6 MiB.
    fn size(&mut self) -> u32 {
        match self.rng.u32(..20) {
            0..4 => self.rng.u32(1..64),
            4..19 => self.rng.u32(64..1536),
            _ => self.rng.u32(1536..4096),
        }
    }

    /// Often short, sometimes longer than the delay of a thaw.
    fn pause(&mut self) -> u32 {
        let most = if self.one_in(4) { 60 } else { 8 };
        self.rng.u32(..most)
    }

    fn new_region(&mut self) -> u32 {
        self.next_region += 1;
        self.next_region
    }

    fn any(&mut self, known: &Known) -> (u32, u32) {
        let count = known.regions.len().max(1);
        // Usually one of the newest.
        let back =
            if self.rng.bool() { self.rng.usize(..count.min(3)) } else { self.rng.usize(..count) };
        known.regions.iter().rev().nth(back).copied().unwrap_or((0, 1))
    }

    /// A part of a region: a page, a few, half, or all.
    fn part(&mut self, pages: u32) -> (u32, u32) {
        let pages = pages.max(1);
        let first = self.rng.u32(..pages);
        match self.rng.u32(..8) {
            0 => (0, pages),
            1 => (first, 1),
            2..5 => (first, self.rng.u32(1..=16)),
            5 => (first / 2, pages / 2 + 1),
            _ => (first, self.rng.u32(1..=pages)),
        }
    }

    /// A call with these numbers and random words; `None` if it is left out.
    fn call(&mut self, op: Op, numbers: &[u32]) -> Option<Call> {
        let operation = OPERATIONS.iter().find(|known| known.op == op)?;
        let mut args = numbers.to_vec();
        for kind in &operation.arguments[numbers.len()..] {
            let Kind::Word(_, values) = kind else { continue };
            let left: Vec<_> = (0..values.len()).filter(|i| self.allows(values[*i])).collect();
            // The first word is the usual one.
            let ordinary = left.first().filter(|_| self.rng.u32(..3) == 0).copied();
            let word = ordinary.or_else(|| self.rng.choice(left))?;
            args.push(word as u32);
        }
        self.allows(operation.name).then_some(Call { op, args })
    }

    fn pick(&mut self) -> Op {
        let all: u32 = OFTEN.iter().map(|(_, weight)| weight).sum();
        let mut at = self.rng.u32(..all);
        for (op, weight) in OFTEN {
            match at.checked_sub(*weight) {
                Some(rest) => at = rest,
                None => return *op,
            }
        }
        Op::Verify
    }

    /// A process that begins with the forking thread's regions. Returns its number.
    fn process(&mut self, known: Known, depth: u32) -> u32 {
        let number = self.program.processes.len();
        self.program.processes.push(Process::default());
        let threads = match self.rng.u32(..6) {
            0..3 => 0,
            3..5 => 1,
            _ => 2,
        };
        let threads = if self.allows("start") { threads } else { 0 };
        let mut lists = vec![Vec::new()];
        for _ in 0..threads {
            let mut calls = Vec::new();
            self.thread(&mut calls, &mut Known::default(), depth, 12);
            if self.one_in(5) {
                calls.extend(self.call(Op::Retire, &[]));
            }
            lists.push(calls);
        }
        let mut calls = Vec::new();
        let Known { regions, leaves: outlives, .. } = known;
        let leaves = self.one_in(if depth == 0 { 3 } else { 6 });
        let mut known = Known { regions, leaves, children: Vec::new() };
        if depth > 0 && self.one_in(4) {
            calls.extend(self.looks(&known));
        }
        for thread in 1..lists.len() as u32 {
            calls.extend(self.call(Op::Start, &[thread]));
            if self.one_in(3) {
                self.thread(&mut calls, &mut known, depth, 4);
            }
        }
        self.thread(&mut calls, &mut known, depth, if depth == 0 { 36 } else { 12 });
        for thread in 1..lists.len() as u32 {
            if self.one_in(2) {
                calls.extend(self.call(Op::Join, &[thread]));
                self.thread(&mut calls, &mut known, depth, 6);
            }
        }
        if outlives || self.one_in(6) {
            // The process that forked it has gone, and its relatives' memory may have, too.
            let ms = self.rng.u32(20..120);
            calls.extend(self.call(Op::Pause, &[ms]));
            self.map_and_fill(&mut calls, &mut known);
            calls.extend(self.call(Op::Pause, &[20]));
        }
        match leaves {
            true => calls.extend(self.call(Op::Leave, &[])),
            false if depth > 0 && self.one_in(10) => calls.extend(self.call(Op::Exec, &[])),
            // Cowslip notices the end of such a process late.
            false if self.one_in(30) => calls.extend(self.call(Op::Retire, &[])),
            false => {}
        }
        lists[0] = calls;
        self.program.processes[number].threads = lists;
        number as u32
    }

    /// The first looks of a child, for which its parent waits.
    fn looks(&mut self, known: &Known) -> Vec<Call> {
        let mut looks = Vec::new();
        for _ in 0..self.rng.u32(1..4) {
            let (region, pages) = self.any(known);
            let (first, count) = self.part(pages);
            looks.extend(self.call(Op::Look, &[region, first, count.min(16)]));
        }
        looks
    }

    /// Adds up to `most` calls.
    fn thread(&mut self, calls: &mut Vec<Call>, known: &mut Known, depth: u32, most: u32) {
        if known.regions.is_empty() {
            self.map_and_fill(calls, known);
        }
        for _ in 0..self.rng.u32(most / 3..=most) {
            let op = self.pick();
            self.one(op, calls, known, depth);
            // Time for children to see changes, and for thaws.
            if self.one_in(12) {
                let ms = self.pause();
                calls.extend(self.call(Op::Pause, &[ms]));
            }
            if self.one_in(5) && !known.children.is_empty() {
                self.kin(calls, known);
            }
        }
    }

    fn map_and_fill(&mut self, calls: &mut Vec<Call>, known: &mut Known) {
        let (region, pages) = (self.new_region(), self.size());
        calls.extend(self.call(Op::Map, &[region, pages]));
        calls.extend(self.call(Op::Fill, &[region, 0, pages]));
        known.regions.push((region, pages));
    }

    fn one(&mut self, op: Op, calls: &mut Vec<Call>, known: &mut Known, depth: u32) {
        let (region, pages) = self.any(known);
        let (first, count) = self.part(pages);
        let (target, others) = self.any(known);
        let call = match op {
            Op::Map if self.rng.bool() => return self.map_and_fill(calls, known),
            Op::Map | Op::Allocate => {
                let (region, pages) = (self.new_region(), self.size());
                let pages =
                    if op == Op::Allocate && self.rng.bool() { pages % 12 + 1 } else { pages };
                known.regions.push((region, pages));
                self.call(op, &[region, pages])
            }
            Op::Resize => {
                let pages = self.size();
                let regions = known.regions.iter_mut();
                regions.filter(|entry| entry.0 == region).for_each(|entry| entry.1 = pages);
                self.call(op, &[region, pages])
            }
            Op::Copy | Op::Move => {
                let at = self.rng.u32(..others.max(1));
                self.call(op, &[region, first, count.min(16), target, at])
            }
            Op::LeaveBehind => {
                let target = self.new_region();
                known.regions.push((target, pages));
                self.call(op, &[region, target])
            }
            Op::Direct => {
                let ms = self.rng.u32(..40);
                self.call(op, &[region, first, count.min(64), ms])
            }
            Op::Touch => {
                let stride = self.rng.u32(1..800);
                self.call(op, &[region, first.min(stride), stride])
            }
            Op::Trap => self.call(op, &[region, first]),
            Op::Segment => {
                let segment = self.new_region();
                known.regions.push((segment, count.min(64)));
                self.call(op, &[segment, region, first, count.min(64)])
            }
            Op::Locks => {
                let times = self.rng.u32(1..3000);
                self.call(op, &[region, first, times])
            }
            Op::Lend => {
                let (region, pages) = (self.new_region(), self.size());
                known.regions.push((region, pages));
                self.call(op, &[region, pages])
            }
            Op::Fork => return self.fork(calls, known, depth),
            Op::Stream => {
                let (region, pages) = (self.new_region(), self.rng.u32(16..400));
                let ms = self.rng.u32(3..30);
                self.call(op, &[region, pages, ms])
            }
            Op::Count => {
                let (counter, times) = (self.rng.u32(..COUNTERS as u32), self.rng.u32(1..20_000));
                self.call(op, &[counter, times])
            }
            Op::Futex => {
                let ms = self.pause();
                self.call(op, &[region, first, ms])
            }
            Op::Signals => {
                let ms = self.rng.u32(..5);
                self.call(op, &[ms])
            }
            Op::Pause | Op::Border => {
                let ms = self.pause();
                self.call(op, &[ms])
            }
            Op::Free | Op::Verify => self.call(op, &[region]),
            Op::Spawn | Op::Descriptors | Op::Tables => self.call(op, &[]),
            _ => self.call(op, &[region, first, count]),
        };
        calls.extend(call);
    }

    fn fork(&mut self, calls: &mut Vec<Call>, known: &mut Known, depth: u32) {
        if self.program.processes.len() >= self.most_processes || depth >= 4 {
            return;
        }
        let process = self.process(known.clone(), depth + 1);
        calls.extend(self.call(Op::Fork, &[process]));
        known.children.push(process);
    }

    /// A call that involves a child.
    fn kin(&mut self, calls: &mut Vec<Call>, known: &mut Known) {
        let index = self.rng.usize(..known.children.len());
        let process = known.children[index];
        let (region, pages) = self.any(known);
        let (first, count) = self.part(pages);
        let call = match self.rng.u32(..10) {
            0..4 => self.call(Op::Peek, &[process, region, first, count.min(16)]),
            4..6 => self.call(Op::Poke, &[process, region, first]),
            6 => self.call(Op::Release, &[process]),
            7 => self.call(Op::Kill, &[process]),
            _ => {
                known.children.remove(index);
                self.call(Op::Wait, &[process])
            }
        };
        calls.extend(call);
    }
}
