//! Folded stacks, with the number of faults in each: `program;outermost;…;innermost 12`.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read, Write};
use std::sync::Arc;

use super::Events;
use crate::model::{Event, EventKind, Fault};
use crate::symbols::Symbols;

/// The line that counts lost events.
const LOST: &str = "[events lost]";

pub(super) fn write(events: &mut Events<'_, impl Read>, output: impl Write) -> io::Result<()> {
    let mut symbols = Symbols::new(events.reader.header());
    let mut threads = Threads::default();
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let mut line = String::new();
    events.each(|reader, event| {
        symbols.observe(event);
        threads.observe(event);
        let count = match &event.what {
            EventKind::Fault(fault) => {
                line.clear();
                push(&mut line, &threads.name(event));
                fold(&mut line, &mut symbols, event.pid, fault, reader.frames_of(event));
                1
            }
            EventKind::Lost { count } => {
                LOST.clone_into(&mut line);
                *count
            }
            _ => return Ok(()),
        };
        match counts.get_mut(&line) {
            Some(sum) => *sum = sum.saturating_add(count),
            None => drop(counts.insert(line.clone(), count)),
        }
        Ok(())
    })?;
    let mut output = io::BufWriter::new(output);
    counts.iter().try_for_each(|(line, count)| writeln!(output, "{line} {count}"))?;
    output.flush()
}

/// Appends the frames, the outermost first; without a stack, the faulting instruction.
fn fold(line: &mut String, symbols: &mut Symbols, pid: u32, fault: &Fault, frames: &[u64]) {
    let (innermost, callers) = frames.split_first().unwrap_or((&fault.ip, &[]));
    // The calls themselves, not the instructions after them.
    let calls = callers.iter().rev().map(|frame| frame.saturating_sub(1));
    for place in calls.chain([*innermost]) {
        for function in symbols.functions(pid, place).iter().rev() {
            line.push(';');
            push(line, function);
        }
    }
}

/// Appends a name, without characters that end frames and lines.
fn push(line: &mut String, name: &str) {
    line.extend(name.chars().map(|c| if c == ';' || c.is_control() { '_' } else { c }));
}

/// The names of threads.
#[derive(Default)]
struct Threads(HashMap<u32, Arc<str>>);

impl Threads {
    fn observe(&mut self, event: &Event) {
        match &event.what {
            EventKind::Exec { name } | EventKind::Name { name } => {
                self.0.insert(event.tid, name.clone());
            }
            EventKind::Fork { child_tid, .. } => match self.0.get(&event.tid).cloned() {
                Some(name) => drop(self.0.insert(*child_tid, name)),
                None => drop(self.0.remove(child_tid)),
            },
            _ => {}
        }
    }

    fn name(&self, event: &Event) -> Arc<str> {
        let name = self.0.get(&event.tid).or_else(|| self.0.get(&event.pid));
        name.cloned().unwrap_or_else(|| format!("process {}", event.pid).into())
    }
}
