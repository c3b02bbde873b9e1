//! Reasons why arenas would not help a program.

use cowslip_sys::tmpfs;
use cowslip_sys::uffd::{self, Uffd};

use super::faults;
use super::hints;
use super::outcome::Refusal;
use super::privileges::OwnProcess;
use crate::service::FEATURES;

/// A missing capability, and the command that provides it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Obstacle {
    /// The missing capability, and the reason.
    pub what: String,
    /// For root, unless it says otherwise.
    pub fix: Option<String>,
}

impl Obstacle {
    fn new(missing: &str, no: &Refusal) -> Self {
        let why = match no.hint() {
            Some(hint) => hint,
            None => &no.detail,
        };
        Self { what: format!("{missing}: {why}"), fix: no.fix.clone() }
    }
}

/// The obstacle that keeps this process from thawing: without userfaultfd for the kernel's own accesses, memory that
/// was frozen once stays private, and exists twice as soon as it is written.
///
/// It takes some microseconds, during which a userfaultfd is open.
pub fn thaw_obstacle() -> Option<Obstacle> {
    if uffd::open_reserved().is_ok_and(|fd| Uffd::new(fd, FEATURES).is_ok()) {
        return None;
    }
    let refused = faults::features(&OwnProcess::look()).err()?;
    Some(Obstacle::new("userfaultfd for the kernel's accesses", &refused))
}

/// The obstacle that keeps arenas of this process from huge pages. This mounts no file system: it tries only the first
/// step, which a missing privilege would refuse.
pub fn huge_pages_obstacle() -> Option<Obstacle> {
    let setting = cowslip_sys::procfs::shmem_setting();
    let is_given = match setting.as_deref() {
        Some("deny") => false,
        Some("always" | "within_size" | "advise" | "force") => true,
        _ => tmpfs::may_mount(),
    };
    if is_given {
        return None;
    }
    let why = "neither a tmpfs of its own (CAP_SYS_ADMIN) nor shmem_enabled gives them";
    let refused = Refusal::denied("", why).fix(hints::allow_shmem_huge());
    Some(Obstacle::new("huge pages for shared memory", &refused))
}
