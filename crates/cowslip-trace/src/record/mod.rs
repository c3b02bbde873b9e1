//! Recording: page faults and mappings of programs as they run, from the kernel's events.
//!
//! * [`Recorder`]: attaches to a [`Subject`] or launches a command, and passes events to a
//!   [`Sink`](crate::model::Sink), in the order of time.
//! * [`EventWindow`]: a sink that keeps only the last seconds.
//! * [`permissions()`]: the data that each privilege gives.
//!
//! ```text
//! rings ── decode ──▶ merge ── by time ──▶ assemble ── reorder ──▶ sink
//!          records    one order            calls with results,
//!          as told    of all processors    faults with beginnings
//! ```

mod assemble;
mod attach;
mod decode;
mod dedup;
mod error;
mod latency;
mod machine;
mod merge;
mod options;
mod permissions;
mod plan;
mod recorder;
mod reorder_buffer;
mod space;
mod stacks;
mod status;
mod subject;
mod synthesize;
mod unwind;
mod window;

pub use error::{Error, ErrorKind};
pub use options::{Detail, Options, Stacks, Unwinding};
pub use permissions::{Permission, permission_for, permissions};
pub use recorder::{Recorder, RecordingOutcome};
pub use status::PermissionStatus;
pub use subject::Subject;
pub use window::EventWindow;
