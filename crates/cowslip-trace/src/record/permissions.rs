//! What each privilege gives: found out by doing it.

use std::fmt;

use cowslip_sys::Errno;
use cowslip_sys::perf::{Attributes, Event, Kind, Refusal, Ring, TracepointError};

use super::attach::{RING, online_cpus};
use super::plan::{ALLOCATION, CALLS, ENTRIES, Role, Source};

pub(super) const PERMIT_OWN: &str = "sysctl kernel.perf_event_paranoid=2";
pub(super) const PERMIT_KERNEL: &str = "sysctl kernel.perf_event_paranoid=1";
pub(super) const PERMIT_TRACEPOINTS: &str =
    "setcap cap_perfmon,cap_dac_read_search+ep $(command -v cowslip)";
pub(super) const MOUNT_TRACEFS: &str = "mount -t tracefs tracefs /sys/kernel/tracing";
pub(super) const PERMIT_OTHERS: &str = "setcap cap_perfmon,cap_sys_ptrace+ep $(command -v cowslip)";
pub(super) const PERMIT_RINGS: &str = "sysctl kernel.perf_event_mlock_kb=16388";

/// Whether something works here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It was done.
    Available,
    /// This kernel, or this build, cannot do it.
    Unsupported,
    /// The kernel could, but a privilege or a setting is in the way.
    Denied {
        /// The command that takes it out of the way, for root.
        fix: &'static str,
    },
    /// It failed for another reason.
    Unknown {
        /// The kernel's error number; 0: what was read was not understood.
        errno: i32,
    },
}

impl Answer {
    /// One word for it, for programs.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::Unsupported => "unsupported",
            Self::Denied { .. } => "denied",
            Self::Unknown { .. } => "unknown",
        }
    }

    /// What is to be said after naming what is not seen.
    pub(super) fn or_fix(self) -> String {
        match self {
            Self::Denied { fix } => format!(": run `{fix}`, or as root"),
            Self::Unsupported => ": this kernel cannot tell".into(),
            other => format!(": {other}"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Available => f.write_str("yes"),
            Self::Unsupported => f.write_str("no"),
            Self::Denied { .. } => f.write_str("denied"),
            Self::Unknown { errno: 0 } => f.write_str("not understood"),
            Self::Unknown { errno } => {
                write!(f, "{}", std::io::Error::from_raw_os_error(*errno))
            }
        }
    }
}

/// A step of the ladder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Permission {
    /// A name that does not change between versions.
    pub name: &'static str,
    /// What it lets one see.
    pub gives: &'static str,
    /// Whether it works here.
    pub answer: Answer,
}

/// Every step, from what everybody may to what is rarely there.
pub fn permissions() -> Vec<Permission> {
    let faults = |kind, in_kernel| open(kind, in_kernel, 0, 0);
    let permission = |name, gives, answer| Permission { name, gives, answer };
    vec![
        permission(
            "faults",
            "each page fault of one's own programs, and new mappings",
            answer(faults(Kind::MinorFaults, false), PERMIT_OWN),
        ),
        permission(
            "latency",
            "how long each fault took (--detail access)",
            answer(faults(Kind::PageFaults, false), PERMIT_OWN),
        ),
        permission(
            "kernel-faults",
            "faults that the kernel takes for them (read(2) into fresh memory)",
            answer(faults(Kind::MinorFaults, true), PERMIT_KERNEL),
        ),
        permission(
            "rings",
            "rings of 8 MiB a processor: room for 170,000 faults each",
            answer(map_rings(), PERMIT_RINGS),
        ),
        permission(
            "calls",
            "mmap, munmap, mremap, madvise and brk exactly, and who mapped",
            tracepoints(CALLS.iter().flat_map(|(call, name)| {
                let of = |step: &str| format!("syscalls/sys_{step}_{name}");
                [(of("enter"), Role::Enter(*call)), (of("exit"), Role::Leave(*call))]
            })),
        ),
        permission(
            "access",
            "read, write or execute; whether a page was there (--detail access)",
            tracepoints(ENTRIES.iter().map(|name| (name.to_string(), Role::Entry))),
        ),
        permission(
            "huge",
            "whether a huge page was the answer (--detail access)",
            tracepoints([(ALLOCATION.to_owned(), Role::HugePage)]),
        ),
        permission(
            "others",
            "programs of other users",
            answer(open(Kind::MinorFaults, true, 1, 0), PERMIT_OTHERS),
        ),
        permission(
            "bpf",
            "the kernel's result of each fault (VM_FAULT_*): not in this build",
            Answer::Unsupported,
        ),
    ]
}

fn open(kind: Kind, in_kernel: bool, thread: i32, cpu: u32) -> Result<Event, Errno> {
    let attributes = Attributes {
        kind,
        period: 1,
        frames: None,
        in_kernel,
        follows: false,
        starts_at_exec: false,
    };
    Event::open(&attributes, thread, cpu)
}

/// One for each processor, all at once, as a recording has them.
fn map_rings() -> Result<Vec<Ring>, Errno> {
    let cpus = online_cpus().unwrap_or_default();
    cpus.iter().map(|cpu| Ring::map(&open(Kind::MinorFaults, false, 0, *cpu)?, RING)).collect()
}

fn tracepoints(all: impl IntoIterator<Item = (String, Role)>) -> Answer {
    let found =
        all.into_iter().try_for_each(|(name, role)| Source::tracepoint(&name, role).map(drop));
    found.err().unwrap_or(Answer::Available)
}

pub(super) fn answer<T>(tried: Result<T, Errno>, fix: &'static str) -> Answer {
    match tried.map_err(refused) {
        Ok(_) => Answer::Available,
        Err(Answer::Denied { .. }) => Answer::Denied { fix },
        Err(other) => other,
    }
}

pub(super) fn refused(errno: Errno) -> Answer {
    match Refusal::of(errno) {
        Refusal::Denied => Answer::Denied { fix: PERMIT_TRACEPOINTS },
        Refusal::Unsupported => Answer::Unsupported,
        _ => Answer::Unknown { errno: errno.raw_os_error() },
    }
}

pub(super) fn unfound(error: TracepointError) -> Answer {
    match error {
        TracepointError::Absent => Answer::Unsupported,
        TracepointError::Unmounted => Answer::Denied { fix: MOUNT_TRACEFS },
        TracepointError::Denied => Answer::Denied { fix: PERMIT_TRACEPOINTS },
        TracepointError::Other(errno) => refused(errno),
        TracepointError::Strange => Answer::Unknown { errno: 0 },
    }
}
