//! Turns perf's records into the events of a trace.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use cowslip_sys::units::{VirtRange, round_up};

use super::facts::Facts;
use super::record::{At, Call, Family, Fault, Record, Source};
use crate::file::{FRAMES_MOST, Writer};
use crate::model::{self, Access, Event, EventKind, Header, Map, Sink, Totals};

const MAP_ANONYMOUS: u32 = 0x20;
const MREMAP_DONTUNMAP: u32 = 4;
/// The page size of x86: perf's values are specific to x86 (error codes) or already rounded.
const PAGE_BYTES: usize = 4096;

/// Bits of x86's error code.
const PRESENT: u64 = 1;
const WRITE: u64 = 2;
const INSTRUCTION: u64 = 16;

/// The result of an import.
#[derive(Clone, PartialEq, Debug)]
pub struct Imported {
    /// The trace's header, with its origin and the missing events.
    pub header: Header,
    /// The trace's totals.
    pub totals: Totals,
    /// Records that are not faults, mappings or tasks.
    pub ignored: u64,
    /// Calls of `mmap(2)` and `mremap(2)` without a recorded result, so that their address is unknown.
    pub unplaced: u64,
    /// Faults without an address.
    pub without_address: u64,
    /// The longest delay, in nanoseconds, of an event after a younger one; it gets the time of that one.
    pub late_ns: u64,
}

/// Writes the trace.
pub(super) struct Builder<W> {
    writer: Writer<W>,
    family: Option<Family>,
    has_results: bool,
    /// Calls that have not returned, and perf's record of the mapping meanwhile.
    calls: HashMap<u32, (Call, Option<Map>)>,
    /// Events before the first known time.
    before: Vec<Event>,
    last_ns: Option<u64>,
    lost: u64,
    ignored: u64,
    unplaced: u64,
    without_address: u64,
    late_ns: u64,
}

impl<W: Write> Builder<W> {
    pub(super) fn new(writer: Writer<W>, facts: &Facts) -> Self {
        Self {
            writer,
            family: facts.family,
            has_results: facts.has_results,
            calls: HashMap::new(),
            before: Vec::new(),
            last_ns: None,
            lost: 0,
            ignored: 0,
            unplaced: 0,
            without_address: 0,
            late_ns: 0,
        }
    }

    pub(super) fn finish(mut self, header: Header) -> io::Result<Imported> {
        if self.last_ns.is_none() {
            self.begin(0)?;
        }
        // Calls that did not return before the end.
        self.unplaced += self.calls.len() as u64;
        let (_, totals) = self.writer.finish(self.lost)?;
        Ok(Imported {
            header,
            totals,
            ignored: self.ignored,
            unplaced: self.unplaced,
            without_address: self.without_address,
            late_ns: self.late_ns,
        })
    }

    pub(super) fn take(&mut self, at: At, record: Record<'_>) -> io::Result<()> {
        let what = match record {
            Record::Fault(fault) => self.fault(fault)?,
            Record::Map(map) => self.map(at, map),
            Record::Comm { name, is_exec: true } => Some(EventKind::Exec { name: name.into() }),
            Record::Comm { name, is_exec: false } => Some(EventKind::Name { name: name.into() }),
            Record::Fork { child_pid, child_tid } => Some(EventKind::Fork { child_pid, child_tid }),
            Record::Exit => Some(EventKind::Exit),
            Record::Lost { count } => {
                self.lost = self.lost.saturating_add(count);
                Some(EventKind::Lost { count })
            }
            Record::Enter(call) if self.has_results => {
                self.calls.insert(at.tid, (call, None));
                None
            }
            Record::Enter(call) => self.call(call, None),
            Record::Leave { result } => match self.calls.remove(&at.tid) {
                Some((Call::Mmap { .. }, Some(map))) if is_address(result) => {
                    Some(EventKind::Map(map))
                }
                Some((call, _)) if is_address(result) => self.call(call, Some(result)),
                _ => None,
            },
            Record::Other => {
                self.ignored += 1;
                None
            }
        };
        what.map_or(Ok(()), |what| self.event(at, what))
    }

    fn event(&mut self, at: At, what: EventKind) -> io::Result<()> {
        let event = Event { time_ns: 0, pid: at.pid, tid: at.tid, what };
        match at.time_ns.filter(|&time_ns| time_ns > 0) {
            None if self.last_ns.is_none() => {
                self.before.push(event);
                Ok(())
            }
            time_ns => {
                let time_ns = time_ns.or(self.last_ns).unwrap_or_default();
                if self.last_ns.is_none() {
                    self.begin(time_ns)?;
                }
                let last_ns = self.last_ns.unwrap_or_default();
                self.late_ns = self.late_ns.max(last_ns.saturating_sub(time_ns));
                let time_ns = time_ns.max(last_ns);
                self.last_ns = Some(time_ns);
                self.writer.event(&Event { time_ns, ..event })
            }
        }
    }

    /// Writes the earlier events; their mappings are older than the trace.
    fn begin(&mut self, time_ns: u64) -> io::Result<()> {
        self.last_ns = Some(time_ns);
        for mut event in std::mem::take(&mut self.before) {
            event.time_ns = time_ns;
            if let EventKind::Map(map) = &mut event.what {
                map.is_old = true;
            }
            self.writer.event(&event)?;
        }
        Ok(())
    }

    fn fault(&mut self, fault: Fault<'_>) -> io::Result<Option<EventKind>> {
        if Some(fault.source.family()) != self.family {
            self.ignored += 1;
            return Ok(None);
        }
        let Some(address) = fault.address else {
            self.without_address += 1;
            return Ok(None);
        };
        let frames = &fault.frames[..fault.frames.len().min(FRAMES_MOST)];
        let stack = if frames.is_empty() { None } else { Some(self.writer.stack(frames)?) };
        let ip = fault.ip.or(frames.first().copied()).unwrap_or_default();
        let has = |bit| fault.error_code.map(|code| code & bit != 0);
        let access = fault.error_code.map(|code| match code {
            code if code & INSTRUCTION != 0 => Access::Execute,
            code if code & WRITE != 0 => Access::Write,
            _ => Access::Read,
        });
        let severity = match fault.source {
            Source::Severity(severity) => Some(severity),
            _ => None,
        };
        let in_user_mode = match fault.source {
            Source::Exception { in_user_mode } => Some(in_user_mode),
            _ => fault.in_user_mode,
        };
        let was_present = has(PRESENT);
        let fault = model::Fault::at(address, ip);
        let fault = model::Fault { severity, access, was_present, in_user_mode, stack, ..fault };
        Ok(Some(EventKind::Fault(fault)))
    }

    /// perf reports anonymous mappings merged with their neighbours: a recorded call is more exact.
    fn map(&mut self, at: At, map: Map) -> Option<EventKind> {
        match self.calls.get_mut(&at.tid) {
            Some((Call::Mmap { flags, .. }, _)) if *flags & MAP_ANONYMOUS != 0 => None,
            Some((Call::Mmap { .. }, meanwhile)) => {
                *meanwhile = Some(map);
                None
            }
            _ => Some(EventKind::Map(map)),
        }
    }

    /// `result` is the call's return value; `None` if it was not recorded, and the call is taken to succeed.
    fn call(&mut self, call: Call, result: Option<u64>) -> Option<EventKind> {
        match call {
            Call::Mmap { address, length, protection, flags, offset_bytes } => {
                let start = self.placed(result.or((address > 0).then_some(address)))?;
                let range = pages(start, length)?;
                let (name, is_old, stack) = (None::<Arc<str>>, false, None);
                Some(EventKind::Map(Map {
                    range,
                    protection,
                    flags,
                    offset_bytes,
                    inode: 0,
                    name,
                    is_old,
                    stack,
                }))
            }
            Call::Munmap { address, length } => {
                Some(EventKind::Unmap { range: pages(address, length)? })
            }
            Call::Mremap { address, old_length, new_length, flags } => {
                let to = self.placed(result)?;
                let (from, to) = (pages(address, old_length)?, pages(to, new_length)?);
                Some(EventKind::Remap { from, to, kept: flags & MREMAP_DONTUNMAP != 0 })
            }
            Call::Madvise { address, length, advice } => {
                Some(EventKind::Advise { range: pages(address, length)?, advice })
            }
            Call::Brk => result.map(|end| EventKind::Break { end }),
        }
    }

    fn placed(&mut self, address: Option<u64>) -> Option<u64> {
        self.unplaced += u64::from(address.is_none());
        address
    }
}

/// True if it is not an error number.
fn is_address(result: u64) -> bool {
    result < -4095_i64 as u64
}

/// The pages of a call; `None` for those beyond all addresses, where no call succeeds.
fn pages(start: u64, length: u64) -> Option<VirtRange> {
    let length = round_up(length as usize, PAGE_BYTES)?;
    let start = start as usize;
    start.checked_add(length).map(|_| VirtRange::new(start, length))
}
