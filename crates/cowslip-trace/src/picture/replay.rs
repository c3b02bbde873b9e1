//! One pass over the events: each fault with its mapping, kind, program, thread, instruction and stack.

use std::collections::HashMap;

use super::frames::Frames;
use super::programs::Programs;
use super::scene::Dot;
use crate::analysis::{Analyser, is_arrival};
use crate::attribute::Attribution;
use crate::model::{Event, Fault, StackId, Trace, What};

pub(super) struct Replay<'a> {
    trace: &'a Trace,
    pub(super) analyser: Analyser,
    pub(super) programs: Programs,
    pub(super) frames: Frames,
    /// The numbers of stacks by their id, once they were seen.
    stack_numbers: HashMap<StackId, u32>,
    thread_numbers: HashMap<(u32, u32), u32>,
    /// Process and thread.
    pub(super) threads: Vec<(u32, u32)>,
    pub(super) dots: Vec<Dot>,
    /// When events were lost, and how many.
    pub(super) losses: Vec<(u64, u64)>,
    /// The program that each mapping was made in.
    pub(super) mapped_in: Vec<u32>,
    now_ns: u64,
}

impl<'a> Replay<'a> {
    pub(super) fn new(trace: &'a Trace) -> Self {
        Self {
            trace,
            analyser: Analyser::new(&trace.header),
            programs: Programs::default(),
            frames: Frames::new(&trace.header),
            stack_numbers: HashMap::new(),
            thread_numbers: HashMap::new(),
            threads: Vec::new(),
            dots: Vec::with_capacity(trace.events.len()),
            losses: Vec::new(),
            mapped_in: Vec::new(),
            now_ns: 0,
        }
    }

    /// Takes the next event, so many nanoseconds after the first one.
    pub(super) fn observe(&mut self, event: &Event, time_ns: u64) {
        // Never before the one before, whatever a file says.
        self.now_ns = self.now_ns.max(time_ns);
        if let What::Lost { count } = event.what {
            self.losses.push((self.now_ns, count));
        }
        self.frames.observe(event);
        let trace = self.trace;
        let found = self.analyser.observe(event, |stack| trace.frames(stack));
        let attributor = self.analyser.attributor();
        let program = attributor.program(event.pid);
        // Nothing runs there: the last thread ended, or events were lost.
        if program == 0 {
            return;
        }
        let program = self.programs.number(program, event.pid);
        self.mapped_in.resize(attributor.mappings().len(), program);
        match (&event.what, found) {
            (What::Fault(fault), Some(found)) => self.add(event, program, fault, found),
            _ => self.programs.observe(event, program),
        }
    }

    fn add(&mut self, event: &Event, program: u32, fault: &Fault, found: Attribution) {
        let Event { pid, tid, .. } = *event;
        let thread = *self.thread_numbers.entry((pid, tid)).or_insert_with(|| {
            self.threads.push((pid, tid));
            self.threads.len() as u32 - 1
        });
        let (frames, trace) = (&mut self.frames, self.trace);
        let stack = fault.stack.map(|id| {
            let number = || frames.stack(program, pid, trace.frames(id));
            *self.stack_numbers.entry(id).or_insert_with(number)
        });
        self.dots.push(Dot {
            time_ns: self.now_ns,
            space: program,
            thread,
            mapping: found.mapping,
            kind: found.kind,
            is_arrival: is_arrival(found),
            frame: self.frames.number(program, pid, fault.ip),
            stack,
            fault: *fault,
        });
    }
}
