//! The system's settings of huge pages, changed for a while.

use std::{fs, io};

use crate::error::Result;
use crate::settings::{HUGE_PAGES, HeldSettings, is_there, write};

const SHRINKS: &str = "shrink_underused";
const MTHP_64K: &str = "hugepages-64kB/enabled";

/// Longer than any measurement.
const FOR_EVER_MS: u32 = 24 * 3_600_000;

/// Which memory gets huge pages, when, and how hard the kernel tries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Settings {
    pub(super) enabled: &'static str,
    pub(super) defrag: &'static str,
    /// Splits underused huge pages under memory pressure (Linux 6.12).
    pub(super) shrinks: bool,
    /// Pages of 64 KiB for anonymous memory (Linux 6.8).
    pub(super) mthp_64k: &'static str,
    pub(super) max_ptes_none: u32,
    pub(super) pages_to_scan: u32,
    pub(super) scan_sleep_ms: u32,
    /// How long khugepaged waits after it found no huge page.
    pub(super) alloc_sleep_ms: u32,
}

impl Settings {
    /// The kernel's own defaults, where the distribution chose `always`.
    pub(super) const ALWAYS: Self = Self {
        enabled: "always",
        defrag: "madvise",
        shrinks: false,
        mthp_64k: "never",
        max_ptes_none: 511,
        pages_to_scan: 4096,
        scan_sleep_ms: 10_000,
        alloc_sleep_ms: 60_000,
    };
    /// No huge page comes by itself.
    pub(super) const NEVER: Self =
        Self { enabled: "never", scan_sleep_ms: FOR_EVER_MS, ..Self::ALWAYS };
    /// The choice of distributions, with huge pages on request only.
    pub(super) const ON_REQUEST: Self =
        Self { enabled: "madvise", max_ptes_none: 51, ..Self::ALWAYS };
    /// Huge pages at the faults of every program, and a khugepaged that sleeps.
    pub(super) const ASLEEP: Self = Self { scan_sleep_ms: FOR_EVER_MS, ..Self::ALWAYS };
    /// khugepaged never rests.
    pub(super) const EAGER: Self =
        Self { pages_to_scan: 1 << 20, scan_sleep_ms: 0, alloc_sleep_ms: 0, ..Self::ALWAYS };

    fn texts(&self) -> [(&'static str, String); 8] {
        [
            // khugepaged reads the others when it wakes up, which a write to the sleep time triggers.
            ("khugepaged/max_ptes_none", self.max_ptes_none.to_string()),
            ("khugepaged/pages_to_scan", self.pages_to_scan.to_string()),
            (SHRINKS, u8::from(self.shrinks).to_string()),
            (MTHP_64K, self.mthp_64k.to_owned()),
            ("defrag", self.defrag.to_owned()),
            ("enabled", self.enabled.to_owned()),
            ("khugepaged/alloc_sleep_millisecs", self.alloc_sleep_ms.to_string()),
            ("khugepaged/scan_sleep_millisecs", self.scan_sleep_ms.to_string()),
        ]
    }
}

/// Allows changes of the settings while it lives, and restores them afterwards.
#[derive(Debug)]
pub(super) struct System {
    _held: HeldSettings,
}

impl System {
    pub(super) fn hold() -> Result<Self> {
        let paths = Settings::NEVER.texts().map(|(name, _)| path(name));
        let paths: Vec<_> = paths.into_iter().filter(|path| is_there(path)).collect();
        Ok(Self { _held: HeldSettings::hold(&paths)? })
    }

    pub(super) fn set(&self, settings: &Settings) -> Result<()> {
        for (name, text) in settings.texts() {
            let is_off = match name {
                SHRINKS => !settings.shrinks,
                MTHP_64K => settings.mthp_64k == Settings::NEVER.mthp_64k,
                _ => false,
            };
            let path = path(name);
            if !is_off || is_there(&path) {
                write(&path, &text)?;
            }
        }
        Ok(())
    }
}

pub(super) fn mthp_is_there() -> bool {
    is_there(&path(MTHP_64K))
}

/// The reason why access-aware schemes cannot promote here; `None` if they can. They need DAMON for virtual addresses.
pub(super) fn damos_is_missing() -> Option<String> {
    const OPERATIONS: &str = "/sys/kernel/mm/damon/admin/kdamonds/0/contexts/0/avail_operations";
    const KDAMONDS: &str = "/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds";
    let known = fs::read_to_string(OPERATIONS);
    let known = match known {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Some(match fs::metadata(KDAMONDS) {
                Ok(_) => format!("no kdamond is set up ({KDAMONDS} is 0)"),
                Err(error) => format!("{KDAMONDS}: {error} (CONFIG_DAMON_SYSFS)"),
            });
        }
        known => known.unwrap_or_default(),
    };
    let known = known.split_whitespace().collect::<Vec<_>>();
    let why =
        "DAMOS action `hugepage` needs operations `vaddr` (CONFIG_DAMON_VADDR); this kernel has";
    (!known.contains(&"vaddr")).then(|| format!("{why} {}", known.join(", ")))
}

fn path(name: &str) -> String {
    format!("{HUGE_PAGES}/{name}")
}
