//! The data that each privilege gives a recording, found out by trying.

use cowslip_sys::Errno;
use cowslip_sys::capabilities::SETCAP;
use cowslip_sys::perf::{Attributes, Event, Kind, Ring, Scope};

use super::attach::{RING, online_cpus};
use super::latency::Histogram;
use super::plan::{ALLOCATION, CALLS, ENTRIES, Role, Source};
use super::status::{PERMIT_KERNEL, PERMIT_OWN, PERMIT_RINGS, PermissionStatus, status_of};

/// Data that a recording can have, if the kernel permits it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Permission {
    /// A name that stays the same between versions.
    pub name: &'static str,
    /// A description of the data.
    pub gives: &'static str,
    /// The result of trying it here.
    pub status: PermissionStatus,
}

/// All permissions, from those of every user to rare ones.
pub fn permissions() -> Vec<Permission> {
    let faults = |kind, in_kernel| open(kind, in_kernel, Scope::Thread(0), 0);
    let permission = |name, gives, status| Permission { name, gives, status };
    vec![
        permission(
            "faults",
            "each page fault of one's own programs, and new mappings",
            status_of(faults(Kind::MinorFaults, false), PERMIT_OWN),
        ),
        permission(
            "latency",
            "how long each fault took (--detail access)",
            status_of(faults(Kind::PageFaults, false), PERMIT_OWN),
        ),
        permission(
            "kernel-faults",
            "faults that the kernel takes for them (read(2) into fresh memory)",
            status_of(faults(Kind::MinorFaults, true), PERMIT_KERNEL),
        ),
        permission(
            "rings",
            "rings of 8 MiB a processor: room for 170,000 faults each",
            status_of(map_rings(), PERMIT_RINGS),
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
            "histogram",
            "latencies counted by the kernel, for CONFIG_KPROBE_EVENTS and _HIST_TRIGGERS (--latency)",
            Histogram::begin().map_or_else(|error| error.status, |_| PermissionStatus::Available),
        ),
        permission(
            "others",
            "programs of other users",
            status_of(open(Kind::MinorFaults, true, Scope::Thread(1), 0), SETCAP),
        ),
        permission(
            "machine",
            "all programs of a control group, or of the machine (--cgroup, --system)",
            status_of(open(Kind::MinorFaults, true, Scope::Machine, 0), SETCAP),
        ),
    ]
}

/// If each page fault of one process can be recorded.
pub fn permission_for(pid: i32) -> PermissionStatus {
    status_of(open(Kind::MinorFaults, false, Scope::Thread(pid), 0), SETCAP)
}

fn open(kind: Kind, in_kernel: bool, scope: Scope<'_>, cpu: u32) -> Result<Event, Errno> {
    let attributes = Attributes {
        kind,
        period: 1,
        callers: None,
        in_kernel,
        follows: false,
        in_children: true,
        starts_at_exec: false,
    };
    Event::open(&attributes, scope, cpu)
}

/// Maps one ring for each processor at the same time, like a recording.
fn map_rings() -> Result<Vec<Ring>, Errno> {
    let cpus = online_cpus().unwrap_or_default();
    cpus.iter()
        .map(|cpu| Ring::map(&open(Kind::MinorFaults, false, Scope::Thread(0), *cpu)?, RING))
        .collect()
}

fn tracepoints(all: impl IntoIterator<Item = (String, Role)>) -> PermissionStatus {
    let found =
        all.into_iter().try_for_each(|(name, role)| Source::tracepoint(&name, role).map(drop));
    found.err().unwrap_or(PermissionStatus::Available)
}
