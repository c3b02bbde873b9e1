//! An event as a row of a table: the same columns in every format.

use cowslip_sys::units::VirtRange;

use crate::model::{Access, Event, EventKind, Fault, Map, Severity};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Column {
    Time,
    Pid,
    Tid,
    Kind,
    Address,
    Length,
    Ip,
    Severity,
    Access,
    WasPresent,
    InUserMode,
    Huge,
    Latency,
    ToAddress,
    ToLength,
    Kept,
    Advice,
    Protection,
    Flags,
    Offset,
    Name,
    IsOld,
    Inode,
    ChildPid,
    ChildTid,
    Count,
    Stack,
}

/// The columns in their order: names end with the unit.
pub(super) const COLUMNS: [(Column, &str); 27] = [
    (Column::Time, "time_ns"),
    (Column::Pid, "pid"),
    (Column::Tid, "tid"),
    (Column::Kind, "kind"),
    (Column::Address, "address"),
    (Column::Length, "length_bytes"),
    (Column::Ip, "ip"),
    (Column::Severity, "severity"),
    (Column::Access, "access"),
    (Column::WasPresent, "was_present"),
    (Column::InUserMode, "in_user_mode"),
    (Column::Huge, "huge"),
    (Column::Latency, "latency_ns"),
    (Column::ToAddress, "to_address"),
    (Column::ToLength, "to_length_bytes"),
    (Column::Kept, "kept"),
    (Column::Advice, "advice"),
    (Column::Protection, "protection"),
    (Column::Flags, "flags"),
    (Column::Offset, "offset_bytes"),
    (Column::Name, "name"),
    (Column::IsOld, "is_old"),
    (Column::Inode, "inode"),
    (Column::ChildPid, "child_pid"),
    (Column::ChildTid, "child_tid"),
    (Column::Count, "count"),
    (Column::Stack, "stack"),
];

/// A cell that is not empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Value<'a> {
    Number(u64),
    /// A number that is written as `0x…`.
    Address(u64),
    Flag(bool),
    Text(&'a str),
    /// Addresses, the innermost frame first.
    Frames(&'a [u64]),
}

/// An event's cells, in the order of the columns.
pub(super) struct Row<'a>([Option<Value<'a>>; COLUMNS.len()]);

impl<'a> Row<'a> {
    /// `frames` are those of the event's stack.
    pub(super) fn new(event: &'a Event, frames: &'a [u64]) -> Self {
        let mut row = Self([None; COLUMNS.len()]);
        row.number(Column::Time, event.time_ns);
        row.number(Column::Pid, event.pid);
        row.number(Column::Tid, event.tid);
        let kind = match &event.what {
            EventKind::Fault(fault) => row.fault(fault, frames),
            EventKind::Map(map) => row.map(map, frames),
            EventKind::Unmap { range } => {
                row.range(*range);
                "unmap"
            }
            EventKind::Remap { from, to, kept } => {
                row.range(*from);
                row.address(Column::ToAddress, to.start as u64);
                row.number(Column::ToLength, to.len as u64);
                row.flag(Column::Kept, Some(*kept));
                "remap"
            }
            EventKind::Advise { range, advice } => {
                row.range(*range);
                row.number(Column::Advice, *advice);
                "advise"
            }
            EventKind::Break { end } => {
                row.address(Column::Address, *end);
                "break"
            }
            EventKind::Fork { child_pid, child_tid } => {
                row.number(Column::ChildPid, *child_pid);
                row.number(Column::ChildTid, *child_tid);
                "fork"
            }
            EventKind::Exec { name } => {
                row.text(Column::Name, name);
                "exec"
            }
            EventKind::Name { name } => {
                row.text(Column::Name, name);
                "name"
            }
            EventKind::Exit => "exit",
            EventKind::Lost { count } => {
                row.number(Column::Count, *count);
                "lost"
            }
        };
        row.text(Column::Kind, kind);
        row
    }

    /// Each column with its cell.
    pub(super) fn cells(&self) -> impl Iterator<Item = (&'static str, Option<Value<'a>>)> + '_ {
        COLUMNS.iter().zip(&self.0).map(|(&(_, name), &value)| (name, value))
    }

    fn fault(&mut self, fault: &Fault, frames: &'a [u64]) -> &'static str {
        self.address(Column::Address, fault.address);
        self.address(Column::Ip, fault.ip);
        match fault.severity {
            None => {}
            Some(Severity::Minor) => self.text(Column::Severity, "minor"),
            Some(Severity::Major) => self.text(Column::Severity, "major"),
        }
        match fault.access {
            None => {}
            Some(Access::Read) => self.text(Column::Access, "read"),
            Some(Access::Write) => self.text(Column::Access, "write"),
            Some(Access::Execute) => self.text(Column::Access, "execute"),
        }
        self.flag(Column::WasPresent, fault.was_present);
        self.flag(Column::InUserMode, fault.in_user_mode);
        self.flag(Column::Huge, fault.huge);
        if let Some(latency_ns) = fault.latency_ns {
            self.number(Column::Latency, latency_ns);
        }
        if fault.stack.is_some() {
            self.set(Column::Stack, Value::Frames(frames));
        }
        "fault"
    }

    fn map(&mut self, map: &'a Map, frames: &'a [u64]) -> &'static str {
        self.range(map.range);
        self.number(Column::Protection, map.protection);
        self.number(Column::Flags, map.flags);
        self.number(Column::Offset, map.offset_bytes);
        if let Some(name) = &map.name {
            self.text(Column::Name, name);
        }
        self.flag(Column::IsOld, Some(map.is_old));
        if map.inode != 0 {
            self.number(Column::Inode, map.inode);
        }
        if map.stack.is_some() {
            self.set(Column::Stack, Value::Frames(frames));
        }
        "map"
    }

    fn set(&mut self, column: Column, value: Value<'a>) {
        self.0[column as usize] = Some(value);
    }

    fn number(&mut self, column: Column, value: impl Into<u64>) {
        self.set(column, Value::Number(value.into()));
    }

    fn address(&mut self, column: Column, address: u64) {
        self.set(column, Value::Address(address));
    }

    fn flag(&mut self, column: Column, value: Option<bool>) {
        self.0[column as usize] = value.map(Value::Flag);
    }

    fn text(&mut self, column: Column, text: &'a str) {
        self.set(column, Value::Text(text));
    }

    fn range(&mut self, range: VirtRange) {
        self.address(Column::Address, range.start as u64);
        self.number(Column::Length, range.len as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::COLUMNS;

    #[test]
    fn columns_are_in_their_order() {
        for (i, (column, name)) in COLUMNS.iter().enumerate() {
            assert_eq!(*column as usize, i, "{name}");
        }
    }
}
