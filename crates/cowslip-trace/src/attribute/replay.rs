//! The replay: events in, attributions of faults out.

use std::collections::{HashMap, HashSet};

use cowslip_sys::units::VirtRange;

use super::Attribution;
use super::history::{Circumstances, MappingHistory};
use super::mapping::{Mapping, MappingId, Span};
use super::space::Space;
use crate::model::{Event, EventKind, Header};

/// The end of user address spaces on any 64-bit machine.
const HIGHEST: usize = 1 << 56;

/// Replays the events of a trace, and finds the mapping of each fault and the reason for it.
#[derive(Debug)]
pub struct Attributor {
    processes: HashMap<u32, Process>,
    history: MappingHistory,
    programs: u32,
}

#[derive(Debug)]
struct Process {
    space: Space,
    /// The number of its program: a new one after an exec, the parent's after a fork.
    program: u32,
    /// Threads that appeared and have not ended.
    threads: HashSet<u32>,
    has_leader_ended: bool,
}

impl Attributor {
    /// An attributor for the trace with this header.
    pub fn new(header: &Header) -> Self {
        let history = MappingHistory::new(Circumstances::new(header));
        Self { processes: HashMap::new(), history, programs: 0 }
    }

    /// Takes the next event in the order of time; for a fault, returns its attribution.
    pub fn observe(&mut self, event: &Event) -> Option<Attribution> {
        let Event { time_ns, pid, tid, ref what } = *event;
        self.history.now_ns = time_ns;
        if let EventKind::Lost { .. } = what {
            self.history.circumstances.losses += 1;
            return None;
        }
        if matches!(what, EventKind::Detach) || !what.ranges().all(is_sound) {
            return None;
        }
        let programs = &mut self.programs;
        let process = self.processes.entry(pid).or_insert_with(|| {
            *programs += 1;
            Process::new(Space::new(pid), *programs)
        });
        let (space, history) = (&mut process.space, &mut self.history);
        process.threads.insert(tid);
        match what {
            EventKind::Fault(fault) => return Some(space.fault(fault, history)),
            EventKind::Map(map) => space.map(map, history),
            EventKind::Unmap { range } => space.unmap(*range, history),
            EventKind::Remap { from, to, kept } => {
                space.remap((*from, *to, *kept), history);
            }
            EventKind::Advise { range, advice } => space.advise(*range, *advice, history),
            EventKind::Break { end } => space.set_break(*end, history),
            EventKind::Fork { child_pid, child_tid } if *child_pid == pid => {
                process.threads.insert(*child_tid);
            }
            EventKind::Fork { child_pid, child_tid } => {
                let child = space.fork(*child_pid, history);
                let mut child = Process::new(child, process.program);
                child.threads.insert(*child_tid);
                self.end(*child_pid);
                self.processes.insert(*child_pid, child);
            }
            EventKind::Exec { .. } => {
                self.end(pid);
                self.programs += 1;
                self.processes.insert(pid, Process::new(Space::new(pid), self.programs));
            }
            EventKind::Exit => {
                process.threads.remove(&tid);
                process.has_leader_ended |= tid == pid;
                if process.has_leader_ended && process.threads.is_empty() {
                    self.end(pid);
                }
            }
            EventKind::Name { .. } | EventKind::Lost { .. } | EventKind::Detach => {}
        }
        None
    }

    /// All mappings until now; [`MappingId`] is the index in this slice.
    pub fn mappings(&self) -> &[Mapping] {
        &self.history.mappings
    }

    /// The mapping at an address of a process now, and the offset in the mapping in bytes.
    pub fn locate(&self, pid: u32, address: u64) -> Option<(MappingId, u64)> {
        self.processes.get(&pid)?.space.locate(address)
    }

    /// The number of the program that a process runs: a new one after an exec, the parent's after a fork; 0
    /// before its first event.
    pub fn program(&self, pid: u32) -> u32 {
        self.processes.get(&pid).map_or(0, |process| process.program)
    }

    /// All mappings, and their places and times.
    pub fn finish(self) -> (Vec<Mapping>, Vec<Span>) {
        (self.history.mappings, self.history.spans)
    }

    fn end(&mut self, pid: u32) {
        if let Some(mut process) = self.processes.remove(&pid) {
            process.space.end(&mut self.history);
        }
    }
}

/// True if a range lies in an address space; a broken trace may contain any numbers.
fn is_sound(range: VirtRange) -> bool {
    range.start.checked_add(range.len).is_some_and(|end| end <= HIGHEST)
}

impl Process {
    fn new(space: Space, program: u32) -> Self {
        Self { space, program, threads: HashSet::new(), has_leader_ended: false }
    }
}
