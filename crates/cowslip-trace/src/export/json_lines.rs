//! JSON Lines: one object per event with the known values, after the header and before the totals.

use std::io::{self, Read, Write};

use serde_json::json;

use super::Events;
use super::row::Row;

pub(super) fn write(events: &mut Events<'_, impl Read>, output: impl Write) -> io::Result<()> {
    let mut output = io::BufWriter::new(output);
    let header = json!({"schema": "cowslip.trace/1", "header": events.reader.header()});
    writeln!(output, "{header}")?;
    events.each(|reader, event| {
        serde_json::to_writer(&mut output, &Row::new(event, reader.frames_of(event)))?;
        output.write_all(b"\n")
    })?;
    let (totals, is_cut_short) = (events.reader.totals(), events.reader.is_cut_short());
    writeln!(output, "{}", json!({"totals": totals, "is_cut_short": is_cut_short}))?;
    output.flush()
}
