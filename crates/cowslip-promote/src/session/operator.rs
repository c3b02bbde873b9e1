//! Who runs a session: is told what happens, and says when it is to end.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use cowslip_sys::Errno;

use crate::model::{Coverage, HeatSource};
use crate::promoter::RemovedTarget;

/// The program around a [`Session`](super::Session): its signals, its log, its files.
pub trait Operator {
    /// Something happened that people may want to know.
    fn tell(&mut self, notice: &Notice<'_>);

    /// Whether the session is to end.
    fn stops(&self) -> bool;

    /// Whether the plan is to be read again, since this was last asked.
    fn takes_reload(&mut self) -> bool;

    /// Waits that long, or until there is something new to be asked.
    ///
    /// # Errors
    /// What `poll(2)` says.
    fn wait(&mut self, time: Duration) -> io::Result<()>;

    /// Puts the metrics into a file, in place of what was there.
    ///
    /// # Errors
    /// The file system's.
    fn write_metrics(&mut self, file: &Path, text: &str) -> io::Result<()>;
}

/// What happened.
#[derive(Clone, Copy, Debug)]
pub enum Notice<'a> {
    /// Heat is known from this source, the best that can be used.
    HeatFrom(HeatSource),
    /// A better source cannot be used, for this reason.
    HeatNotFrom(HeatSource, &'a str),
    /// The source of heat has changed to this one.
    HeatNowFrom(HeatSource),
    /// Metrics are served here.
    MetricsAt(SocketAddr),
    /// The daemon begins, with these processes.
    Promoting(&'a [String]),
    /// A process was found, and is a target from now on.
    Found(&'a str),
    /// So many processes more were found than can be targets under the limit of open files.
    TooMany(usize),
    /// The metrics cannot be written to their file any more.
    MetricsNotWritten(&'a str),
    /// A control group cannot be read; it is waited for.
    GroupMissing(&'a Path, Errno),
    /// No process is left, and none will come.
    AllEnded,
    /// A process cannot be looked at any more, and has not ended.
    LeftAlone(&'a RemovedTarget),
    /// The plan was read again.
    Reloaded,
    /// The plan that was read again makes no sense: the one before stays in force.
    ReloadFailed(&'a str),
    /// So many regions were changed, and this is huge now.
    Changed(usize, Coverage),
}
