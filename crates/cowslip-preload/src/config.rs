//! What `cowslip run` asked for, read from the environment once.

use std::env::var_os;
use std::ffi::OsString;
use std::path::PathBuf;

use cowslip::Backing;
use cowslip::units::ByteCount;

/// Every environment variable the library reads.
#[derive(Debug)]
pub(crate) struct Config {
    /// `COWSLIP=off`: do nothing at all.
    pub(crate) off: bool,
    /// `COWSLIP_CAPACITY`: bytes of address space.
    pub(crate) capacity: ByteCount,
    /// `COWSLIP_BACKING`: `thp` or `base`.
    pub(crate) backing: Backing,
    /// `COWSLIP_THRESHOLD`: the smallest mapping taken, in bytes.
    pub(crate) threshold_bytes: usize,
    /// `COWSLIP_USERFAULTFD=0`: the plain way.
    pub(crate) userfaultfd: bool,
    /// `COWSLIP_RESPECT_THP_DISABLE=1`.
    pub(crate) respect_thp_disable: bool,
    /// `COWSLIP_CHILD_SHARE`: children give way, and get so many percent of a processor at least.
    pub(crate) child_share_percent: Option<u8>,
    /// `COWSLIP_CHILD_MEMORY`: private copies that children may cost.
    pub(crate) child_memory: Option<ByteCount>,
    /// `COWSLIP_REPORT`: where the counters go at exit.
    pub(crate) report: Option<PathBuf>,
    /// `COWSLIP_LOG`: a file, or `-` for stderr.
    pub(crate) log: Option<OsString>,
}

impl Config {
    pub(crate) fn from_environment() -> Self {
        let text = |name| var_os(name).and_then(|value| value.into_string().ok());
        let size = |name| text(name).and_then(|value| ByteCount::parse(&value));
        Self {
            off: text("COWSLIP").is_some_and(|value| value == "off"),
            capacity: size("COWSLIP_CAPACITY").unwrap_or_else(cowslip::host::memory_and_swap),
            backing: match text("COWSLIP_BACKING").as_deref() {
                Some("base") => Backing::Base,
                _ => Backing::Thp,
            },
            threshold_bytes: size("COWSLIP_THRESHOLD").map_or(256 << 10, |size| size.0 as usize),
            userfaultfd: text("COWSLIP_USERFAULTFD").is_none_or(|value| value != "0"),
            respect_thp_disable: text("COWSLIP_RESPECT_THP_DISABLE").is_some_and(|v| v == "1"),
            child_share_percent: text("COWSLIP_CHILD_SHARE").and_then(|share| share.parse().ok()),
            child_memory: size("COWSLIP_CHILD_MEMORY"),
            report: var_os("COWSLIP_REPORT").map(PathBuf::from),
            log: var_os("COWSLIP_LOG"),
        }
    }
}

/// Takes this library out of `LD_PRELOAD`, so that programs the program execs run without it, unless
/// `COWSLIP_FOLLOW_EXEC=1`.
pub(crate) fn leave_children_alone() {
    if var_os("COWSLIP_FOLLOW_EXEC").is_some_and(|value| value == "1") {
        return;
    }
    let Some(others) = var_os("COWSLIP_OTHER_PRELOADS") else { return };
    // SAFETY: called from the constructor of this library, before the program has threads.
    unsafe {
        if others.is_empty() {
            std::env::remove_var("LD_PRELOAD");
        } else {
            std::env::set_var("LD_PRELOAD", others);
        }
    }
}
