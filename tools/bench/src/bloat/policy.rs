//! Ways to give huge pages to a program: the kernel, set up in several ways, or Cowslip.

use super::coverage::COLLAPSE;
use super::settings::{Settings, damos_is_missing, mthp_is_there};
use crate::error::{Error, Result};
use crate::program::Launch;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HugePagePolicy {
    /// Base pages
    Never,
    /// Huge pages on request, which the program then makes
    Madvise,
    /// Huge pages for every program, and khugepaged as it comes: the kernel's defaults
    Always,
    /// The same, and a fault waits until the kernel has made a huge page (`defrag` is `always`)
    Direct,
    /// The same, but a fault takes a base page at once, and the kernel makes huge pages meanwhile, except where the
    /// program asked for them (`defrag` is `defer+madvise`)
    Defer,
    /// The same with a khugepaged that never rests
    Eager,
    /// The same, but khugepaged skips regions with more than a tenth absent
    TenthAbsent,
    /// Huge pages for every program, and one write to the group's `memory.reclaim`: the kernel splits huge pages with
    /// more than a tenth unused
    Reclaim,
    /// Pages of 64 KiB at faults, and no larger ones
    Mthp,
    /// Schemes on the accesses that DAMON sees
    Damos,
    /// Base pages at faults, and all of the memory made huge by hand once it is filled
    Collapse,
    /// Base pages at faults, and `cowslip promote`
    Cowslip,
}

impl HugePagePolicy {
    pub(super) const ALL: [Self; 11] = [
        Self::Never,
        Self::Madvise,
        Self::Always,
        Self::Direct,
        Self::Eager,
        Self::TenthAbsent,
        Self::Reclaim,
        Self::Mthp,
        Self::Damos,
        Self::Collapse,
        Self::Cowslip,
    ];
    /// Policies of a short run: base pages, the kernel's defaults, the settings of a knowing engineer, and Cowslip.
    pub(super) const QUICK: [Self; 7] = [
        Self::Never,
        Self::Always,
        Self::TenthAbsent,
        Self::Reclaim,
        Self::Mthp,
        Self::Collapse,
        Self::Cowslip,
    ];
    /// Rivals in the programs of the paper: base pages, the kernel's ways, and Cowslip.
    pub(super) const RIVALS: [Self; 7] = [
        Self::Never,
        Self::Madvise,
        Self::Always,
        Self::TenthAbsent,
        Self::Reclaim,
        Self::Mthp,
        Self::Cowslip,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Never => "thp-never",
            Self::Madvise => "thp-madvise",
            Self::Always => "thp-always",
            Self::Direct => "thp-always-defrag",
            Self::Defer => "thp-always-defer",
            Self::Eager => "khugepaged-eager",
            Self::TenthAbsent => "khugepaged-51",
            Self::Reclaim => "thp-always-reclaim",
            Self::Mthp => "mthp-64k",
            Self::Damos => "damos",
            Self::Collapse => COLLAPSE,
            Self::Cowslip => "cowslip",
        }
    }

    /// Variables that make a program's malloc request huge pages, if the program has to.
    pub(super) fn environment(self) -> &'static [(&'static str, &'static str)] {
        if self == Self::Madvise { Launch::StockThp.environment() } else { &[] }
    }

    /// The system's settings for it; an error if it cannot run here.
    pub(super) fn settings(self) -> Result<Settings> {
        let always = Settings::ALWAYS;
        Ok(match self {
            Self::Never => Settings::NEVER,
            Self::Cowslip | Self::Collapse => Settings::ON_REQUEST,
            Self::Madvise => Settings { enabled: "madvise", ..always },
            Self::Always => always,
            Self::Direct => Settings { defrag: "always", ..always },
            Self::Defer => Settings { defrag: "defer+madvise", ..always },
            Self::Eager => Settings::EAGER,
            Self::TenthAbsent => Settings { max_ptes_none: 51, ..Settings::EAGER },
            Self::Reclaim => Settings { shrinks: true, max_ptes_none: 51, ..always },
            Self::Mthp if !mthp_is_there() => {
                return Err(Error::Failed("pages of 64 KiB came with Linux 6.8".into()));
            }
            Self::Mthp => Settings { mthp_64k: "always", ..Settings::NEVER },
            Self::Damos => {
                let why = damos_is_missing().unwrap_or_else(|| {
                    "DAMON is there for virtual addresses; this bench has no scheme for it".into()
                });
                return Err(Error::Failed(why));
            }
        })
    }
}
