//! The privileges and the memory of this process, from `/proc/self`.

use std::fs;

use cowslip_sys::procfs::{self, MappingUse};
use cowslip_sys::units::VirtRange;

const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_ADMIN: u32 = 21;

/// From `/proc/self/status`, see `proc_pid_status(5)`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct OwnProcess {
    pub(super) effective_uid: u32,
    /// `CAP_SYS_PTRACE`, in any user namespace.
    pub(super) may_trace: bool,
    /// `CAP_SYS_ADMIN`, in any user namespace.
    pub(super) may_administer: bool,
    /// A seccomp filter is in force.
    pub(super) is_filtered: bool,
    /// `None` if the kernel does not report it (it does since 5.0).
    pub(super) huge_pages_enabled: Option<bool>,
}

impl OwnProcess {
    pub(super) fn look() -> Self {
        fs::read_to_string("/proc/self/status")
            .map_or_else(|_| Self::default(), |text| parse(&text))
    }
}

fn parse(status: &str) -> OwnProcess {
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    let effective_uid = field("Uid").and_then(|ids| ids.split_whitespace().nth(1)?.parse().ok());
    let capabilities = field("CapEff").and_then(|mask| u64::from_str_radix(mask, 16).ok());
    let may = |capability: u32| capabilities.unwrap_or(0) >> capability & 1 == 1;
    OwnProcess {
        effective_uid: effective_uid.unwrap_or(u32::MAX),
        may_trace: may(CAP_SYS_PTRACE),
        may_administer: may(CAP_SYS_ADMIN),
        is_filtered: field("Seccomp") == Some("2"),
        huge_pages_enabled: field("THP_enabled").map(|word| word == "1"),
    }
}

/// The use of `range`, summed over the mappings inside it; zero where the kernel does not report
/// it.
pub(super) fn usage_of(range: VirtRange) -> MappingUse {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    procfs::usage_of(&smaps, |mapping| range.covers(mapping.range))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_of_a_root_shell_and_of_a_container() {
        let root =
            parse("Uid:\t0\t0\t0\t0\nTHP_enabled:\t1\nCapEff:\t000001fffeffffff\nSeccomp:\t0\n");
        assert!(root.may_trace && root.may_administer && !root.is_filtered);
        assert_eq!(root.huge_pages_enabled, Some(true));
        let docker = parse("Uid:\t1000\t0\t0\t0\nCapEff:\t00000000a80425fb\nSeccomp:\t2\n");
        assert!(!docker.may_trace && !docker.may_administer && docker.is_filtered);
        assert_eq!((docker.effective_uid, docker.huge_pages_enabled), (0, None));
    }
}
