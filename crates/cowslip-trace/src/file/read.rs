//! Reading a trace, block by block or as a whole.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::block::{BlockKind, Unpacker};
use super::totals::Counts;
use super::{check, damage, decode, prelude};
use crate::model::{Event, EventKind, Header, Latencies, StackId, Totals, Trace};

/// Reads a trace, with one block and all call stacks in memory.
///
/// ```
/// # use cowslip_trace::file::{Reader, Writer};
/// # use cowslip_trace::model::Header;
/// # let (bytes, _) = Writer::new(Vec::new(), &Header::default())?.finish(0)?;
/// let mut reader = Reader::new(&bytes[..])?;
/// let mut events = Vec::new();
/// while reader.read_block(&mut events)? {
///     for event in events.drain(..) {
///         println!("{event:?}");
///     }
/// }
/// assert!(!reader.is_cut_short());
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Reader<R> {
    input: R,
    unpacker: Unpacker,
    header: Header,
    stacks: Vec<Box<[u64]>>,
    counts: Counts,
    offset_bytes: u64,
    latencies: Option<Latencies>,
    end: Option<End>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Whole,
    CutShort,
}

impl<R: Read> Reader<R> {
    /// Reads the header. Give it a buffered `input`.
    ///
    /// # Errors
    /// Those of `input`; [`io::ErrorKind::InvalidData`] if this is no trace, or one that is damaged or cut
    /// before the first block.
    pub fn new(mut input: R) -> io::Result<Self> {
        let (header, offset_bytes) = prelude::decode(&mut input)?;
        Ok(Self {
            input,
            unpacker: Unpacker::default(),
            header,
            stacks: Vec::new(),
            counts: Counts::default(),
            offset_bytes,
            latencies: None,
            end: None,
        })
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Appends the events of the next block, in the order of time; returns `false` if there is none.
    ///
    /// # Errors
    /// Those of the input; [`io::ErrorKind::InvalidData`] if the file is damaged, with the place.
    pub fn read_block(&mut self, events: &mut Vec<Event>) -> io::Result<bool> {
        if self.end.is_some() {
            return Ok(false);
        }
        let at = self.offset_bytes;
        let Some((head, content)) =
            self.unpacker.unpack(&mut self.input, &mut self.offset_bytes)?
        else {
            self.end = Some(End::CutShort);
            return Ok(false);
        };
        let damaged = |what| damage(at, what);
        if head.kind == BlockKind::Totals {
            self.counts.complete(content, self.stacks.len()).map_err(damaged)?;
            let is_last = self.input.read(&mut [0])? == 0;
            check(is_last, "bytes behind the totals").map_err(damaged)?;
            self.end = Some(End::Whole);
            return Ok(false);
        }
        if head.kind == BlockKind::Latencies {
            let latencies =
                serde_json::from_slice(content).map_err(|_| "latencies of another form");
            self.latencies = Some(latencies.map_err(damaged)?);
            return Ok(true);
        }
        let follows = self.counts.last_ns().is_none_or(|last_ns| last_ns <= head.first_ns);
        check(follows, "a block that is older than the one before it").map_err(damaged)?;
        let already = events.len();
        decode::decode(head, content, events, &mut self.stacks).map_err(damaged)?;
        events[already..].iter().for_each(|event| self.counts.add(event));
        Ok(true)
    }

    /// The frames of a stack of the events so far; empty for one that is not in this trace.
    pub fn frames(&self, stack: StackId) -> &[u64] {
        self.stacks.get(stack.0.get() as usize - 1).map_or(&[], |frames| frames)
    }

    /// The frames of an event's stack; empty if it has none.
    pub fn frames_of(&self, event: &Event) -> &[u64] {
        let stack = match &event.what {
            EventKind::Fault(fault) => fault.stack,
            EventKind::Map(map) => map.stack,
            _ => None,
        };
        stack.map_or(&[], |stack| self.frames(stack))
    }

    /// The number of bytes read: the end of the last whole block so far.
    pub fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// The totals of the blocks so far; after the last block, those of the recorder.
    pub fn totals(&self) -> Totals {
        self.counts.totals()
    }

    /// The kernel's histogram of latencies, if it was recorded and read.
    pub fn latencies(&self) -> Option<&Latencies> {
        self.latencies.as_ref()
    }

    /// True if the end was reached and the totals are missing.
    pub fn is_cut_short(&self) -> bool {
        self.end == Some(End::CutShort)
    }
}

impl Trace {
    /// Reads a whole trace.
    ///
    /// # Errors
    /// Those of the file system; [`io::ErrorKind::InvalidData`] if the file is no trace or is damaged. The
    /// message names the file.
    pub fn read(path: &Path) -> io::Result<Self> {
        let read = File::open(path).and_then(Self::read_from);
        read.map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("cannot read the trace {}: {error}", path.display()),
            )
        })
    }

    /// Reads a whole trace from any input.
    ///
    /// # Errors
    /// Those of [`Self::read`], without the file's name.
    pub fn read_from(input: impl Read) -> io::Result<Self> {
        let mut reader = Reader::new(io::BufReader::new(input))?;
        let mut events = Vec::new();
        while reader.read_block(&mut events)? {}
        let totals = reader.totals();
        let is_cut_short = reader.is_cut_short();
        let Reader { header, stacks, latencies, .. } = reader;
        Ok(Self { header, events, stacks, totals, latencies, is_cut_short })
    }
}
