//! Parquet: columns, compressed. Addresses are unsigned numbers here; frames are a list of numbers.

use std::io::{self, Read, Write};
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, Int64Type};
use parquet::errors::{ParquetError, Result};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;

use super::Events;
use super::row::{COLUMNS, Row, Type, Value};

/// The number of rows in memory at once.
const GROUP_ROWS: usize = 65_536;

pub(super) fn write(
    events: &mut Events<'_, impl Read>,
    output: impl Write + Send,
) -> io::Result<()> {
    let mut file = open(output).map_err(explain)?;
    let mut columns = COLUMNS.map(|(_, _, kind)| Cells::new(kind));
    let mut rows = 0;
    events.each(|reader, event| {
        let row = Row::new(event, reader.frames_of(event));
        columns.iter_mut().zip(row.cells()).for_each(|(column, (.., value))| column.push(value));
        rows += 1;
        if rows < GROUP_ROWS {
            return Ok(());
        }
        rows = 0;
        write_group(&mut file, &mut columns).map_err(explain)
    })?;
    if rows > 0 {
        write_group(&mut file, &mut columns).map_err(explain)?;
    }
    file.close().map_err(explain)?;
    Ok(())
}

fn open<W: Write + Send>(output: W) -> Result<SerializedFileWriter<W>> {
    let columns = COLUMNS.iter().map(|(_, name, kind)| match kind {
        Type::Number | Type::Address => format!("optional int64 {name} (INTEGER(64,false));"),
        Type::Flag => format!("optional boolean {name};"),
        Type::Text => format!("optional binary {name} (UTF8);"),
        Type::Frames => format!(
            "optional group {name} (LIST) {{ repeated group list {{ \
             required int64 element (INTEGER(64,false)); }} }}"
        ),
    });
    let schema = format!("message trace {{ {} }}", columns.collect::<String>());
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .build();
    SerializedFileWriter::new(output, Arc::new(parse_message_type(&schema)?), Arc::new(properties))
}

fn write_group<W: Write + Send>(
    file: &mut SerializedFileWriter<W>,
    columns: &mut [Cells],
) -> Result<()> {
    let mut group = file.next_row_group()?;
    for column in columns {
        let mut writer = group.next_column()?.expect("as many columns as in the schema");
        column.write(&mut writer)?;
        writer.close()?;
    }
    group.close()?;
    Ok(())
}

/// The cells of a column: the values, and the levels that tell which are empty.
struct Cells {
    values: Values,
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
}

enum Values {
    Numbers(Vec<i64>),
    Flags(Vec<bool>),
    Texts(Vec<ByteArray>),
}

impl Cells {
    fn new(kind: Type) -> Self {
        let values = match kind {
            Type::Number | Type::Address | Type::Frames => Values::Numbers(Vec::new()),
            Type::Flag => Values::Flags(Vec::new()),
            Type::Text => Values::Texts(Vec::new()),
        };
        Self { values, definitions: Vec::new(), repetitions: Vec::new() }
    }

    fn push(&mut self, value: Option<Value<'_>>) {
        let mut levels = |definition, repetition| {
            self.definitions.push(definition);
            self.repetitions.push(repetition);
        };
        match (value, &mut self.values) {
            (None, _) => levels(0, 0),
            (Some(Value::Frames([])), _) => levels(1, 0),
            (Some(Value::Frames(frames)), Values::Numbers(numbers)) => {
                numbers.extend(frames.iter().map(|&frame| frame as i64));
                (0..frames.len()).for_each(|i| levels(2, i16::from(i > 0)));
            }
            (Some(Value::Number(number)), Values::Numbers(numbers)) => {
                numbers.push(number as i64);
                levels(1, 0);
            }
            (Some(Value::Flag(flag)), Values::Flags(flags)) => {
                flags.push(flag);
                levels(1, 0);
            }
            (Some(Value::Text(text)), Values::Texts(texts)) => {
                texts.push(text.into());
                levels(1, 0);
            }
            _ => unreachable!("cells have their column's type"),
        }
    }

    /// Writes all cells and removes them.
    fn write(&mut self, writer: &mut SerializedColumnWriter<'_>) -> Result<()> {
        let (definitions, repetitions) = (&mut self.definitions, &mut self.repetitions);
        match &mut self.values {
            Values::Numbers(values) => {
                write_batch::<Int64Type>(writer, values, definitions, repetitions)
            }
            Values::Flags(values) => {
                write_batch::<BoolType>(writer, values, definitions, repetitions)
            }
            Values::Texts(values) => {
                write_batch::<ByteArrayType>(writer, values, definitions, repetitions)
            }
        }
    }
}

fn write_batch<T: DataType>(
    writer: &mut SerializedColumnWriter<'_>,
    values: &mut Vec<T::T>,
    definitions: &mut Vec<i16>,
    repetitions: &mut Vec<i16>,
) -> Result<()> {
    writer.typed::<T>().write_batch(values, Some(definitions), Some(repetitions))?;
    values.clear();
    definitions.clear();
    repetitions.clear();
    Ok(())
}

fn explain(error: ParquetError) -> io::Error {
    io::Error::other(error)
}
