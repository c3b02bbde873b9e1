//! The status of a permission, and the command that grants it.

use std::fmt;

use cowslip_sys::Errno;
use cowslip_sys::capabilities::SETCAP;
use cowslip_sys::perf::{Refusal, TracepointError};

pub(super) const PERMIT_OWN: &str = "sysctl kernel.perf_event_paranoid=2";
pub(super) const PERMIT_KERNEL: &str = "sysctl kernel.perf_event_paranoid=1";
pub(super) const MOUNT_TRACEFS: &str = "mount -t tracefs tracefs /sys/kernel/tracing";
pub(super) const PERMIT_RINGS: &str = "sysctl kernel.perf_event_mlock_kb=16388";

/// Root may, if neither a container nor lockdown prevents it.
pub(super) const AS_ROOT: &str = "sudo";

/// The result of trying something here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PermissionStatus {
    /// It worked.
    Available,
    /// This kernel, or this build, cannot do it.
    Unsupported,
    /// The kernel supports it, but a privilege or a setting prevents it.
    Denied {
        /// The command that permits it, for root.
        fix: &'static str,
    },
    /// It failed for another reason.
    Unknown {
        /// The kernel's error number; 0 if its answer was not understood.
        errno: i32,
    },
}

impl PermissionStatus {
    /// The way to permit it, if a privilege or a setting prevents it.
    pub fn advice(&self) -> Option<String> {
        match self {
            // Even root cannot read it until then.
            Self::Denied { fix: MOUNT_TRACEFS } => Some(format!("after `{MOUNT_TRACEFS}` by root")),
            Self::Denied { fix: AS_ROOT } => Some("as root, outside of containers".into()),
            Self::Denied { fix } => Some(format!("as root, or after `{fix}`")),
            _ => None,
        }
    }

    /// The end of a sentence about missing events.
    pub(super) fn or_fix(self) -> String {
        match self {
            Self::Denied { fix: MOUNT_TRACEFS } => format!(": run `{MOUNT_TRACEFS}` as root"),
            Self::Denied { fix: AS_ROOT } => ": run as root, outside of containers".into(),
            Self::Denied { fix } => format!(": run `{fix}`, or as root"),
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

pub(super) fn status_of<T>(tried: Result<T, Errno>, fix: &'static str) -> PermissionStatus {
    match tried.map_err(refused) {
        Ok(_) => PermissionStatus::Available,
        Err(PermissionStatus::Denied { .. }) => PermissionStatus::Denied { fix },
        Err(other) => other,
    }
}

pub(super) fn refused(errno: Errno) -> PermissionStatus {
    match Refusal::of(errno) {
        Refusal::Denied => PermissionStatus::Denied { fix: SETCAP },
        Refusal::Unsupported => PermissionStatus::Unsupported,
        _ => PermissionStatus::Unknown { errno: errno.raw_os_error() },
    }
}

pub(super) fn unfound(error: TracepointError) -> PermissionStatus {
    match error {
        TracepointError::Absent => PermissionStatus::Unsupported,
        TracepointError::Unmounted => PermissionStatus::Denied { fix: MOUNT_TRACEFS },
        TracepointError::Denied => PermissionStatus::Denied { fix: SETCAP },
        TracepointError::Other(errno) => refused(errno),
        TracepointError::Strange => PermissionStatus::Unknown { errno: 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_not_told_to_be_root() {
        let unmounted = unfound(TracepointError::Unmounted);
        let advice = unmounted.advice().unwrap();
        assert_eq!(advice, "after `mount -t tracefs tracefs /sys/kernel/tracing` by root");
        let denied = unfound(TracepointError::Denied);
        assert!(denied.advice().unwrap().starts_with("as root, or after `setcap "), "{denied:?}");
        assert_eq!(PermissionStatus::Available.advice(), None);
    }
}
