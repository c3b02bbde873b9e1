//! The state of the server.

use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

use crate::checkpoints::Checkpoints;
use crate::images::Mark;
use crate::table::Table;

pub(crate) struct Server {
    /// Every command, and every freeze, happens under this lock.
    pub(crate) table: Mutex<Table>,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) every: Duration,
    /// The state that it began with, if there was an image.
    pub(crate) restored: Option<Mark>,
    pub(crate) started: Instant,
    pub(crate) first: Once,
}
