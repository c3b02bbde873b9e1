//! The options of `cowslip run`, read from the environment once.

use std::env::var_os;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;

use cowslip::Backing;
use cowslip::units::ByteCount;

use crate::rt::{fork_state, loaded_objects, log};

static CONFIG: OnceLock<Config> = OnceLock::new();

/// Every environment variable the library reads.
#[derive(Debug)]
pub(crate) struct Config {
    /// `COWSLIP=off`, or the program runs under valgrind: do nothing at all.
    pub(crate) off: bool,
    /// `COWSLIP_CAPACITY`: bytes of address space.
    pub(crate) capacity: ByteCount,
    /// `COWSLIP_BACKING`: `thp` or `base`.
    pub(crate) backing: Backing,
    /// `COWSLIP_THRESHOLD`: the smallest mapping taken, in bytes.
    pub(crate) threshold_bytes: usize,
    /// `COWSLIP_ARENA_AFTER`: bytes that the process maps before it gets an arena.
    pub(crate) arena_after_bytes: usize,
    /// `COWSLIP_PLAIN=1`: without userfaultfd.
    pub(crate) is_plain: bool,
    /// `COWSLIP_RESPECT_THP_DISABLE=1`.
    pub(crate) respect_thp_disable: bool,
    /// `COWSLIP_GUEST_MEMORY=1`: a virtual machine's RAM is the program's alone, though it is mapped shared.
    pub(crate) has_guest_memory: bool,
    /// `COWSLIP_FOLLOW_EXEC=1`: all programs that it execs are helped as well.
    pub(crate) follows_exec: bool,
    /// `COWSLIP_CHILD_SHARE`: children give way, and get at least this percentage of a processor.
    pub(crate) child_share_percent: Option<u8>,
    /// `COWSLIP_CHILD_MEMORY`: the limit on private copies for children.
    pub(crate) child_memory: Option<ByteCount>,
    /// `COWSLIP_REPORT`: the file for the counters at exit.
    pub(crate) report: Option<PathBuf>,
    /// `COWSLIP_LOG`: a file, or `-` for stderr.
    pub(crate) log: Option<OsString>,
}

impl Config {
    pub(crate) fn from_environment() -> Self {
        let text = |name| var_os(name).and_then(|value| value.into_string().ok());
        let is = |name, value: &str| text(name).is_some_and(|found| found == value);
        let size = |name| text(name).and_then(|value| ByteCount::parse(&value));
        Self {
            off: is("COWSLIP", "off") || loaded_objects::is_loaded(b"vgpreload_"),
            capacity: size("COWSLIP_CAPACITY").unwrap_or_else(cowslip::host::memory_and_swap),
            backing: match text("COWSLIP_BACKING").as_deref() {
                Some("base") => Backing::Base,
                _ => Backing::Thp,
            },
            threshold_bytes: size("COWSLIP_THRESHOLD").map_or(32 << 10, |size| size.0 as usize),
            arena_after_bytes: size("COWSLIP_ARENA_AFTER").map_or(4 << 20, |size| size.0 as usize),
            is_plain: is("COWSLIP_PLAIN", "1"),
            respect_thp_disable: is("COWSLIP_RESPECT_THP_DISABLE", "1"),
            has_guest_memory: is("COWSLIP_GUEST_MEMORY", "1"),
            follows_exec: is("COWSLIP_FOLLOW_EXEC", "1"),
            child_share_percent: text("COWSLIP_CHILD_SHARE").and_then(|share| share.parse().ok()),
            child_memory: size("COWSLIP_CHILD_MEMORY"),
            report: var_os("COWSLIP_REPORT").map(PathBuf::from),
            log: var_os("COWSLIP_LOG"),
        }
    }
}

/// Read at the first call.
pub(crate) fn config() -> &'static Config {
    CONFIG.get_or_init(|| {
        fork_state::begin();
        let config = Config::from_environment();
        log::open(config.log.as_deref());
        config
    })
}
