//! Writing a trace, block by block.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::num::NonZeroU32;
use std::path::Path;

use cowslip_sys::atomic_file::create_in_place;

use super::block::{BlockKind, Head, Packer};
use super::encode::Columns;
use super::layout::{
    BLOCK_ENOUGH_EVENTS, BLOCK_SPAN_NS, CONTENT_ENOUGH_BYTES, FRAMES_MOST, TEXT_MOST_BYTES,
};
use super::totals::Counts;
use super::{Checked, check, prelude};
use crate::model::{Event, EventKind, Header, Latencies, Sink, StackId, Totals};

/// Creates the file of a trace, or empties an existing one. Only its owner may read a new one: addresses and
/// paths are private.
///
/// # Errors
/// Those of [`create_in_place`].
pub fn create(path: &Path) -> io::Result<File> {
    create_in_place(path, 0o600)
}

/// Frames of stacks that are remembered to find them again; beyond that, all are forgotten.
const REMEMBERED_FRAMES: usize = 1 << 20;
/// The weight of a stack in frames, besides those that it has.
const STACK_WEIGHT: usize = 8;

/// Writes a trace; see [`mod@crate::file`] for an example.
///
/// It keeps a block in memory. A writer that is dropped without [`Writer::finish`] leaves a trace that is cut
/// short.
pub struct Writer<W> {
    output: W,
    packer: Packer,
    content: Vec<u8>,
    columns: Columns,
    /// The number of events in the columns, and the first one's time.
    events: u32,
    first_ns: u64,
    stacks: HashMap<Box<[u64]>, StackId>,
    stacks_weight: usize,
    stacks_written: u32,
    counts: Counts,
}

impl<W: Write> Writer<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// Those of `output`; [`io::ErrorKind::InvalidInput`] for a header of more than 16 MiB.
    pub fn new(mut output: W, header: &Header) -> io::Result<Self> {
        output.write_all(&prelude::encode(header)?)?;
        Ok(Self {
            output,
            packer: Packer::new()?,
            content: Vec::new(),
            columns: Columns::default(),
            events: 0,
            first_ns: 0,
            stacks: HashMap::new(),
            stacks_weight: 0,
            stacks_written: 0,
            counts: Counts::default(),
        })
    }

    /// Ends the block: a reader sees all events so far, even if this writer is killed.
    ///
    /// A block ends by itself with 8,192 events or 1 MiB of content, and before an event more than a second
    /// after its first. Call this when no event has come for a while. Each block is one write.
    ///
    /// # Errors
    /// Those of the output. The block is then missing or incomplete.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.columns.bytes() == 0 {
            return Ok(());
        }
        self.columns.content(&mut self.content);
        let last_ns = self.counts.last_ns().unwrap_or_default();
        let first_ns = if self.events == 0 { last_ns } else { self.first_ns };
        let head = Head { kind: BlockKind::Events, events: self.events, first_ns, last_ns };
        self.events = 0;
        self.columns.clear();
        self.output.write_all(self.packer.pack(head, &self.content)?)?;
        self.output.flush()
    }

    /// Adds the kernel's histogram of latencies, behind all events.
    ///
    /// # Errors
    /// Those of the output.
    pub fn latencies(&mut self, latencies: &Latencies) -> io::Result<()> {
        self.flush()?;
        let Totals { first_ns, last_ns, .. } = self.counts.totals();
        let head = Head { kind: BlockKind::Latencies, events: 0, first_ns, last_ns };
        let content = serde_json::to_vec(latencies)?;
        self.output.write_all(self.packer.pack(head, &content)?)
    }

    /// Ends the trace; returns the output and the totals. `lost` is the number of missing events, including
    /// those that [`EventKind::Lost`] reports.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self, lost: u64) -> io::Result<(W, Totals)> {
        self.flush()?;
        self.counts.set_lost(lost);
        let totals = self.counts.totals();
        let Totals { first_ns, last_ns, .. } = totals;
        let head = Head { kind: BlockKind::Totals, events: 0, first_ns, last_ns };
        let content = self.counts.encode(self.stacks_written as usize);
        self.output.write_all(self.packer.pack(head, &content)?)?;
        self.output.flush()?;
        Ok((self.output, totals))
    }

    fn has_enough(&self) -> bool {
        self.columns.bytes() >= CONTENT_ENOUGH_BYTES
    }

    /// Checks that a reader accepts the event.
    fn check(&self, event: &Event) -> Checked<()> {
        let is_later = self.counts.last_ns().is_none_or(|last_ns| last_ns <= event.time_ns);
        check(is_later, "an event that is older than the one before it")?;
        let (ranges, name, stack) = match &event.what {
            EventKind::Fault(fault) => ([None; 2], None, fault.stack),
            EventKind::Map(map) => ([Some(map.range), None], map.name.as_ref(), map.stack),
            EventKind::Unmap { range } | EventKind::Advise { range, .. } => {
                ([Some(*range), None], None, None)
            }
            EventKind::Remap { from, to, .. } => ([Some(*from), Some(*to)], None, None),
            EventKind::Exec { name } | EventKind::Name { name } => ([None; 2], Some(name), None),
            _ => ([None; 2], None, None),
        };
        let is_range =
            ranges.iter().flatten().all(|range| range.start.checked_add(range.len).is_some());
        check(is_range, "a range beyond all addresses")?;
        let is_short = name.is_none_or(|name| name.len() <= TEXT_MOST_BYTES);
        check(is_short, "a name of more than 65,536 bytes")?;
        let is_known = stack.is_none_or(|stack| stack.0.get() <= self.stacks_written);
        check(is_known, "a stack that was never given to this trace")
    }
}

impl<W: Write> Sink for Writer<W> {
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for more than [`FRAMES_MOST`] frames.
    fn stack(&mut self, frames: &[u64]) -> io::Result<StackId> {
        if let Some(&id) = self.stacks.get(frames) {
            return Ok(id);
        }
        check(frames.len() <= FRAMES_MOST, "a stack of more than 1,024 frames").map_err(refuse)?;
        if self.has_enough() {
            self.flush()?;
        }
        let number = self.stacks_written.checked_add(1).and_then(NonZeroU32::new);
        let id = StackId(number.ok_or_else(|| refuse("more than 2^32 stacks"))?);
        self.stacks_written = id.0.get();
        self.columns.stack(frames);
        self.stacks_weight += frames.len() + STACK_WEIGHT;
        if self.stacks_weight > REMEMBERED_FRAMES {
            self.stacks.clear();
            self.stacks_weight = 0;
        }
        self.stacks.insert(frames.into(), id);
        Ok(id)
    }

    /// # Errors
    /// Those of the output; [`io::ErrorKind::InvalidInput`], without writing, for an event that is older than
    /// the one before it, a range that ends beyond all addresses, a name of more than [`TEXT_MOST_BYTES`],
    /// and a stack of another trace.
    fn event(&mut self, event: &Event) -> io::Result<()> {
        self.check(event).map_err(refuse)?;
        let is_full = self.events == BLOCK_ENOUGH_EVENTS || self.has_enough();
        let is_old = event.time_ns.saturating_sub(self.first_ns) > BLOCK_SPAN_NS;
        if is_full || self.events > 0 && is_old {
            self.flush()?;
        }
        if self.events == 0 {
            self.first_ns = event.time_ns;
            self.columns.begin(event.time_ns);
        }
        self.columns.event(event);
        self.counts.add(event);
        self.events += 1;
        Ok(())
    }
}

fn refuse(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("cannot write {what} to a trace"))
}
