//! The folders of recordings: one per side, with a file per run, which appears only when it is whole.

use std::fs;
use std::path::{Path, PathBuf};

use cowslip_sys::atomic_file::refuse_planted;

use crate::exit::{self, Failure, USAGE};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Good,
    Bad,
}

impl Side {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Bad => "bad",
        }
    }
}

#[derive(Debug)]
pub(super) struct Folders {
    good: PathBuf,
    bad: PathBuf,
    kept: [u32; 2],
}

impl Folders {
    /// Makes both folders; refuses one that is not empty, as its files would be taken for runs.
    pub(super) fn create(output: &Path) -> Result<Self, Failure> {
        refuse_planted(output).map_err(exit::io(format!("use {}", output.display())))?;
        let [good, bad] = [Side::Good, Side::Bad].map(|side| output.join(side.name()));
        for folder in [&good, &bad] {
            let failed = || exit::io(format!("make {}", folder.display()));
            fs::create_dir_all(folder).map_err(failed())?;
            if fs::read_dir(folder).map_err(failed())?.next().is_some() {
                let why =
                    format!("{} holds something already; give another --output", folder.display());
                return Err(Failure::new(USAGE, why));
            }
        }
        Ok(Self { good, bad, kept: [0, 0] })
    }

    /// The folders of the good and of the bad runs.
    pub(super) fn both(&self) -> [&Path; 2] {
        [&self.good, &self.bad]
    }

    fn folder(&self, side: Side) -> &Path {
        match side {
            Side::Good => &self.good,
            Side::Bad => &self.bad,
        }
    }

    /// The file while it is written; readers of the folder ignore it.
    pub(super) fn part(&self, side: Side) -> PathBuf {
        self.folder(side).join(".part")
    }

    /// Makes the part the next recording, and returns its file.
    pub(super) fn keep(&mut self, side: Side) -> Result<PathBuf, Failure> {
        let number = self.kept[side as usize] + 1;
        let file = self.folder(side).join(format!("{number:05}.jsonl"));
        fs::rename(self.part(side), &file).map_err(exit::io(format!("name {}", file.display())))?;
        self.kept[side as usize] = number;
        Ok(file)
    }

    /// The number of recordings on each side.
    pub(super) fn kept(&self) -> [u32; 2] {
        self.kept
    }
}

impl Drop for Folders {
    /// A run that was not finished leaves nothing.
    fn drop(&mut self) {
        for side in [Side::Good, Side::Bad] {
            // There is hardly ever one.
            let _ = fs::remove_file(self.part(side));
        }
    }
}
