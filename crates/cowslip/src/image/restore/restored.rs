//! A restored arena, and the progress of what is missing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::units::VirtRange;

use super::options::Strategy;
use super::plan::Plan;
use super::schedule::RestoreSchedule;
use super::working_set;
use crate::arena::Arena;
use crate::image::Progress;
use crate::image::open::Image;

/// An arena with the content of an image, which may still be arriving.
#[derive(Debug)]
pub struct Restored {
    pub(super) arena: Arena,
    pub(super) strategy: Strategy,
    pub(super) roots: BTreeMap<String, VirtRange>,
    pub(super) schedule: Arc<RestoreSchedule>,
    pub(super) recording: Option<Recording>,
}

/// The target of a record of first touches.
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) file: PathBuf,
    pub(super) image: Image,
    pub(super) arena: u32,
}

impl Restored {
    /// The arena.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The arena, even if parts are missing; these continue to arrive.
    pub fn into_arena(self) -> Arena {
        self.arena
    }

    /// The present range of the place that was saved under this name.
    pub fn root(&self, name: &str) -> Option<VirtRange> {
        self.roots.get(name).copied()
    }

    /// The way in which it was, or is, restored: not always the requested one.
    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// The progress of loading it.
    pub fn progress(&self) -> Progress {
        self.schedule.progress()
    }

    /// Waits until everything is loaded, and independent of the file and of a server; `false` if that took longer than
    /// `patience`.
    ///
    /// # Errors
    /// The error for the first chunk that could not be restored, the one passed to
    /// [`RestoreOptions::on_damage`](super::RestoreOptions::on_damage).
    pub fn wait(&self, patience: Duration) -> Result<bool> {
        if self.strategy == Strategy::Resident {
            return Ok(self.arena.wait_live(patience));
        }
        let deadline = Instant::now() + patience;
        let mut now = self.progress();
        while now.done_bytes < now.total_bytes {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            now = self.schedule.wait_moved(now, left);
        }
        self.schedule.error().map_or(Ok(true), Err)
    }

    /// Writes beside the image which chunks were touched so far, in that order, and continues to restore the rest.
    /// Later restores bring in these chunks first. The file's mode is 0600.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if nothing is recorded; an error of the file system.
    pub fn finish_recording(&self) -> Result<&Path> {
        let Some(Recording { file, image, arena }) = &self.recording else {
            return Err(Error::new(ErrorKind::Usage, "record a working set")
                .because("none was asked for")
                .advise("ask for it when the image is restored"));
        };
        let touched = self.schedule.change(Plan::end_recording);
        working_set::save(image, *arena, &touched)?;
        Ok(file)
    }
}
