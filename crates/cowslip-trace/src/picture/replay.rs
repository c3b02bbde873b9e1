//! One pass over the events: each fault with its mapping, kind, program, thread, instruction and stack.

use std::collections::HashMap;

use super::bands::Used;
use super::dots::{Dot, Packer};
use super::frames::Frames;
use super::groups::NOWHERE;
use super::programs::Programs;
use crate::analysis::{Analyser, is_arrival};
use crate::attribute::Attribution;
use crate::model::{Event, EventKind, Fault, Header, StackId};
use crate::perf_maps::PerfMaps;

pub(super) struct Replay {
    pub(super) analyser: Analyser,
    pub(super) programs: Programs,
    pub(super) frames: Frames,
    /// The numbers of stacks by their id.
    stack_numbers: HashMap<StackId, u32>,
    thread_numbers: HashMap<(u32, u32), u32>,
    /// Process and thread, by number.
    pub(super) threads: Vec<(u32, u32)>,
    pub(super) dots: Packer,
    /// Used addresses, by program.
    pub(super) used: Vec<Used>,
    /// The times of losses of events, and the numbers lost.
    pub(super) losses: Vec<(u64, u64)>,
    /// The program in which each mapping was made.
    pub(super) mapped_in: Vec<u32>,
    pub(super) events: u64,
    pub(super) origin_ns: u64,
    now_ns: u64,
}

impl Replay {
    pub(super) fn new(header: &Header) -> Self {
        Self {
            analyser: Analyser::new(header).with_perf_maps(PerfMaps::new(header)),
            programs: Programs::default(),
            frames: Frames::new(header),
            stack_numbers: HashMap::new(),
            thread_numbers: HashMap::new(),
            threads: Vec::new(),
            dots: Packer::default(),
            used: Vec::new(),
            losses: Vec::new(),
            mapped_in: Vec::new(),
            events: 0,
            origin_ns: 0,
            now_ns: 0,
        }
    }

    /// Takes the next event in the order of time; `frames` are those of a call stack, the innermost first.
    pub(super) fn observe<'a>(
        &mut self,
        event: &Event,
        frames: impl Fn(StackId) -> &'a [u64] + Copy,
    ) {
        if self.events == 0 {
            self.origin_ns = event.time_ns;
        }
        self.events += 1;
        // Times never decrease, even in a wrong file.
        self.now_ns = self.now_ns.max(event.time_ns.saturating_sub(self.origin_ns));
        if let EventKind::Lost { count } = event.what {
            self.losses.push((self.now_ns, count));
        }
        let found = self.analyser.observe(event, frames);
        let attributor = self.analyser.attributor();
        let program = attributor.program(event.pid);
        // No program runs there: the last thread ended, or events were lost.
        if program == 0 {
            return;
        }
        let program = self.programs.number(program, event.pid);
        self.mapped_in.resize(attributor.mappings().len(), program);
        match (&event.what, found) {
            (EventKind::Fault(fault), Some(found)) => {
                self.add(event, program, fault, found, frames);
            }
            _ => self.programs.observe(event, program),
        }
    }

    fn add<'a>(
        &mut self,
        event: &Event,
        program: u32,
        fault: &Fault,
        found: Attribution,
        frames: impl Fn(StackId) -> &'a [u64],
    ) {
        let Event { pid, tid, .. } = *event;
        let thread = *self.thread_numbers.entry((pid, tid)).or_insert_with(|| {
            self.threads.push((pid, tid));
            self.threads.len() as u32 - 1
        });
        let (names, analyser) = (&mut self.frames, &mut self.analyser);
        let stack = fault.stack.map(|id| {
            let number = || names.stack((program, pid), frames(id), analyser);
            *self.stack_numbers.entry(id).or_insert_with(number)
        });
        let mapping = found.mapping;
        let group = mapping.map_or(NOWHERE, |mapping| self.analyser.group(mapping) + 1);
        let used = program as usize;
        if self.used.len() <= used {
            self.used.resize_with(used + 1, Used::default);
        }
        self.used[used].touch(fault.address, group);
        self.dots.push(&Dot {
            time_ns: self.now_ns,
            space: program,
            thread,
            group,
            kind: found.kind,
            is_arrival: is_arrival(found),
            frame: self.frames.innermost((program, pid), fault.ip, &mut self.analyser),
            stack,
            fault: *fault,
        });
    }
}
