//! The identity of a process.

use serde::{Deserialize, Serialize};

/// A process, identified even after its number is given to another.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct ProcessId {
    /// Its number.
    pub pid: i32,
    /// Its start, in clock ticks after boot.
    pub start_ticks: u64,
}
