//! Encoding: turns events into the columns of a block.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use cowslip_sys::units::VirtRange;

use super::column::{put, put_difference, put_text};
use super::layout::{COLUMNS, Column, EventCode, PAGE_SHIFT, shape};
use crate::model::{Access, Event, EventKind, Fault, Map, Severity, StackId};

/// The columns of the block being filled.
#[derive(Default)]
pub(super) struct Columns {
    columns: [Vec<u8>; COLUMNS],
    threads: Table<(u32, u32)>,
    /// The page of each thread's last fault, by the thread's index in the table.
    last_pages: Vec<u64>,
    ips: Table<u64>,
    last_new_ip: u64,
    strings: Table<Arc<str>>,
    last_range_end: u64,
    last_ns: u64,
}

impl Columns {
    /// Empties the columns for the next block.
    pub(super) fn clear(&mut self) {
        self.columns.iter_mut().for_each(Vec::clear);
        self.threads.clear();
        self.last_pages.clear();
        self.ips.clear();
        self.strings.clear();
        (self.last_new_ip, self.last_range_end) = (0, 0);
    }

    /// Begins a block with the time of its first event.
    pub(super) fn begin(&mut self, time_ns: u64) {
        self.last_ns = time_ns;
    }

    pub(super) fn bytes(&self) -> usize {
        self.columns.iter().map(Vec::len).sum()
    }

    /// All columns, each after its length.
    pub(super) fn content(&self, content: &mut Vec<u8>) {
        content.clear();
        for column in &self.columns {
            put(content, column.len() as u64);
            content.extend_from_slice(column);
        }
    }

    fn column(&mut self, column: Column) -> &mut Vec<u8> {
        &mut self.columns[column as usize]
    }

    pub(super) fn stack(&mut self, frames: &[u64]) {
        let column = self.column(Column::Stacks);
        put(column, frames.len() as u64);
        let mut last = 0;
        for &frame in frames {
            put_difference(column, last, frame);
            last = frame;
        }
    }

    /// Adds an event, which must not be older than the one before.
    pub(super) fn event(&mut self, event: &Event) {
        let elapsed = event.time_ns - self.last_ns;
        self.last_ns = event.time_ns;
        put(self.column(Column::Times), elapsed);
        let (thread, is_new) = self.threads.place(&(event.pid, event.tid));
        let column = self.column(Column::Threads);
        put(column, thread as u64);
        if is_new {
            put(column, event.pid.into());
            put(column, event.tid.into());
            self.last_pages.push(0);
        }
        let kind = match &event.what {
            EventKind::Fault(fault) => self.fault(fault, thread),
            other => self.other(other),
        };
        self.column(Column::Kinds).push(kind as u8);
    }

    fn fault(&mut self, fault: &Fault, thread: usize) -> EventCode {
        let page = fault.address >> PAGE_SHIFT;
        let last_page = std::mem::replace(&mut self.last_pages[thread], page);
        put(self.column(Column::Shapes), shape_of(fault));
        put_difference(self.column(Column::Pages), last_page, page);
        put(self.column(Column::Offsets), fault.address & ((1 << PAGE_SHIFT) - 1));
        let (ip, is_new) = self.ips.place(&fault.ip);
        let last_new_ip = self.last_new_ip;
        let column = self.column(Column::Ips);
        put(column, ip as u64);
        if is_new {
            put_difference(column, last_new_ip, fault.ip);
            self.last_new_ip = fault.ip;
        }
        let column = self.column(Column::Details);
        if let Some(latency_ns) = fault.latency_ns {
            put(column, latency_ns.into());
        }
        if let Some(stack) = fault.stack {
            put(column, stack.0.get().into());
        }
        EventCode::Fault
    }

    fn other(&mut self, what: &EventKind) -> EventCode {
        match what {
            EventKind::Fault(_) => unreachable!("faults have columns of their own"),
            EventKind::Map(map) => self.map(map),
            EventKind::Unmap { range } => {
                self.range(*range);
                EventCode::Unmap
            }
            EventKind::Remap { from, to, kept } => {
                self.range(*from);
                self.range(*to);
                self.put(u64::from(*kept));
                EventCode::Remap
            }
            EventKind::Advise { range, advice } => {
                self.range(*range);
                self.put(u64::from(*advice));
                EventCode::Advise
            }
            EventKind::Break { end } => {
                self.put(*end);
                EventCode::Break
            }
            EventKind::Fork { child_pid, child_tid } => {
                self.put(u64::from(*child_pid));
                self.put(u64::from(*child_tid));
                EventCode::Fork
            }
            EventKind::Exec { name } => {
                self.string(name, 0);
                EventCode::Exec
            }
            EventKind::Name { name } => {
                self.string(name, 0);
                EventCode::Name
            }
            EventKind::Exit => EventCode::Exit,
            EventKind::Lost { count } => {
                self.put(*count);
                EventCode::Lost
            }
            EventKind::Detach => EventCode::Detach,
        }
    }

    fn map(&mut self, map: &Map) -> EventCode {
        self.range(map.range);
        self.put(map.protection.into());
        self.put(map.flags.into());
        self.put(map.offset_bytes);
        match &map.name {
            None => self.put(0),
            Some(name) => self.string(name, 1),
        }
        self.put(map.is_old.into());
        self.put(map.stack.map_or(0, |StackId(id)| id.get().into()));
        self.put(map.inode);
        EventCode::Map
    }

    fn put(&mut self, value: u64) {
        put(self.column(Column::Others), value);
    }

    fn range(&mut self, range: VirtRange) {
        let last_end = std::mem::replace(&mut self.last_range_end, range.end() as u64);
        put_difference(self.column(Column::Others), last_end, range.start as u64);
        self.put(range.len as u64);
    }

    /// Appends the string's index in the table, plus `above`, and a new string itself.
    fn string(&mut self, string: &Arc<str>, above: u64) {
        let (place, is_new) = self.strings.place(string);
        self.put(place as u64 + above);
        if is_new {
            put_text(self.column(Column::Others), string);
        }
    }
}

fn shape_of(fault: &Fault) -> u64 {
    let yes_or_no = |answer: Option<bool>| answer.map_or(0, |is_yes| 1 + u64::from(is_yes));
    let severity = fault.severity.map_or(0, |severity| match severity {
        Severity::Minor => 1,
        Severity::Major => 2,
    });
    let access = fault.access.map_or(0, |access| match access {
        Access::Read => 1,
        Access::Write => 2,
        Access::Execute => 3,
    });
    severity << shape::SEVERITY
        | access << shape::ACCESS
        | yes_or_no(fault.was_present) << shape::WAS_PRESENT
        | yes_or_no(fault.in_user_mode) << shape::IN_USER_MODE
        | yes_or_no(fault.huge) << shape::HUGE
        | if fault.latency_ns.is_some() { shape::HAS_LATENCY } else { 0 }
        | if fault.stack.is_some() { shape::HAS_STACK } else { 0 }
}

/// Indices in the order of first use.
struct Table<K> {
    places: HashMap<K, usize>,
    /// The last key, which is often looked up again.
    last: Option<(K, usize)>,
}

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self { places: HashMap::new(), last: None }
    }
}

impl<K: Hash + Eq + Clone> Table<K> {
    fn clear(&mut self) {
        self.places.clear();
        self.last = None;
    }

    /// The index of `key`, and true if it is new.
    fn place(&mut self, key: &K) -> (usize, bool) {
        if let Some((last, place)) = &self.last
            && last == key
        {
            return (*place, false);
        }
        let next = self.places.len();
        let place = *self.places.entry(key.clone()).or_insert(next);
        self.last = Some((key.clone(), place));
        (place, place == next)
    }
}
