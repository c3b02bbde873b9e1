//! The kernel's own promoter: settings of it that undo ours, and setting them with the promise to put
//! them back.

use super::{REGION_PAGES, Settings};
use crate::Result;
use crate::error::{During, Error};
use crate::sys::procfs::{Policy, Thp};

/// What the kernel does that works against `settings`, a sentence each with the command that ends it.
///
/// ```
/// use cowslip::promote::{Settings, interference};
/// use cowslip::sys::procfs::{Policy, Thp};
/// let thp = Thp { enabled: Policy::Always, max_ptes_none: 51 };
/// assert!(interference(&thp, &Settings::default())[0].contains("echo madvise"));
/// ```
pub fn interference(thp: &Thp, settings: &Settings) -> Vec<String> {
    let mut told = Vec::new();
    let most = most_absent(settings);
    if thp.enabled == Policy::Always {
        told.push(
            "the kernel gives huge pages at the first touch of a region, however little of it is used: \
             `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`"
                .to_owned(),
        );
    }
    if thp.enabled != Policy::Never && thp.max_ptes_none > most {
        let who = if thp.enabled == Policy::Always { "any region" } else { "what asked for them" };
        told.push(format!(
            "khugepaged makes huge pages of {who} with up to {} of {REGION_PAGES} pages absent, also \
             of those split here: `echo {most} > \
             /sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none`",
            thp.max_ptes_none
        ));
    }
    told
}

/// Pages that may be absent for the threshold to be reached.
fn most_absent(settings: &Settings) -> u32 {
    u32::from(REGION_PAGES) * u32::from(100 - settings.threshold_percent) / 100
}

/// The system's settings, changed for as long as this lives.
#[derive(Debug)]
#[must_use = "dropping it puts the settings back"]
pub struct ManagedThp {
    before: Thp,
    ours: Thp,
}

impl ManagedThp {
    /// Has the kernel take base pages at faults, and khugepaged keep to the threshold. `Denied` for others
    /// than root; then nothing has changed.
    pub fn set(settings: &Settings) -> Result<Self> {
        let before = Thp::read().during("read the settings of transparent huge pages")?;
        let most = most_absent(settings);
        let ours = Thp {
            enabled: match &before.enabled {
                Policy::Always => Policy::Madvise,
                other => other.clone(),
            },
            max_ptes_none: before.max_ptes_none.min(most),
        };
        ours.write().during("change the settings of transparent huge pages").map_err(|error| {
            let _ = before.write();
            error.hint(
                "they are the whole system's, and root's: run as root, or without --manage-thp",
            )
        })?;
        Ok(Self { before, ours })
    }

    /// The settings before and now.
    pub fn settings(&self) -> (&Thp, &Thp) {
        (&self.before, &self.ours)
    }

    /// Puts back what was changed here and nobody else has changed since.
    pub fn restore(&self) -> Result<()> {
        let doing = "put back the settings of transparent huge pages";
        let mut now = Thp::read().during(doing)?;
        if now.enabled == self.ours.enabled {
            now.enabled = self.before.enabled.clone();
        }
        if now.max_ptes_none == self.ours.max_ptes_none {
            now.max_ptes_none = self.before.max_ptes_none;
        }
        now.write().map_err(|errno| Error::from_errno(doing, errno))
    }
}

impl Drop for ManagedThp {
    fn drop(&mut self) {
        // Who wants to know of a failure calls `restore`.
        let _ = self.restore();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interference_is_named_with_its_remedy() {
        let told = |enabled, max_ptes_none| {
            interference(&Thp { enabled, max_ptes_none }, &Settings::default())
        };
        assert!(told(Policy::Never, 511).is_empty());
        assert!(told(Policy::Madvise, 51).is_empty());
        let khugepaged = told(Policy::Madvise, 511);
        assert!(khugepaged.len() == 1 && khugepaged[0].contains("echo 51"), "{khugepaged:?}");
        assert_eq!(told(Policy::Always, 511).len(), 2);
    }
}
