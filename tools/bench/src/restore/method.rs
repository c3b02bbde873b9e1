//! The measured methods: the strategies of the library, and the baselines.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use clap::ValueEnum;
use cowslip::image::Strategy;

use super::baselines::Threads::{OneProcessor, TwoProcessors};
use super::baselines::{Baseline, Filling, Target};
use super::observed::{Observed, Work};
use super::sample::Sample;
use super::{Error, Result};
use crate::host;
use crate::interrupt::Interrupt;
use crate::program;

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
pub(super) enum RestoreMethod {
    /// The library's restore into an arena.
    Arena(Strategy),
    /// A clone of a template that is in memory already.
    Resident,
    /// An arena restored from such a template, which becomes independent of it.
    ResidentArena,
    /// The content alone, without an image and without the library.
    Baseline(Baseline),
}

const fn baseline(baseline: Baseline) -> RestoreMethod {
    RestoreMethod::Baseline(baseline)
}

impl RestoreMethod {
    pub(super) const HYBRID: Self = Self::Arena(Strategy::Hybrid);

    /// All methods, and their names in the report; those of strategies are `cowslip restore`'s.
    const NAMES: [(Self, &str); 22] = [
        (Self::HYBRID, "hybrid"),
        (Self::Arena(Strategy::Eager), "eager"),
        (Self::Resident, "resident"),
        (Self::ResidentArena, "resident-arena"),
        (baseline(Baseline::Mmap), "mmap"),
        (baseline(Baseline::MmapPopulate), "mmap-populate"),
        (baseline(Baseline::MmapHuge), "mmap-huge"),
        (baseline(Baseline::TmpfsHuge), "tmpfs-huge"),
        (baseline(Baseline::Uffd(Filling::Copy4k, OneProcessor)), "uffd-copy-4k-1cpu"),
        (baseline(Baseline::Uffd(Filling::Copy4k, TwoProcessors)), "uffd-copy-4k-2cpu"),
        (baseline(Baseline::Uffd(Filling::Copy2m, OneProcessor)), "uffd-copy-2m-1cpu"),
        (baseline(Baseline::Uffd(Filling::Copy2m, TwoProcessors)), "uffd-copy-2m-2cpu"),
        (baseline(Baseline::Uffd(Filling::CopyHugetlb, OneProcessor)), "uffd-copy-hugetlb-1cpu"),
        (baseline(Baseline::Uffd(Filling::CopyHugetlb, TwoProcessors)), "uffd-copy-hugetlb-2cpu"),
        (baseline(Baseline::Uffd(Filling::Move2m, OneProcessor)), "uffd-move-2m-1cpu"),
        (baseline(Baseline::Uffd(Filling::Move2m, TwoProcessors)), "uffd-move-2m-2cpu"),
        (baseline(Baseline::ReadHuge(OneProcessor)), "read-huge-1cpu"),
        (baseline(Baseline::ReadHuge(TwoProcessors)), "read-huge-2cpu"),
        (baseline(Baseline::ReadHugeDirect(OneProcessor)), "read-huge-direct-1cpu"),
        (baseline(Baseline::ReadHugeDirect(TwoProcessors)), "read-huge-direct-2cpu"),
        (baseline(Baseline::Copy(Target::Fresh)), "memory-copy"),
        (baseline(Baseline::Copy(Target::Written)), "memory-copy-written"),
    ];

    pub(super) fn all() -> impl Iterator<Item = Self> {
        Self::NAMES.into_iter().map(|(method, _)| method)
    }

    pub(super) fn name(self) -> &'static str {
        let named = Self::NAMES.into_iter().find(|(method, _)| *method == self);
        named.map_or("", |(_, name)| name)
    }

    /// Returns true if it uses a template that a server has.
    pub(super) fn is_of_template(self) -> bool {
        matches!(self, Self::Resident | Self::ResidentArena)
    }

    /// Returns true if it is measured with this page cache. From a cold one, unless all is measured, only methods that
    /// can be the fastest there are.
    pub(super) fn is_measured(self, cache: Cache, is_full: bool) -> bool {
        match (self, cache) {
            (Self::Baseline(baseline), Cache::Cold) => {
                baseline.can_be_cold() && (is_full || baseline.may_be_fastest_when_cold())
            }
            // It reads no file.
            (Self::ResidentArena, Cache::Cold) => false,
            _ => true,
        }
    }
}

impl FromStr for RestoreMethod {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let named = Self::NAMES.into_iter().find(|(_, name)| *name == text);
        named.map(|(method, _)| method).ok_or_else(|| format!("there is no method {text}"))
    }
}

/// One restore in a process of its own.
pub(super) struct Job<'a> {
    pub(super) sample: &'a Sample,
    pub(super) method: RestoreMethod,
    pub(super) cache: Cache,
    pub(super) work: Work,
    pub(super) path: PathBuf,
    /// The socket at which a template is served.
    pub(super) socket: Option<&'a Path>,
    pub(super) record: bool,
    /// The number of a working set's order.
    pub(super) order: u32,
}

impl Job<'_> {
    pub(super) fn run(&self, stop: &Interrupt) -> Result<Observed> {
        let mut command = Command::new(program::this()?);
        command.arg("restore-process").arg(&self.path);
        command.arg("--flat").arg(self.sample.flat()).args(["--order", &self.order.to_string()]);
        command.args(["--method", self.method.name()]);
        let work = self.work.to_possible_value();
        command.args(["--work", work.as_ref().map_or("", |work| work.get_name())]);
        for (flag, is_set) in [("--cold", self.cache == Cache::Cold), ("--record", self.record)] {
            command.args(is_set.then_some(flag));
        }
        if let Some(socket) = self.socket {
            command.arg("--socket").arg(socket);
        }
        let printed = self.sample.folder.finish(&mut command, stop)?;
        let observed: Observed = serde_json::from_str(&printed).map_err(|error| {
            Error::Failed(format!("a restoring process printed {printed:?}: {error}"))
        })?;
        host::note_warmed(observed.touch_ns);
        Ok(observed)
    }
}
