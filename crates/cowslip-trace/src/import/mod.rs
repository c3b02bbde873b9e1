//! Imports a recording of `perf` as a trace.
//!
//! A file is read twice: first for the kinds of its records, which the trace's header lists, then for its
//! events.

mod builder;
mod facts;
mod perf_data;
mod record;

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, Write};
use std::path::Path;
use std::time::UNIX_EPOCH;

use cowslip_sys::error::io_kind;

use crate::file::{MAGIC, Writer};
use crate::model::Header;
use builder::Builder;
use facts::Facts;
use record::Take;

pub use builder::Imported;

const PERF_DATA: &[u8; 8] = b"PERFILE2";

/// Writes perf's recording in `input` as a trace. `progress` gets the number of bytes read, and their total.
///
/// ```no_run
/// let output = std::fs::File::create("seed.trace")?;
/// let imported = cowslip_trace::import::import("perf.data".as_ref(), output, &mut |_, _| {})?;
/// println!("{} faults, {} lost", imported.totals.faults, imported.totals.lost);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// Those of the file system; [`io::ErrorKind::InvalidData`] if `input` is no `perf.data`, is damaged, or has no
/// page fault with an address, with advice.
pub fn import(
    input: &Path,
    output: impl Write,
    progress: &mut dyn FnMut(u64, u64),
) -> io::Result<Imported> {
    let explain = |error: io::Error| {
        io::Error::new(io_kind(&error), format!("cannot import {}: {error}", input.display()))
    };
    let mut file = File::open(input).map_err(explain)?;
    let mut beginning = Vec::new();
    (&mut file).take(8).read_to_end(&mut beginning).map_err(explain)?;
    if beginning == MAGIC {
        return Err(explain(invalid("it is a trace already")));
    }
    if beginning != PERF_DATA {
        return Err(explain(invalid("it is no perf.data; `perf record` makes one")));
    }
    let length = file.metadata().map_err(explain)?.len();
    let mut pass = |number: u64, header: &mut Header, take: &mut Take<'_>| {
        file.rewind()?;
        let mut counted = |bytes: u64| progress(number * length + bytes.min(length), 2 * length);
        let input = BufReader::new(Counting { input: &file, bytes: 0, counted: &mut counted });
        perf_data::read(input, header, take)
    };

    let mut facts = Facts::default();
    let mut header = Header::default();
    pass(0, &mut header, &mut |at, record| {
        facts.observe(at, &record);
        Ok(())
    })
    .map_err(explain)?;
    facts.check().map_err(|error| explain(invalid(error)))?;
    let changed = input.metadata().and_then(|metadata| metadata.modified()).ok();
    let changed = changed.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let ended_unix_seconds = changed.map_or(0, |duration| duration.as_secs());
    facts.complete(&mut header, ended_unix_seconds);
    let mut builder = Builder::new(Writer::new(output, &header)?, &facts);
    pass(1, &mut Header::default(), &mut |at, record| builder.take(at, record)).map_err(explain)?;
    builder.finish(header)
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

/// Counts the bytes read.
struct Counting<'a> {
    input: &'a File,
    bytes: u64,
    counted: &'a mut dyn FnMut(u64),
}

impl Read for Counting<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.bytes += read as u64;
        (self.counted)(self.bytes);
        Ok(read)
    }
}

impl Seek for Counting<'_> {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        self.input.seek(to)
    }
}
