//! JSON Lines: one object per event with the known values, after the header and before the totals.

use std::io::{self, Read, Write};

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::json;

use super::Events;
use super::row::{Row, Value};

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

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(None)?;
        for (name, value) in self.cells() {
            match value {
                None => {}
                Some(Value::Address(address)) => object.serialize_entry(name, &Hex(address))?,
                Some(Value::Number(number)) => object.serialize_entry(name, &number)?,
                Some(Value::Flag(flag)) => object.serialize_entry(name, &flag)?,
                Some(Value::Text(text)) => object.serialize_entry(name, text)?,
                Some(Value::Frames(frames)) => object.serialize_entry(name, &Frames(frames))?,
            }
        }
        object.end()
    }
}

/// Addresses are text, because numbers in JSON have 53 bits in many programs.
struct Hex(u64);

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:#x}", self.0))
    }
}

struct Frames<'a>(&'a [u64]);

impl Serialize for Frames<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        self.0.iter().try_for_each(|&frame| list.serialize_element(&Hex(frame)))?;
        list.end()
    }
}
