//! Traces for other programs: CSV and JSON Lines.
//!
//! Streaming: only a few blocks and the call stacks are in memory, for a trace of any length. Every format
//! shows lost events.
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
mod json_lines;
mod row;

use std::io::{self, Read, Write};

use crate::file::Reader;
use crate::model::{Event, EventKind};

/// An export format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// One row per event, below the names of the columns.
    Csv,
    /// One object per event, between one with the header and one with the totals.
    JsonLines,
}

/// Writes the rest of a trace in a format. `progress` gets the number of bytes read, a block at a time.
///
/// # Errors
/// Those of `output` and of the reader's input; [`io::ErrorKind::InvalidData`] for a damaged trace.
pub fn export<R: Read>(
    reader: &mut Reader<R>,
    format: Format,
    output: impl Write,
    progress: &mut dyn FnMut(u64),
) -> io::Result<()> {
    match format {
        Format::Csv => csv::write(&mut Events { reader, progress }, output),
        Format::JsonLines => json_lines::write(&mut Events { reader, progress }, output),
    }
}

/// The events of a trace, in their order.
struct Events<'a, R> {
    reader: &'a mut Reader<R>,
    progress: &'a mut dyn FnMut(u64),
}

impl<R: Read> Events<'_, R> {
    /// Passes all events to `take`, and finally the losses that no event reported.
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
