//! The kernel's own promoter: finds its settings that undo ours, and changes them until they are put back.

use cowslip_sys::error::{During, Error, ErrorKind, Result, errno_of};
use cowslip_sys::procfs::{Policy, Thp};
use serde::{Deserialize, Serialize};

use crate::crash_state::{self, Found};
use crate::model::{REGION_PAGES, Settings};
use crate::page_size::SizeChange;

/// The kernel's settings that work against `settings`: a sentence each, with the command that changes it.
///
/// ```
/// use cowslip_promote::{Settings, interference};
/// use cowslip_sys::procfs::{Policy, Thp};
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

/// A refusal of settings that belong to the whole system.
fn not_root(error: Error) -> Error {
    error
        .because("they are the whole system's, and root's")
        .advise("run as root, or without --manage-thp")
}

/// The most pages that may be absent for the threshold to be reached.
fn most_absent(settings: &Settings) -> u32 {
    u32::from(REGION_PAGES) * u32::from(100 - settings.threshold_percent) / 100
}

/// The file that keeps the settings to put back.
const STATE_FILE: &str = "promote-thp.json";

/// The system's settings, changed until this is dropped.
#[derive(Debug)]
#[must_use = "dropping it puts the settings back"]
pub struct ManagedThp {
    change: Change,
    is_restored: bool,
}

/// Settings before and after a change.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Change {
    before: Thp,
    ours: Thp,
    size: Option<SizeChange>,
}

/// A change as kept in the file: the words and numbers of `before` and `ours`; a size, with its words.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    thp: [(String, u32); 2],
    size: Option<(u64, [String; 2])>,
}

/// The settings after they were put back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Restored {
    /// Those of all sizes and of khugepaged.
    pub thp: Thp,
    /// The size of pages whose setting had been changed, and that setting.
    pub size: Option<(u64, Policy)>,
}

impl ManagedThp {
    /// Makes the kernel use base pages at faults, and khugepaged keep to the threshold. The settings before
    /// are kept in `/run/cowslip` first, so that [`Self::restore_left`] can put them back after `kill -9`.
    /// `Denied` for users other than root, `Busy` while another process manages them; nothing has changed
    /// then.
    pub fn set(settings: &Settings) -> Result<Self> {
        Self::restore_left()?;
        let before = Thp::read().during("read the settings of transparent huge pages")?;
        let most = most_absent(settings);
        let ours = Thp {
            enabled: match &before.enabled {
                Policy::Always => Policy::Madvise,
                other => other.clone(),
            },
            max_ptes_none: before.max_ptes_none.min(most),
        };
        let change = Change { before, ours, size: None };
        change.keep()?;
        // From here on, dropping it restores the settings.
        let managed = Self { change, is_restored: false };
        let written = managed.change.ours.write();
        written.during("change the settings of transparent huge pages").map_err(not_root)?;
        Ok(managed)
    }

    /// Changes the setting of a size as well, once.
    pub(crate) fn set_size(&mut self, size: SizeChange) -> Result<()> {
        let change = Change { size: Some(size), ..self.change.clone() };
        change.keep()?;
        self.change = change;
        self.change.size.as_ref().map_or(Ok(()), SizeChange::make).map_err(not_root)
    }

    /// Restores the settings that a killed process left changed, except those changed again since. Returns
    /// the resulting settings, or `None` if nothing was left. `Denied` for users other than root, `Busy` if
    /// the process still runs, `Corrupt` if the file that keeps them is damaged.
    pub fn restore_left() -> Result<Option<Restored>> {
        const DOING: &str = "put back the settings of transparent huge pages";
        let found = crash_state::find::<Kept>(STATE_FILE)
            .map_err(|error| not_root(Error::from_errno(DOING, errno_of(&error))))?;
        match found {
            Found::Nothing => Ok(None),
            Found::Owned(owner) if owner.pid == cowslip_sys::process::pid() => Ok(None),
            Found::Owned(owner) => Err(Error::new(ErrorKind::Busy, DOING)
                .because(format!("process {} manages them, and does so when it ends", owner.pid))),
            Found::Left(kept) => Change::of_kept(kept).restore().map(Some),
            Found::Damaged(path) => {
                let path = path.display();
                Err(Error::new(ErrorKind::Corrupt, DOING)
                    .because(format!("{path} is damaged, and what they were is not known"))
                    .advise("set them as they should be, and remove it"))
            }
        }
    }

    /// The settings before and now.
    pub fn settings(&self) -> (&Thp, &Thp) {
        (&self.change.before, &self.change.ours)
    }

    /// Restores the settings, except those changed elsewhere since.
    pub fn restore(mut self) -> Result<()> {
        self.is_restored = true;
        self.change.restore().map(drop)
    }
}

impl Drop for ManagedThp {
    fn drop(&mut self) {
        if !self.is_restored {
            // Callers that need the error call `restore`.
            let _ = self.change.restore();
        }
    }
}

impl Change {
    /// Keeps the change for the case that this process is killed.
    fn keep(&self) -> Result<()> {
        crash_state::keep(STATE_FILE, self.to_kept()).map_err(|error| {
            let doing = "keep the settings of transparent huge pages";
            match error.raw_os_error() {
                Some(_) => not_root(Error::from_errno(doing, errno_of(&error))),
                None => Error::from_io(doing, &error),
            }
        })
    }

    fn restore(&self) -> Result<Restored> {
        let doing = "put back the settings of transparent huge pages";
        let restored =
            |change: &SizeChange| change.restore().map(|policy| (change.page_bytes, policy));
        let size = self.size.as_ref().map(restored).transpose();
        let mut now = Thp::read().during(doing)?;
        if now.enabled == self.ours.enabled {
            now.enabled = self.before.enabled.clone();
        }
        if now.max_ptes_none == self.ours.max_ptes_none {
            now.max_ptes_none = self.before.max_ptes_none;
        }
        now.write().map_err(|errno| Error::from_errno(doing, errno))?;
        let size = size.map_err(|errno| Error::from_errno(doing, errno))?;
        crash_state::forget(STATE_FILE)
            .map_err(|error| Error::from_errno(doing, errno_of(&error)))?;
        Ok(Restored { thp: now, size })
    }

    fn to_kept(&self) -> Kept {
        let thp = |thp: &Thp| (thp.enabled.word().to_owned(), thp.max_ptes_none);
        let words = |change: &SizeChange| {
            [&change.before, &change.ours].map(|policy| policy.word().to_owned())
        };
        Kept {
            thp: [&self.before, &self.ours].map(thp),
            size: self.size.as_ref().map(|change| (change.page_bytes, words(change))),
        }
    }

    fn of_kept(kept: Kept) -> Self {
        let thp = |(word, max_ptes_none): (String, u32)| Thp {
            enabled: Policy::of_word(&word),
            max_ptes_none,
        };
        let [before, ours] = kept.thp.map(thp);
        let size = kept.size.map(|(page_bytes, words)| {
            let [before, ours] = words.map(|word| Policy::of_word(&word));
            SizeChange { page_bytes, before, ours }
        });
        Self { before, ours, size }
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
