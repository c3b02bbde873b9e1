//! Who is measured: every strategy, and a plain loop of read().

use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use clap::ValueEnum;
use cowslip::image::{StandaloneMode, Strategy};

use super::process::{Observed, Work};
use super::sample::Sample;
use super::{Error, Result};
use crate::error::during;
use crate::interrupt::Interrupt;

/// The page cache before a restore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cache {
    Hot,
    Cold,
}

impl Cache {
    pub(super) const ALL: [Self; 2] = [Self::Hot, Self::Cold];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Cold => "cold",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rival {
    /// The library's, into an arena.
    Arena(Strategy),
    /// The library's, without an arena.
    Standalone(StandaloneMode),
    /// The content alone, without an image.
    ReadLoop,
}

impl Rival {
    pub(super) const HYBRID: Self = Self::Arena(Strategy::Hybrid);
    pub(super) const RESIDENT: Self = Self::Standalone(StandaloneMode::Resident);

    /// All of them, and their names in the report; those of strategies are `cowslip restore`'s.
    const NAMES: [(Self, &str); 9] = [
        (Self::HYBRID, "hybrid"),
        (Self::Arena(Strategy::Eager), "eager"),
        (Self::Standalone(StandaloneMode::Map), "map"),
        (Self::Standalone(StandaloneMode::Populate), "populate"),
        (Self::Standalone(StandaloneMode::UffdCopy4k), "uffd-copy-4k"),
        (Self::Standalone(StandaloneMode::UffdCopy2m), "uffd-copy-2m"),
        (Self::Standalone(StandaloneMode::UffdMove), "uffd-move"),
        (Self::RESIDENT, "resident"),
        (Self::ReadLoop, "read-loop"),
    ];

    pub(super) fn all() -> impl Iterator<Item = Self> {
        Self::NAMES.into_iter().map(|(rival, _)| rival)
    }

    pub(super) fn name(self) -> &'static str {
        let named = Self::NAMES.into_iter().find(|(rival, _)| *rival == self);
        named.map_or("", |(_, name)| name)
    }
}

impl FromStr for Rival {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let named = Self::NAMES.into_iter().find(|(_, name)| *name == text);
        named.map(|(rival, _)| rival).ok_or_else(|| format!("there is no rival {text}"))
    }
}

/// One restore in a process of its own.
pub(super) struct Job<'a> {
    pub(super) sample: &'a Sample,
    pub(super) rival: Rival,
    pub(super) cache: Cache,
    pub(super) work: Work,
    pub(super) path: PathBuf,
    /// Where a template is served.
    pub(super) socket: Option<&'a Path>,
    pub(super) record: bool,
    /// Which of the orders of a working set.
    pub(super) order: u32,
}

impl Job<'_> {
    pub(super) fn run(&self, stop: &Interrupt) -> Result<Observed> {
        let cowslip = std::env::current_exe().map_err(during("find this program"))?;
        let mut command = Command::new(cowslip);
        command.args(["bench", "restore-process"]).arg(&self.path);
        command.arg("--flat").arg(self.sample.flat()).args(["--order", &self.order.to_string()]);
        command.args(["--rival", self.rival.name()]);
        let work = self.work.to_possible_value();
        command.args(["--work", work.as_ref().map_or("", |work| work.get_name())]);
        for (flag, is_set) in [("--cold", self.cache == Cache::Cold), ("--record", self.record)] {
            command.args(is_set.then_some(flag));
        }
        if let Some(socket) = self.socket {
            command.arg("--socket").arg(socket);
        }
        let printed = self.sample.folder.finish(&mut command, stop)?;
        serde_json::from_str(&printed).map_err(|error| {
            Error::Failed(format!("a restoring process printed {printed:?}: {error}"))
        })
    }
}
