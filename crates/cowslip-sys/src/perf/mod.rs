//! The kernel's reports of programs while they run: page faults, mappings, calls (`perf_event_open(2)`).
//!
//! * [`Event`]: something counted in a thread on a processor, and reported each time.
//! * [`Ring`]: the buffer in which the kernel writes its reports and we read them.
//! * [`Record`]: a report, parsed from its bytes; accepts any bytes.
//! * [`Tracepoint`]: a place in the kernel's code that can be such an event, found by its name.

mod event;
mod record;
mod ring;
mod tracepoint;

pub use event::{Attributes, Callers, Count, Event, Kind, Ready, Scope, poll};
pub use record::{Layout, MapRecord, Record, Sample, StackCopy, Stamp, Stamped};
pub use ring::{Drained, Ring};
pub use tracepoint::{Field, Tracepoint, TracepointError, tracefs};

use crate::Errno;

/// The meaning of a failure to open an event or to map its ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// A privilege is missing, or a filter is in the way (`EACCES`, `EPERM`).
    Denied,
    /// The kernel or the machine lacks it (`ENOENT`, `ENODEV`, `EOPNOTSUPP`, `ENOSYS`, `EINVAL`, `E2BIG`).
    Unsupported,
    /// The process or thread has ended (`ESRCH`).
    Vanished,
    /// Too many descriptors are open (`EMFILE`, `ENFILE`).
    TooManyFiles,
    /// Another reason.
    Other,
}

impl Refusal {
    /// The meaning of this error number.
    ///
    /// ```
    /// use cowslip_sys::{Errno, perf::Refusal};
    /// assert_eq!(Refusal::from_errno(Errno::ACCESS), Refusal::Denied);
    /// ```
    pub fn from_errno(errno: Errno) -> Self {
        match errno {
            Errno::ACCESS | Errno::PERM => Self::Denied,
            Errno::NOENT | Errno::NODEV | Errno::OPNOTSUPP | Errno::NOSYS => Self::Unsupported,
            Errno::INVAL | Errno::TOOBIG => Self::Unsupported,
            Errno::SRCH => Self::Vanished,
            Errno::MFILE | Errno::NFILE => Self::TooManyFiles,
            _ => Self::Other,
        }
    }
}
