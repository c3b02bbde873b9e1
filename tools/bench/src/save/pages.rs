//! The system's huge pages, set for the servers that ask for them.

use crate::error::{Error, Result};
use crate::settings::{HUGE_PAGES, HeldSettings, is_there, read, write};

const MTHP: &str = "hugepages-64kB/enabled";
const MTHP_GIVEN: &str = "hugepages-64kB/stats/anon_fault_alloc";
const MTHP_BYTES: u64 = 64 << 10;
const PMD: &str = "hugepages-2048kB/enabled";
const ENABLED: &str = "enabled";
const SHMEM: &str = "shmem_enabled";
/// The least share of a server with pages of 64 KiB that must be on them.
const MIN_SHARE: f64 = 0.5;

/// Allows changes of the system's huge pages while it lives.
#[derive(Debug)]
pub(super) struct System {
    /// The held settings, or the reason why they cannot be changed.
    held: std::result::Result<HeldSettings, String>,
}

impl System {
    /// Sets huge pages like `cowslip setup` for ordinary users' memory, and for anonymous memory only on request: else
    /// there would be no memory on pages of 64 KiB.
    pub(super) fn hold() -> Self {
        let paths: Vec<_> =
            [MTHP, PMD, SHMEM].map(path).into_iter().filter(|file| is_there(file)).collect();
        let prepare = || {
            let held = HeldSettings::hold(&paths)?;
            if is_there(&path(PMD)) && is_always()? {
                write(&path(PMD), "madvise")?;
            }
            if is_there(&path(SHMEM)) && read(&path(SHMEM))? == "never" {
                write(&path(SHMEM), "advise")?;
            }
            Ok(held)
        };
        Self { held: prepare().map_err(|error: Error| error.to_string()) }
    }

    /// Gives pages of 64 KiB to anonymous memory without advice, while the guard lives.
    pub(super) fn mthp(&self) -> Result<Mthp> {
        if let Err(why) = &self.held {
            return Err(Error::Failed(why.clone()));
        }
        if !is_there(&path(MTHP)) {
            let why = format!("this kernel has no {}: Linux 6.8 has", path(MTHP));
            return Err(Error::Failed(why));
        }
        let mthp = Mthp { before: read(&path(MTHP))?, given: given()? };
        write(&path(MTHP), "always")?;
        Ok(mthp)
    }
}

/// Makes the kernel give out pages of 64 KiB while it lives.
#[derive(Debug)]
pub(super) struct Mthp {
    before: String,
    given: u64,
}

impl Mthp {
    /// An error if too little of the memory that was filled meanwhile is on such pages.
    pub(super) fn check(&self, filled_bytes: u64) -> Result<()> {
        let share = (given()? - self.given) as f64 * MTHP_BYTES as f64 / filled_bytes as f64;
        if share >= MIN_SHARE {
            return Ok(());
        }
        let why = format!("pages of 64 KiB are only {:.0} % of its memory", share * 100.0);
        Err(Error::Failed(why))
    }
}

impl Drop for Mthp {
    fn drop(&mut self) {
        let _ = write(&path(MTHP), &self.before);
    }
}

/// Returns true if all anonymous memory gets huge pages.
fn is_always() -> Result<bool> {
    Ok(match read(&path(PMD))?.as_str() {
        "inherit" => read(&path(ENABLED))? == "always",
        chosen => chosen == "always",
    })
}

/// Pages of 64 KiB that the kernel has given out.
fn given() -> Result<u64> {
    Ok(read(&path(MTHP_GIVEN))?.parse().unwrap_or(0))
}

fn path(name: &str) -> String {
    format!("{HUGE_PAGES}/{name}")
}
