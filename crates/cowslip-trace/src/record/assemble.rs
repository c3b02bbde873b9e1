//! Assembles events: calls with their results, faults with their beginnings, and the new parts of mappings.

use std::collections::HashMap;
use std::io;

use super::decode::{Callers, RawEvent, Told, pages};
use super::plan::Call;
use super::reorder_buffer::{ReorderBuffer, Ticket};
use super::space::{Spaces, is_anonymous};
use super::unwind::Unwinder;
use crate::model::{Access, Event, EventKind, Fault, Map, Sink, StackId, SystemCall, Tick};

const MREMAP_DONTUNMAP: u64 = 4;

/// Bits of a page fault's code, of x86 and of others that follow it.
mod code {
    pub(super) const PRESENT: u64 = 1;
    pub(super) const WRITE: u64 = 1 << 1;
    pub(super) const INSTRUCTION: u64 = 1 << 4;
}

/// Assembles records that come in the order of time.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    pub(super) spaces: Spaces,
    threads: HashMap<u32, Thread>,
    /// The program break of each process.
    breaks: HashMap<u32, u64>,
    reorder_buffer: ReorderBuffer,
    unwinder: Unwinder,
    frames: Vec<u64>,
}

/// The unfinished call and fault of a thread.
#[derive(Debug, Default)]
struct Thread {
    call: Option<Calling>,
    fault: Option<Begun>,
}

#[derive(Debug)]
struct Calling {
    call: Call,
    began_ns: u64,
    arguments: [u64; 4],
    stack: Option<StackId>,
    ticket: Option<Ticket>,
    mapped: Option<Box<Map>>,
}

#[derive(Clone, Copy, Debug)]
struct Begun {
    time_ns: u64,
    address: u64,
    code: Option<u64>,
    has_huge: bool,
}

impl Assembler {
    pub(super) fn take(&mut self, told: Told, sink: &mut dyn Sink) -> io::Result<()> {
        let Told { time_ns, pid, tid, what } = told;
        let event = |what| Event { time_ns, pid, tid, what };
        match what {
            RawEvent::Begin { address, code } => {
                let begun = Begun { time_ns, address, code, has_huge: false };
                self.threads.entry(tid).or_default().fault = Some(begun);
                Ok(())
            }
            RawEvent::Tick { ip, in_user_mode, callers } => {
                let stack = self.stack(pid, callers, sink)?;
                // Mappings before it, which no call delays here.
                self.reorder_buffer.finish(sink)?;
                sink.tick(&Tick { pid, tid, ip, in_user_mode, stack })
            }
            RawEvent::SystemCall(number) => {
                sink.system_call(&SystemCall { time_ns, pid, tid, number })
            }
            RawEvent::HugePage => {
                if let Some(Thread { fault: Some(fault), .. }) = self.threads.get_mut(&tid) {
                    fault.has_huge = true;
                }
                Ok(())
            }
            RawEvent::End { address, ip, severity, in_user_mode, callers } => {
                let stack = self.stack(pid, callers, sink)?;
                let mut fault = Fault {
                    severity: Some(severity),
                    in_user_mode: Some(in_user_mode),
                    stack,
                    ..Fault::at(address, ip)
                };
                let thread = self.threads.get_mut(&tid);
                let begun = thread.and_then(|thread| thread.fault.take());
                if let Some(begun) = begun.filter(|begun| begun.address == address) {
                    self.add_beginning(&mut fault, pid, time_ns, begun);
                }
                self.reorder_buffer.push(event(EventKind::Fault(fault)), sink)
            }
            RawEvent::Enter { call, arguments, callers } => {
                let stack = self.stack(pid, callers, sink)?;
                self.enter(time_ns, pid, tid, call, arguments, stack, sink)
            }
            RawEvent::Leave { call, answer } => self.leave(time_ns, pid, tid, call, answer, sink),
            RawEvent::Mapped(map) => self.mapped(time_ns, pid, tid, map, sink),
            RawEvent::Exec(name) => {
                self.forget(tid, sink)?;
                self.breaks.remove(&pid);
                self.unwinder.forget(pid);
                self.emit(event(EventKind::Exec { name }), sink)
            }
            RawEvent::Name(name) => self.emit(event(EventKind::Name { name }), sink),
            RawEvent::Fork { pid: child_pid, tid: child_tid } => {
                if let Some(&at) = self.breaks.get(&pid) {
                    self.breaks.insert(child_pid, at);
                }
                self.emit(event(EventKind::Fork { child_pid, child_tid }), sink)
            }
            RawEvent::Exit => {
                self.forget(tid, sink)?;
                self.emit(event(EventKind::Exit), sink)?;
                if !self.spaces.spaces.contains_key(&pid) {
                    self.breaks.remove(&pid);
                    self.unwinder.forget(pid);
                }
                Ok(())
            }
            RawEvent::Lost(count) => {
                // The ends of calls may be among the lost records: their events must not be waited for.
                self.reorder_buffer.finish(sink)?;
                self.reorder_buffer.push(event(EventKind::Lost { count }), sink)
            }
        }
    }

    /// Drops calls that have not ended.
    pub(super) fn finish(&mut self, sink: &mut dyn Sink) -> io::Result<()> {
        self.reorder_buffer.finish(sink)
    }

    /// The call stack, by the mappings up to now.
    fn stack(
        &mut self,
        pid: u32,
        callers: Callers,
        sink: &mut dyn Sink,
    ) -> io::Result<Option<StackId>> {
        let copied = match callers {
            Callers::Unknown => return Ok(None),
            Callers::Known(stack) => return Ok(Some(stack)),
            Callers::Copied(copied) => copied,
        };
        let Some(space) = self.spaces.spaces.get(&pid) else { return Ok(None) };
        self.unwinder.frames(pid, space, &copied, &mut self.frames);
        if self.frames.is_empty() { Ok(None) } else { sink.stack(&self.frames).map(Some) }
    }

    fn emit(&mut self, event: Event, sink: &mut dyn Sink) -> io::Result<()> {
        self.spaces.apply(&event);
        self.reorder_buffer.push(event, sink)
    }

    /// Drops the unfinished call and fault of a thread.
    fn forget(&mut self, tid: u32, sink: &mut dyn Sink) -> io::Result<()> {
        if let Some(Thread { call: Some(Calling { ticket: Some(ticket), .. }), .. }) =
            self.threads.remove(&tid)
        {
            self.reorder_buffer.settle(ticket, None, sink)?;
        }
        Ok(())
    }

    fn add_beginning(&self, fault: &mut Fault, pid: u32, end_ns: u64, begun: Begun) {
        fault.latency_ns = u32::try_from(end_ns.saturating_sub(begun.time_ns)).ok();
        let Some(code) = begun.code else { return };
        let was_present = code & code::PRESENT != 0;
        fault.was_present = Some(was_present);
        fault.access = Some(if code & code::INSTRUCTION != 0 {
            Access::Execute
        } else if code & code::WRITE != 0 {
            Access::Write
        } else {
            Access::Read
        });
        // Without an allocation the page may still be huge: the zero page, or a page of a file.
        let space = self.spaces.spaces.get(&pid);
        let is_anonymous = || space?.at(fault.address as usize).map(is_anonymous);
        fault.huge = match begun.has_huge {
            true => Some(true),
            false if fault.access == Some(Access::Write) && !was_present => {
                is_anonymous().filter(|&answer| answer).map(|_| false)
            }
            false => None,
        };
    }

    #[allow(clippy::too_many_arguments, reason = "a record's fields, taken apart")]
    fn enter(
        &mut self,
        began_ns: u64,
        pid: u32,
        tid: u32,
        call: Call,
        arguments: [u64; 4],
        stack: Option<StackId>,
        sink: &mut dyn Sink,
    ) -> io::Result<()> {
        self.forget(tid, sink)?;
        let ticket = match call {
            Call::Unmap | Call::Remap | Call::Advise => Some(self.reorder_buffer.hold()),
            Call::Map | Call::Break => None,
        };
        if call == Call::Unmap
            && let Some(range) = pages(arguments[0], arguments[1])
        {
            // Another thread may map the same addresses before this call is seen to end: they are free by
            // then.
            self.spaces.apply(&Event {
                time_ns: began_ns,
                pid,
                tid,
                what: EventKind::Unmap { range },
            });
        }
        let calling = Calling { call, began_ns, arguments, stack, ticket, mapped: None };
        self.threads.entry(tid).or_default().call = Some(calling);
        Ok(())
    }

    fn leave(
        &mut self,
        time_ns: u64,
        pid: u32,
        tid: u32,
        call: Call,
        answer: u64,
        sink: &mut dyn Sink,
    ) -> io::Result<()> {
        let calling = self.threads.get_mut(&tid).and_then(|thread| thread.call.take());
        let Some(calling) = calling.filter(|calling| calling.call == call) else { return Ok(()) };
        let what = match is_error(answer) {
            true => None,
            false => self.outcome(pid, &calling, answer),
        };
        let Some(what) = what else {
            return match calling.ticket {
                Some(ticket) => self.reorder_buffer.settle(ticket, None, sink).map(drop),
                None => Ok(()),
            };
        };
        let mut event = Event { time_ns, pid, tid, what };
        if call != Call::Unmap {
            self.spaces.apply(&event);
        }
        if let Some(ticket) = calling.ticket {
            let held = Event { time_ns: calling.began_ns, ..event.clone() };
            if self.reorder_buffer.settle(ticket, Some(held), sink)? {
                return Ok(());
            }
        }
        event.time_ns = time_ns;
        self.reorder_buffer.push(event, sink)
    }

    /// The effect of a call that succeeded.
    fn outcome(&mut self, pid: u32, calling: &Calling, answer: u64) -> Option<EventKind> {
        let [a, b, c, d] = calling.arguments;
        Some(match calling.call {
            Call::Map => {
                let (length, protection, flags, offset) = (a, b, c, d);
                let mapped = calling.mapped.as_deref();
                let name = mapped.and_then(|map| map.name.clone());
                let inode = mapped.map_or(0, |map| map.inode);
                let is_file = name.as_deref().is_some_and(|name| name.starts_with('/'));
                EventKind::Map(Map {
                    range: pages(answer, length)?,
                    protection: protection as u32,
                    flags: flags as u32,
                    offset_bytes: if is_file { offset } else { 0 },
                    inode,
                    name,
                    is_old: false,
                    stack: calling.stack,
                })
            }
            Call::Unmap => EventKind::Unmap { range: pages(a, b)? },
            Call::Remap => EventKind::Remap {
                from: pages(a, b)?,
                to: pages(answer, c)?,
                kept: d & MREMAP_DONTUNMAP != 0 || b == 0,
            },
            Call::Advise => EventKind::Advise { range: pages(a, b)?, advice: c as u32 },
            Call::Break => {
                if self.breaks.insert(pid, answer) == Some(answer) {
                    return None;
                }
                EventKind::Break { end: answer }
            }
        })
    }

    /// Handles the kernel's record of a mapping: made by the current call of this thread, or new or changed
    /// by other means.
    fn mapped(
        &mut self,
        time_ns: u64,
        pid: u32,
        tid: u32,
        map: Box<Map>,
        sink: &mut dyn Sink,
    ) -> io::Result<()> {
        let calling = self.threads.get_mut(&tid).and_then(|thread| thread.call.as_mut());
        match calling {
            Some(calling) if calling.call == Call::Map => {
                // The mapping was made now, which is the place of its event; the end of the call tells its
                // addresses.
                calling.began_ns = time_ns;
                if calling.ticket.is_none() {
                    calling.ticket = Some(self.reorder_buffer.hold());
                }
                calling.mapped = Some(map);
                return Ok(());
            }
            Some(calling) if calling.call == Call::Break => return Ok(()),
            _ => {}
        }
        let news = self.spaces.spaces.entry(pid).or_default().news(&map);
        for map in news {
            self.emit(Event { time_ns, pid, tid, what: EventKind::Map(map) }, sink)?;
        }
        Ok(())
    }

    /// A mapping from before the trace.
    pub(super) fn begin_with(&mut self, event: Event, sink: &mut dyn Sink) -> io::Result<()> {
        self.emit(event, sink)
    }
}

fn is_error(answer: u64) -> bool {
    (-4095..0).contains(&(answer as i64))
}
