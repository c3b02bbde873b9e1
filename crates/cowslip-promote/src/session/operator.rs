//! The operator of a session: is told of events, and says when to end.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use cowslip::host::Answer;
use cowslip_sys::Errno;

use crate::model::{Coverage, HeatSource, Measurement};
use crate::page_size::SizeChoice;
use crate::promoter::RemovedTarget;
use crate::reclaim::ReclaimAnswer;

/// The program around a [`Session`](super::Session): its signals, its log, its files.
pub trait Operator {
    /// Reports an event of interest to people.
    fn tell(&mut self, notice: &Notice<'_>);

    /// True if the session should end. By default it does not.
    fn stops(&self) -> bool {
        false
    }

    /// True if the plan should be read again since the last call. By default it never is.
    fn takes_reload(&mut self) -> bool {
        false
    }

    /// Waits for `time`, or until there is a reason to ask again.
    ///
    /// # Errors
    /// Those of `poll(2)`.
    fn wait(&mut self, time: Duration) -> io::Result<()> {
        std::thread::sleep(time);
        Ok(())
    }

    /// Replaces the content of a file with the metrics.
    ///
    /// # Errors
    /// Those of the file system.
    fn write_metrics(&mut self, file: &Path, text: &str) -> io::Result<()>;
}

/// An event.
#[derive(Clone, Copy, Debug)]
pub enum Notice<'a> {
    /// Heat is known from this source, the best that can be used.
    HeatFrom(HeatSource),
    /// A better source cannot be used, for this reason.
    HeatNotFrom(HeatSource, &'a str),
    /// The source of heat has changed to this one.
    HeatNowFrom(HeatSource),
    /// Metrics are served at this address.
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
    /// A process cannot be observed any more, and has not ended.
    LeftAlone(&'a RemovedTarget),
    /// The plan was read again.
    Reloaded,
    /// The new plan makes no sense: the previous one stays in force.
    ReloadFailed(&'a str),
    /// The gain of this process was measured.
    Measured(&'a str, &'a Measurement),
    /// The kernel does not reclaim in this control group: its huge pages are split one by one.
    NoReclaim(&'a Path, &'a ReclaimAnswer),
    /// The answer of a file system, by its mount point, to the question for huge pages of text.
    FileText(&'a Path, &'a Answer),
    /// The size of pages at faults was weighed, with another result than before.
    PageSize(&'a SizeChoice),
    /// The kernel finds no huge page for a target. These have some: name, huge pages, the most first.
    Scarce(&'a [(String, u64)]),
    /// For some looks, no target has lacked a huge page.
    NoLongerScarce,
    /// This number of regions was changed, with this coverage now.
    Changed(usize, Coverage),
}
