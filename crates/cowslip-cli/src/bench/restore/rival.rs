//! Who is measured: every strategy, and a plain loop of read().

use std::path::{Path, PathBuf};
use std::process::Command;

use super::process::{Observed, Work};
use super::sample::Sample;
use super::{Error, Result};
use crate::bench::error::during;
use crate::bench::stop::Stop;
use crate::restoring::StrategyArg;
use clap::ValueEnum;

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
    Strategy(StrategyArg),
    ReadLoop,
}

impl Rival {
    pub(super) fn all() -> Vec<Self> {
        let strategies = StrategyArg::value_variants().iter().map(|&it| Self::Strategy(it));
        strategies.chain([Self::ReadLoop]).collect()
    }

    pub(super) fn name(self) -> String {
        match self {
            Self::Strategy(strategy) => {
                strategy.to_possible_value().map_or(String::new(), |it| it.get_name().to_owned())
            }
            Self::ReadLoop => "read-loop".into(),
        }
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
    pub(super) fn run(&self, stop: &Stop) -> Result<Observed> {
        let cowslip = std::env::current_exe().map_err(during("find this program"))?;
        let mut command = Command::new(cowslip);
        command.args(["bench", "restore-process"]).arg(&self.path);
        command.arg("--flat").arg(self.sample.flat()).args(["--order", &self.order.to_string()]);
        if let Rival::Strategy(_) = self.rival {
            command.args(["--strategy", &self.rival.name()]);
        }
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
