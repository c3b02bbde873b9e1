//! `--metrics`: the kernel's counters during the recording, for `cowslip compare`.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use cowslip_compare::recorder::{Recorder, Watch, facts};
use cowslip_sys::atomic_file::{BY_UMASK, create_in_place};

use crate::exit::{self, Failure};

const INTERVAL: Duration = Duration::from_secs(1);

/// A recording in progress.
pub(super) struct Metrics<'a> {
    path: &'a Path,
    recorder: Recorder<File>,
    began: Instant,
}

impl<'a> Metrics<'a> {
    /// Starts recording the machine, a process and its descendants.
    pub(super) fn start(path: &'a Path, pid: i32, command: &[String]) -> Result<Self, Failure> {
        let failed = || exit::io(format!("record metrics to {}", path.display()));
        let mut facts = facts();
        facts.insert("command".to_owned(), command.join(" "));
        let file = create_in_place(path, BY_UMASK).map_err(failed())?;
        let watch = Watch::Process(pid.unsigned_abs());
        let recorder = Recorder::start(file, &facts, watch, INTERVAL).map_err(failed())?;
        Ok(Self { path, recorder, began: Instant::now() })
    }

    /// Ends the recording. The process has not been waited for yet, if it ended.
    pub(super) fn end(self) -> Result<(), Failure> {
        let failed = || exit::io(format!("record metrics to {}", self.path.display()));
        let totals = [("wall_seconds".to_owned(), self.began.elapsed().as_secs_f64())];
        let writer = self.recorder.stop().map_err(failed())?;
        writer.finish(BTreeMap::from(totals)).map(drop).map_err(failed())
    }
}
