//! Decoding: turns the columns of a block into events.

use std::num::NonZeroU32;
use std::sync::Arc;

use cowslip_sys::units::VirtRange;

use super::block::Head;
use super::column::Values;
use super::layout::{COLUMNS, Column, EventCode, FRAMES_MOST, PAGE_SHIFT, TEXT_MOST_BYTES, shape};
use super::{Checked, check};
use crate::model::{Access, Event, EventKind, Fault, Map, Severity, StackId};

/// Appends the events of a block's content to `events`, and its stacks to `stacks`.
pub(super) fn decode(
    head: Head,
    content: &[u8],
    events: &mut Vec<Event>,
    stacks: &mut Vec<Box<[u64]>>,
) -> Checked<()> {
    let mut content = Values(content);
    let mut columns = [Values::default(); COLUMNS];
    for column in &mut columns {
        let length = content.number()?;
        *column = Values(content.bytes(length)?);
    }
    check(content.is_empty(), "bytes behind the last column")?;
    let kinds = columns[Column::Kinds as usize];
    check(kinds.0.len() == head.events as usize, "another number of events than there should be")?;
    read_stacks(columns[Column::Stacks as usize], stacks)?;
    columns[Column::Stacks as usize] = Values::default();

    let mut block = Block {
        columns,
        stacks: u32::try_from(stacks.len()).map_err(|_| "too many stacks")?,
        threads: Vec::new(),
        ips: Vec::new(),
        strings: Vec::new(),
        last_range_end: 0,
        time_ns: head.first_ns,
    };
    events.reserve(head.events as usize);
    for i in 0..head.events {
        let event = block.event()?;
        check(i > 0 || event.time_ns == head.first_ns, "a block begins at another time")?;
        events.push(event);
    }
    check(block.time_ns == head.last_ns, "a block ends at another time")?;
    check(block.columns.iter().all(Values::is_empty), "a column is too long")
}

fn read_stacks(mut column: Values<'_>, stacks: &mut Vec<Box<[u64]>>) -> Checked<()> {
    while !column.is_empty() {
        let length = column.number()?;
        check(length <= FRAMES_MOST as u64, "a stack of too many frames")?;
        let mut frame = 0;
        let mut next = || {
            frame = column.difference(frame)?;
            Ok(frame)
        };
        stacks.push((0..length).map(|_| next()).collect::<Checked<_>>()?);
    }
    Ok(())
}

struct Thread {
    pid: u32,
    tid: u32,
    last_page: u64,
}

/// A block's tables, as far as they have been read.
struct Block<'a> {
    columns: [Values<'a>; COLUMNS],
    /// The number of stacks so far.
    stacks: u32,
    threads: Vec<Thread>,
    ips: Vec<u64>,
    strings: Vec<Arc<str>>,
    last_range_end: u64,
    time_ns: u64,
}

impl<'a> Block<'a> {
    fn column(&mut self, column: Column) -> &mut Values<'a> {
        &mut self.columns[column as usize]
    }

    fn event(&mut self) -> Checked<Event> {
        let elapsed = self.column(Column::Times).number()?;
        self.time_ns = self.time_ns.checked_add(elapsed).ok_or("a time of more than 64 bits")?;
        let place = self.column(Column::Threads).number()? as usize;
        if place == self.threads.len() {
            let column = self.column(Column::Threads);
            let (pid, tid) = (column.small()?, column.small()?);
            self.threads.push(Thread { pid, tid, last_page: 0 });
        }
        let thread = self.threads.get(place).ok_or("a thread that is not in the table")?;
        let (pid, tid) = (thread.pid, thread.tid);
        let kind = self.column(Column::Kinds).byte()?;
        let what = match EventCode::ALL.get(usize::from(kind)).ok_or("an unknown kind of event")? {
            EventCode::Fault => EventKind::Fault(self.fault(place)?),
            EventCode::Map => EventKind::Map(self.map()?),
            EventCode::Unmap => EventKind::Unmap { range: self.range()? },
            EventCode::Remap => EventKind::Remap {
                from: self.range()?,
                to: self.range()?,
                kept: self.others().flag()?,
            },
            EventCode::Advise => {
                EventKind::Advise { range: self.range()?, advice: self.others().small()? }
            }
            EventCode::Break => EventKind::Break { end: self.others().number()? },
            EventCode::Fork => EventKind::Fork {
                child_pid: self.others().small()?,
                child_tid: self.others().small()?,
            },
            EventCode::Exec => EventKind::Exec { name: self.string()? },
            EventCode::Name => EventKind::Name { name: self.string()? },
            EventCode::Exit => EventKind::Exit,
            EventCode::Lost => EventKind::Lost { count: self.others().number()? },
            EventCode::Detach => EventKind::Detach,
        };
        Ok(Event { time_ns: self.time_ns, pid, tid, what })
    }

    fn fault(&mut self, thread: usize) -> Checked<Fault> {
        let shape = self.column(Column::Shapes).number()?;
        check(shape & !shape::ALL == 0, "an unknown shape of a fault")?;
        let last_page = self.threads[thread].last_page;
        let page = self.column(Column::Pages).difference(last_page)?;
        self.threads[thread].last_page = page;
        let offset = self.column(Column::Offsets).number()?;
        let is_address = page >> (u64::BITS - PAGE_SHIFT) == 0 && offset >> PAGE_SHIFT == 0;
        check(is_address, "an address of more than 64 bits")?;
        let place = self.column(Column::Ips).number()? as usize;
        if place == self.ips.len() {
            let last = self.ips.last().copied().unwrap_or(0);
            let ip = self.column(Column::Ips).difference(last)?;
            self.ips.push(ip);
        }
        let ip = *self.ips.get(place).ok_or("an instruction that is not in the table")?;
        let details = self.column(Column::Details);
        let has = |bit| shape & bit != 0;
        let latency_ns = has(shape::HAS_LATENCY).then(|| details.small()).transpose()?;
        let stack = if has(shape::HAS_STACK) { details.small()? } else { 0 };
        let pair = |at: u32| shape >> at & 3;
        let yes_or_no = |at| match pair(at) {
            0 => Ok(None),
            1 => Ok(Some(false)),
            2 => Ok(Some(true)),
            _ => Err("an unknown shape of a fault"),
        };
        Ok(Fault {
            address: page << PAGE_SHIFT | offset,
            ip,
            severity: match pair(shape::SEVERITY) {
                0 => None,
                1 => Some(Severity::Minor),
                2 => Some(Severity::Major),
                _ => return Err("an unknown shape of a fault"),
            },
            access: match pair(shape::ACCESS) {
                0 => None,
                1 => Some(Access::Read),
                2 => Some(Access::Write),
                _ => Some(Access::Execute),
            },
            was_present: yes_or_no(shape::WAS_PRESENT)?,
            in_user_mode: yes_or_no(shape::IN_USER_MODE)?,
            huge: yes_or_no(shape::HUGE)?,
            latency_ns,
            stack: match self.stack(stack)? {
                None if has(shape::HAS_STACK) => return Err("a stack without a number"),
                stack => stack,
            },
        })
    }

    fn map(&mut self) -> Checked<Map> {
        Ok(Map {
            range: self.range()?,
            protection: self.others().small()?,
            flags: self.others().small()?,
            offset_bytes: self.others().number()?,
            name: match self.others().number()? {
                0 => None,
                place => Some(self.string_at(place - 1)?),
            },
            is_old: self.others().flag()?,
            stack: {
                let stack = self.others().small()?;
                self.stack(stack)?
            },
            inode: self.others().number()?,
        })
    }

    fn others(&mut self) -> &mut Values<'a> {
        self.column(Column::Others)
    }

    fn range(&mut self) -> Checked<VirtRange> {
        let last_end = self.last_range_end;
        let start = self.others().difference(last_end)?;
        let length = self.others().number()?;
        self.last_range_end = start.checked_add(length).ok_or("a range beyond all addresses")?;
        Ok(VirtRange::new(start as usize, length as usize))
    }

    fn string(&mut self) -> Checked<Arc<str>> {
        let place = self.others().number()?;
        self.string_at(place)
    }

    fn string_at(&mut self, place: u64) -> Checked<Arc<str>> {
        if place == self.strings.len() as u64 {
            let text = self.others().text(TEXT_MOST_BYTES)?;
            self.strings.push(text.into());
        }
        self.strings.get(place as usize).cloned().ok_or("a string that is not in the table")
    }

    fn stack(&self, number: u32) -> Checked<Option<StackId>> {
        check(number <= self.stacks, "a stack that is not in the table")?;
        Ok(NonZeroU32::new(number).map(StackId))
    }
}
