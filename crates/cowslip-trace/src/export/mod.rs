//! Traces for other programs: CSV, JSON Lines, folded stacks and, with feature `parquet`, Parquet.
//!
//! Streaming: whatever the trace's length, a few blocks are in memory. What was lost is in every one of them.
//!
//! ```
//! use cowslip_trace::export::{Format, export};
//! use cowslip_trace::file::{Reader, Writer};
//! use cowslip_trace::model::{Event, Header, Sink, EventKind};
//!
//! let mut writer = Writer::new(Vec::new(), &Header::default())?;
//! writer.event(&Event { time_ns: 5, pid: 7, tid: 7, what: EventKind::Exit })?;
//! let (trace, _) = writer.finish(0)?;
//!
//! let mut csv = Vec::new();
//! export(&mut Reader::new(&trace[..])?, Format::Csv, &mut csv, &mut |_| {})?;
//! assert!(csv.ends_with(b"\n5,7,7,exit,,,,,,,,,,,,,,,,,,,,,,,\n"));
//! # Ok::<(), std::io::Error>(())
//! ```

mod csv;
mod folded;
mod json_lines;
#[cfg(feature = "parquet")]
mod parquet;
mod row;

use std::io::{self, Read, Write};

use crate::file::Reader;
use crate::model::{Event, EventKind};

/// What a trace can become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// A row an event, below the names of the columns.
    Csv,
    /// An object an event, between one with the header and one with the totals.
    JsonLines,
    /// Call stacks with how many faults each had, as flame graphs are drawn from; functions by name where
    /// the program's files have symbols and are what they were.
    Folded,
    /// Columns, compressed.
    #[cfg(feature = "parquet")]
    Parquet,
}

/// Writes what is left of a trace in a format. `progress` is told, a block at a time, how many bytes of the
/// trace were read.
///
/// # Errors
/// What `output` and the reader's input answer; [`io::ErrorKind::InvalidData`] for a trace that is damaged.
pub fn export<R: Read>(
    reader: &mut Reader<R>,
    format: Format,
    output: impl Write + Send,
    progress: &mut dyn FnMut(u64),
) -> io::Result<()> {
    match format {
        Format::Csv => csv::write(&mut Events { reader, progress }, output),
        Format::JsonLines => json_lines::write(&mut Events { reader, progress }, output),
        Format::Folded => folded::write(&mut Events { reader, progress }, output),
        #[cfg(feature = "parquet")]
        Format::Parquet => parquet::write(&mut Events { reader, progress }, output),
    }
}

/// The events of a trace, in their order.
struct Events<'a, R> {
    reader: &'a mut Reader<R>,
    progress: &'a mut dyn FnMut(u64),
}

impl<R: Read> Events<'_, R> {
    /// Gives all events to `take`, and at the end what no event told was lost.
    fn each(
        &mut self,
        mut take: impl FnMut(&Reader<R>, &Event) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut events = Vec::new();
        let mut lost = 0_u64;
        while self.reader.read_block(&mut events)? {
            (self.progress)(self.reader.offset_bytes());
            for event in events.drain(..) {
                if let EventKind::Lost { count } = event.what {
                    lost = lost.saturating_add(count);
                }
                take(self.reader, &event)?;
            }
        }
        let totals = self.reader.totals();
        let count = totals.lost.saturating_sub(lost);
        if count > 0 {
            let what = EventKind::Lost { count };
            take(self.reader, &Event { time_ns: totals.last_ns, pid: 0, tid: 0, what })?;
        }
        Ok(())
    }
}
