//! The mechanisms that are compared.

mod cowslip;
mod forking;
mod memfd;
mod spawning;
mod uffd_wp;

use std::time::Duration;

use super::error::{Error, Result};
use super::interrupt::Interrupt;
use super::memory::{Anonymous, Memory};

pub(crate) use cowslip::{Freezing, FreezingFork};
pub(crate) use forking::{Forking, Pages};
use memfd::MemfdPrivate;
use spawning::Spawning;
pub(crate) use uffd_wp::UffdWp;

const MOSTLY_HUGE: f64 = 0.9;
const NO_HUGE_PAGES: &str = "the system gave no huge pages: memory is fragmented, or \
    /sys/kernel/mm/transparent_hugepage/enabled is never";

/// A way to keep the content of memory at one instant while the program writes on.
pub(crate) trait Mechanism {
    /// The memory that the program works on.
    fn memory(&self) -> &Memory;

    /// Takes a snapshot, and returns the time that it held the program up. A mechanism that forks may take several.
    fn snapshot(&mut self) -> Result<Duration>;

    /// The longest time that the last snapshot could hold other threads up, if that is known.
    fn held(&self) -> Option<Duration> {
        None
    }

    /// Releases the snapshots and waits until the next one can be taken.
    fn release(&mut self) -> Result<()>;

    /// Forks a child that works on the memory at once and ends. Returns its answer, and the time that the fork held the
    /// program up.
    fn answer(&mut self, _work: fn(&Memory) -> [u64; 3]) -> Result<([u64; 3], Duration)> {
        Err(Error::Failed("it makes no child".to_owned()))
    }

    /// Restores huge pages that the mechanism itself lost.
    fn renew(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A mechanism, and the pages that it works on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MechanismKind {
    Cowslip,
    CowslipFork,
    Fork4k,
    ForkThp,
    ForkHugetlb,
    UffdWp4k,
    UffdWpThp,
    MemfdPrivate,
    VforkExec,
}

impl MechanismKind {
    /// Its name in the report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cowslip | Self::CowslipFork => "cowslip",
            Self::Fork4k => "fork-4k",
            Self::ForkThp => "fork-thp",
            Self::ForkHugetlb => "fork-hugetlb",
            Self::UffdWp4k | Self::UffdWpThp => "uffd-wp",
            Self::MemfdPrivate => "memfd-private",
            Self::VforkExec => "vfork+exec",
        }
    }

    /// The metric of this name: forks are compared with forks, and mechanisms without a child make views.
    pub(crate) fn metric(self, name: &str) -> String {
        let snapshot = match self {
            Self::Cowslip | Self::UffdWp4k | Self::UffdWpThp => "view",
            _ => "fork",
        };
        format!("{snapshot}_{name}")
    }

    pub(crate) fn variant(self) -> Option<&'static str> {
        match self {
            Self::UffdWp4k => Some("4k"),
            Self::UffdWpThp => Some("thp"),
            _ => None,
        }
    }

    /// Opens one on `bytes` of memory, and warms it: touches it twice.
    pub(crate) fn open(self, bytes: usize, stop: &Interrupt) -> Result<Box<dyn Mechanism>> {
        let mechanism: Box<dyn Mechanism> = match self {
            Self::Cowslip => Box::new(Freezing::new(bytes)?),
            Self::CowslipFork => Box::new(FreezingFork::new(bytes)?),
            Self::Fork4k => Box::new(Forking::new(bytes, Pages::Base)?),
            Self::ForkThp => Box::new(Forking::new(bytes, Pages::Huge)?),
            Self::ForkHugetlb => Box::new(Forking::new(bytes, Pages::Hugetlb)?),
            Self::UffdWp4k => Box::new(UffdWp::new(bytes, Anonymous::Base)?),
            Self::UffdWpThp => Box::new(UffdWp::new(bytes, Anonymous::Huge)?),
            Self::MemfdPrivate => Box::new(MemfdPrivate::new(bytes)?),
            Self::VforkExec => Box::new(Spawning::new(bytes)?),
        };
        mechanism.memory().touch(stop)?;
        mechanism.memory().touch(stop)?;
        let needs_huge = matches!(self, Self::ForkThp | Self::UffdWpThp);
        if needs_huge && mechanism.memory().huge_coverage()? < MOSTLY_HUGE {
            return Err(Error::Failed(NO_HUGE_PAGES.to_owned()));
        }
        Ok(mechanism)
    }
}
