//! Recording: page faults and mappings of programs as they run, from the kernel's events.
//!
//! * [`Recorder`]: attaches to processes or launches a command, and gives a [`Sink`](crate::model::Sink) what
//!   happens, in the order of time.
//! * [`Window`]: a sink that keeps the last seconds only.
//! * [`ladder()`]: what each privilege lets one see.
//!
//! ```text
//! rings ── decode ──▶ merge ── by time ──▶ assemble ── outbox ──▶ sink
//!          records    one order            calls with results,
//!          as told    of all processors    faults with beginnings
//! ```

mod assemble;
mod attach;
mod before;
mod claims;
mod decode;
mod error;
mod ladder;
mod machine;
mod merge;
mod options;
mod outbox;
mod plan;
mod recorder;
mod space;
mod stacks;
mod window;

pub use error::{Error, ErrorKind};
pub use ladder::{Answer, Rung, ladder};
pub use options::{Detail, Options, Stacks};
pub use recorder::{Outcome, Recorder};
pub use window::Window;
