//! Decoding: turns the kernel's records into their meaning for a trace.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use cowslip_sys::perf::{MapRecord, Record, Stamped};
use cowslip_sys::units::{VirtRange, page_size_bytes, round_up};

use super::attach::Route;
use super::dedup::Dedup;
use super::plan::{Call, Role, Source};
use super::unwind::Copied;
use crate::model::{Map, Severity, Sink, StackId};

/// The callers at an event.
#[derive(Clone, Debug)]
pub(super) enum Callers {
    Unknown,
    Known(StackId),
    /// To be found by the process' mappings at that time.
    Copied(Box<Copied>),
}

/// A decoded record, not yet combined with related ones.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) time_ns: u64,
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) what: RawEvent,
}

#[derive(Clone, Debug)]
pub(super) enum RawEvent {
    /// A fault begins; `code` is the processor's description of it.
    Begin {
        address: u64,
        code: Option<u64>,
    },
    HugePage,
    Tick {
        ip: u64,
        in_user_mode: bool,
        callers: Callers,
    },
    End {
        address: u64,
        ip: u64,
        severity: Severity,
        in_user_mode: bool,
        callers: Callers,
    },
    Enter {
        call: Call,
        arguments: [u64; 4],
        callers: Callers,
    },
    Leave {
        call: Call,
        answer: u64,
    },
    /// A system call begins, or, without a number, ends.
    SystemCall(Option<u64>),
    /// A mapping as the kernel has it now; parts of it may be old.
    Mapped(Box<Map>),
    Exec(Arc<str>),
    Name(Arc<str>),
    Fork {
        pid: u32,
        tid: u32,
    },
    Exit,
    Lost(u64),
}

/// Other counts from decoding.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Oddities {
    /// Records of unknown meaning.
    pub(super) malformed: u64,
    /// Times that the kernel stopped reporting an event because it happened too often.
    pub(super) throttled: u64,
    /// Faults of the recorder itself.
    pub(super) own_faults: u64,
}

/// The context for decoding records.
pub(super) struct Decoder<'a> {
    pub(super) sources: &'a [Source],
    pub(super) routes: &'a HashMap<u64, Route>,
    /// A process whose records are left out.
    pub(super) except: Option<u32>,
    pub(super) dedup: &'a mut Dedup,
    pub(super) oddities: &'a mut Oddities,
    pub(super) frames: &'a mut Vec<u64>,
    pub(super) sink: &'a mut dyn Sink,
}

impl Decoder<'_> {
    /// The meaning of a record; `None` if it has none, or if it is a duplicate.
    pub(super) fn decode(&mut self, bytes: &[u8]) -> io::Result<Option<Told>> {
        let layout = |id| Some(self.sources[usize::from(self.routes.get(&id)?.source)].layout());
        let Some(Stamped { stamp, record }) = Stamped::parse(bytes, layout) else {
            self.oddities.malformed += 1;
            return Ok(None);
        };
        let route = self.routes.get(&stamp.id).copied();
        if let Some(route) = route
            && !self.dedup.believes(route.thread, &stamp, &record)
        {
            return Ok(None);
        }
        if self.except == Some(stamp.pid) && !matches!(record, Record::Lost(_) | Record::Throttled)
        {
            let is_end =
                |route: Route| matches!(self.sources[usize::from(route.source)].role, Role::End(_));
            let is_fault = matches!(record, Record::Sample(_)) && route.is_some_and(is_end);
            self.oddities.own_faults += u64::from(is_fault);
            return Ok(None);
        }
        let told =
            |what| Ok(Some(Told { time_ns: stamp.time_ns, pid: stamp.pid, tid: stamp.tid, what }));
        match record {
            Record::Sample(sample) => {
                let Some(route) = route else { return Ok(None) };
                let source = &self.sources[usize::from(route.source)];
                self.frames.clear();
                self.frames.extend(sample.stack());
                let callers = match &sample.copy {
                    Some(copy) => Callers::Copied(Box::new(Copied::from_copy(copy))),
                    None if self.frames.is_empty() => Callers::Unknown,
                    None => Callers::Known(self.sink.stack(self.frames)?),
                };
                told(match source.role {
                    Role::Tick => {
                        RawEvent::Tick { ip: sample.ip, in_user_mode: sample.in_user_mode, callers }
                    }
                    Role::End(severity) => RawEvent::End {
                        address: sample.address,
                        ip: sample.ip,
                        severity,
                        in_user_mode: sample.in_user_mode,
                        callers,
                    },
                    Role::Begin => RawEvent::Begin { address: sample.address, code: None },
                    Role::Entry => {
                        let [address, code, ..] = source.read(sample.fields);
                        RawEvent::Begin { address, code: Some(code) }
                    }
                    Role::HugePage => RawEvent::HugePage,
                    Role::Enter(call) => {
                        RawEvent::Enter { call, arguments: source.read(sample.fields), callers }
                    }
                    Role::AnyEnter => RawEvent::SystemCall(Some(source.read(sample.fields)[0])),
                    Role::AnyLeave => RawEvent::SystemCall(None),
                    Role::Leave(call) => {
                        RawEvent::Leave { call, answer: source.read(sample.fields)[0] }
                    }
                })
            }
            Record::Map(map) => match mapped(&map) {
                Some(map) => told(RawEvent::Mapped(Box::new(map))),
                None => {
                    self.oddities.malformed += 1;
                    Ok(None)
                }
            },
            Record::Name { is_exec: true, name } => told(RawEvent::Exec(text(name))),
            Record::Name { is_exec: false, name } => told(RawEvent::Name(text(name))),
            Record::Fork { pid, tid } => told(RawEvent::Fork { pid, tid }),
            Record::Exit { pid, tid } => {
                Ok(Some(Told { time_ns: stamp.time_ns, pid, tid, what: RawEvent::Exit }))
            }
            Record::Lost(count) => told(RawEvent::Lost(count)),
            Record::Throttled => {
                self.oddities.throttled += 1;
                Ok(None)
            }
            Record::Other(_) => Ok(None),
        }
    }
}

fn text(name: &[u8]) -> Arc<str> {
    String::from_utf8_lossy(name).into()
}

fn mapped(map: &MapRecord<'_>) -> Option<Map> {
    Some(Map {
        range: pages(map.address, map.length_bytes)?,
        protection: map.protection,
        flags: map.flags,
        offset_bytes: map.offset_bytes,
        inode: map.inode,
        name: (map.name != b"//anon" && !map.name.is_empty()).then(|| text(map.name)),
        is_old: false,
        stack: None,
    })
}

/// Whole pages from `address` on; `None` if that is beyond the address space.
pub(super) fn pages(address: u64, length_bytes: u64) -> Option<VirtRange> {
    let length = round_up(usize::try_from(length_bytes).ok()?, page_size_bytes())?;
    let start = usize::try_from(address).ok()?;
    start.checked_add(length)?;
    Some(VirtRange::new(start, length))
}
