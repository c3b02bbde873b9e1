//! The status of a permission, and the command that grants it.

use std::fmt;
use std::fs;

use cowslip_sys::Errno;
use cowslip_sys::capabilities::SETCAP;
use cowslip_sys::perf::{Refusal, TracepointError};
use cowslip_sys::process;

pub(super) const PERMIT_OWN: &str = "sysctl kernel.perf_event_paranoid=2";
pub(super) const PERMIT_KERNEL: &str = "sysctl kernel.perf_event_paranoid=1";
pub(super) const MOUNT_TRACEFS: &str = "mount -t tracefs tracefs /sys/kernel/tracing";
pub(super) const PERMIT_RINGS: &str = "sysctl kernel.perf_event_mlock_kb=16388";

/// The result of trying something here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PermissionStatus {
    /// It worked.
    Available,
    /// This kernel, or this build, cannot do it.
    Unsupported,
    /// The kernel supports it, but a privilege or a setting prevents it.
    Denied {
        /// The command that permits it, for root. `None` if only root may, outside of containers.
        fix: Option<&'static str>,
    },
    /// It failed for another reason.
    Unknown {
        /// The kernel's error number; 0 if its answer was not understood.
        errno: i32,
    },
}

impl PermissionStatus {
    /// The kernel refused it, and this command permits it: unless root has it refused by a filter, as in a container,
    /// which refuses the command too.
    pub(super) fn denied(fix: &'static str) -> Self {
        Self::Denied { fix: Some(fix).filter(|_| !is_filtered_root()) }
    }

    /// The way to permit it, if a privilege or a setting prevents it.
    pub fn advice(&self) -> Option<String> {
        match self {
            // Even root cannot read it until then.
            Self::Denied { fix: Some(MOUNT_TRACEFS) } => {
                Some(format!("after `{MOUNT_TRACEFS}` by root"))
            }
            Self::Denied { fix: None } => Some("as root, outside of containers".into()),
            Self::Denied { fix: Some(fix) } => Some(format!("as root, or after `{fix}`")),
            _ => None,
        }
    }

    /// The end of a sentence about missing events.
    pub(super) fn or_fix(self) -> String {
        match self {
            Self::Denied { fix: Some(MOUNT_TRACEFS) } => format!(": run `{MOUNT_TRACEFS}` as root"),
            Self::Denied { fix: None } => ": run as root, outside of containers".into(),
            Self::Denied { fix: Some(fix) } => format!(": run `{fix}`, or as root"),
            Self::Unsupported => ": this kernel cannot tell".into(),
            other => format!(": {other}"),
        }
    }
}

impl fmt::Display for PermissionStatus {
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

fn is_filtered_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut modes = status.lines().filter_map(|line| line.strip_prefix("Seccomp:"));
    process::effective_uid() == 0 && modes.any(|mode| mode.trim() == "2")
}

pub(super) fn status_of<T>(tried: Result<T, Errno>, fix: &'static str) -> PermissionStatus {
    match tried.map_err(refused) {
        Ok(_) => PermissionStatus::Available,
        Err(PermissionStatus::Denied { .. }) => PermissionStatus::denied(fix),
        Err(other) => other,
    }
}

pub(super) fn refused(errno: Errno) -> PermissionStatus {
    match Refusal::from_errno(errno) {
        Refusal::Denied => PermissionStatus::denied(SETCAP),
        Refusal::Unsupported => PermissionStatus::Unsupported,
        _ => PermissionStatus::Unknown { errno: errno.raw_os_error() },
    }
}

pub(super) fn unfound(error: TracepointError) -> PermissionStatus {
    match error {
        TracepointError::Absent => PermissionStatus::Unsupported,
        TracepointError::Unmounted => PermissionStatus::denied(MOUNT_TRACEFS),
        TracepointError::Denied => PermissionStatus::denied(SETCAP),
        TracepointError::Other(errno) => refused(errno),
        TracepointError::Strange => PermissionStatus::Unknown { errno: 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_not_told_to_be_root() {
        let unmounted = PermissionStatus::Denied { fix: Some(MOUNT_TRACEFS) };
        let advice = unmounted.advice().unwrap();
        assert_eq!(advice, "after `mount -t tracefs tracefs /sys/kernel/tracing` by root");
        let denied = PermissionStatus::Denied { fix: Some(SETCAP) };
        assert!(denied.advice().unwrap().starts_with("as root, or after `setcap "), "{denied:?}");
        let of_root = PermissionStatus::Denied { fix: None };
        assert_eq!(of_root.advice().unwrap(), "as root, outside of containers");
        assert_eq!(PermissionStatus::Available.advice(), None);
    }
}
