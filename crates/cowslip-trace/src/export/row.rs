//! An event as a row of a table: the same columns in every format.

use cowslip_sys::units::VirtRange;
use serde::{Serialize, Serializer};

use crate::model::{Access, Event, EventKind, Fault, Map, Severity};

/// The columns in their order: names end with the unit.
pub(super) const COLUMNS: [&str; 27] = [
    "time_ns",
    "pid",
    "tid",
    "kind",
    "address",
    "length_bytes",
    "ip",
    "severity",
    "access",
    "was_present",
    "in_user_mode",
    "huge",
    "latency_ns",
    "to_address",
    "to_length_bytes",
    "kept",
    "advice",
    "protection",
    "flags",
    "offset_bytes",
    "name",
    "is_old",
    "inode",
    "child_pid",
    "child_tid",
    "count",
    "stack",
];

/// The place of the kind among the columns.
const KIND_AT: usize = 3;

/// A cell that is not empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Value<'a> {
    Number(u64),
    /// A number that is written as `0x…`: numbers in JSON have 53 bits in many programs.
    Address(#[serde(serialize_with = "hex")] u64),
    Flag(bool),
    Text(&'a str),
    /// Addresses, the innermost frame first.
    Frames(#[serde(serialize_with = "hex_list")] &'a [u64]),
}

fn hex<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{number:#x}"))
}

fn hex_list<S: Serializer>(numbers: &[u64], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(numbers.iter().map(|number| Value::Address(*number)))
}

/// An event's cells that are not empty, in the order of the columns.
pub(super) struct Row<'a>(Vec<(&'static str, Value<'a>)>);

impl<'a> Row<'a> {
    /// `frames` are those of the event's stack.
    pub(super) fn new(event: &'a Event, frames: &'a [u64]) -> Self {
        let mut row = Self(Vec::with_capacity(COLUMNS.len()));
        row.number("time_ns", event.time_ns);
        row.number("pid", event.pid);
        row.number("tid", event.tid);
        let kind = match &event.what {
            EventKind::Fault(fault) => row.fault(fault, frames),
            EventKind::Map(map) => row.map(map, frames),
            EventKind::Unmap { range } => {
                row.range(*range);
                "unmap"
            }
            EventKind::Remap { from, to, kept } => {
                row.range(*from);
                row.address("to_address", to.start as u64);
                row.number("to_length_bytes", to.len as u64);
                row.flag("kept", Some(*kept));
                "remap"
            }
            EventKind::Advise { range, advice } => {
                row.range(*range);
                row.number("advice", *advice);
                "advise"
            }
            EventKind::Break { end } => {
                row.address("address", *end);
                "break"
            }
            EventKind::Fork { child_pid, child_tid } => {
                row.number("child_pid", *child_pid);
                row.number("child_tid", *child_tid);
                "fork"
            }
            EventKind::Exec { name } => {
                row.text("name", name);
                "exec"
            }
            EventKind::Name { name } => {
                row.text("name", name);
                "name"
            }
            EventKind::Exit => "exit",
            EventKind::Lost { count } => {
                row.number("count", *count);
                "lost"
            }
            EventKind::Detach => "detach",
        };
        row.0.insert(KIND_AT, ("kind", Value::Text(kind)));
        row
    }

    /// The cell of each column.
    pub(super) fn cells(&self) -> impl Iterator<Item = Option<Value<'a>>> {
        let mut cells = self.0.iter().peekable();
        COLUMNS.iter().map(move |name| Some(cells.next_if(|cell| cell.0 == *name)?.1))
    }

    fn fault(&mut self, fault: &Fault, frames: &'a [u64]) -> &'static str {
        self.address("address", fault.address);
        self.address("ip", fault.ip);
        match fault.severity {
            None => {}
            Some(Severity::Minor) => self.text("severity", "minor"),
            Some(Severity::Major) => self.text("severity", "major"),
        }
        match fault.access {
            None => {}
            Some(Access::Read) => self.text("access", "read"),
            Some(Access::Write) => self.text("access", "write"),
            Some(Access::Execute) => self.text("access", "execute"),
        }
        self.flag("was_present", fault.was_present);
        self.flag("in_user_mode", fault.in_user_mode);
        self.flag("huge", fault.huge);
        if let Some(latency_ns) = fault.latency_ns {
            self.number("latency_ns", latency_ns);
        }
        if fault.stack.is_some() {
            self.set("stack", Value::Frames(frames));
        }
        "fault"
    }

    fn map(&mut self, map: &'a Map, frames: &'a [u64]) -> &'static str {
        self.range(map.range);
        self.number("protection", map.protection);
        self.number("flags", map.flags);
        self.number("offset_bytes", map.offset_bytes);
        if let Some(name) = &map.name {
            self.text("name", name);
        }
        self.flag("is_old", Some(map.is_old));
        if map.inode != 0 {
            self.number("inode", map.inode);
        }
        if map.stack.is_some() {
            self.set("stack", Value::Frames(frames));
        }
        "map"
    }

    fn set(&mut self, column: &'static str, value: Value<'a>) {
        self.0.push((column, value));
    }

    fn number(&mut self, column: &'static str, value: impl Into<u64>) {
        self.set(column, Value::Number(value.into()));
    }

    fn address(&mut self, column: &'static str, address: u64) {
        self.set(column, Value::Address(address));
    }

    fn flag(&mut self, column: &'static str, value: Option<bool>) {
        self.0.extend(value.map(|flag| (column, Value::Flag(flag))));
    }

    fn text(&mut self, column: &'static str, text: &'a str) {
        self.set(column, Value::Text(text));
    }

    fn range(&mut self, range: VirtRange) {
        self.address("address", range.start as u64);
        self.number("length_bytes", range.len as u64);
    }
}

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().copied())
    }
}
