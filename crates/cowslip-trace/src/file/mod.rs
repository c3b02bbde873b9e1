//! The compact file format of traces, as described in `docs/trace-format.md`.
//!
//! A [`Writer`] appends block by block and needs a few MiB for a trace of any length; if it is killed, the
//! blocks before that are readable. A [`Reader`] returns a block at a time; [`Trace::read`] all of them.
//!
//! ```
//! use cowslip_trace::file::Writer;
//! use cowslip_trace::model::{Event, Fault, Header, Sink, Trace, EventKind};
//!
//! let mut writer = Writer::new(Vec::new(), &Header::default())?;
//! let stack = writer.stack(&[0x40_1000, 0x40_2000])?;
//! let fault = Fault { stack: Some(stack), ..Fault::at(0x7f00_0020_0000, 0x40_1000) };
//! let event = Event { time_ns: 1_000, pid: 7, tid: 7, what: EventKind::Fault(fault) };
//! writer.event(&event)?;
//! let (bytes, totals) = writer.finish(0)?;
//!
//! let trace = Trace::read_from(&bytes[..])?;
//! assert_eq!(trace.events, [event]);
//! assert_eq!(trace.frames(stack), [0x40_1000, 0x40_2000]);
//! assert_eq!(trace.totals, totals);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! [`Trace::read`]: crate::model::Trace::read

mod block;
mod column;
mod decode;
mod encode;
mod layout;
mod prelude;
mod read;
mod totals;
mod write;

#[cfg(feature = "picture")]
pub(crate) use column::{put, put_difference};
pub use layout::{FRAMES_MOST, MAGIC, TEXT_MOST_BYTES};
pub use read::Reader;
pub use write::{Writer, create};

use std::io;

/// A value, or the error in a file.
type Checked<T> = Result<T, &'static str>;

fn check(holds: bool, what: &'static str) -> Checked<()> {
    if holds { Ok(()) } else { Err(what) }
}

/// The error for a file that is wrong from `offset_bytes` on.
fn damage(offset_bytes: u64, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("at byte {offset_bytes}: {what}"))
}
