//! CSV: one row per event. Frames are separated by spaces, the innermost first.

use std::fmt::Write as _;
use std::io::{self, Read, Write};

use super::Events;
use super::row::{COLUMNS, Row, Value};
use crate::file::Reader;
use crate::model::Event;

pub(super) fn write(events: &mut Events<'_, impl Read>, output: impl Write) -> io::Result<()> {
    let mut csv = csv::Writer::from_writer(output);
    csv.write_record(COLUMNS).map_err(plain)?;
    let mut cell = String::new();
    events.each(|reader: &Reader<_>, event: &Event| {
        for value in Row::new(event, reader.frames_of(event)).cells() {
            cell.clear();
            match value {
                None => {}
                Some(Value::Address(address)) => hex(&mut cell, address),
                Some(Value::Number(number)) => {
                    let _ = write!(cell, "{number}");
                }
                Some(Value::Flag(flag)) => cell.push_str(if flag { "true" } else { "false" }),
                Some(Value::Text(text)) => cell.push_str(text),
                Some(Value::Frames(frames)) => {
                    for (i, &frame) in frames.iter().enumerate() {
                        cell.push_str(if i > 0 { " " } else { "" });
                        hex(&mut cell, frame);
                    }
                }
            }
            csv.write_field(&cell).map_err(plain)?;
        }
        csv.write_record(None::<&[u8]>).map_err(plain)
    })?;
    csv.flush()
}

/// The output's own error, so that a closed pipe is recognised.
fn plain(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}

fn hex(cell: &mut String, number: u64) {
    let _ = write!(cell, "{number:#x}");
}
