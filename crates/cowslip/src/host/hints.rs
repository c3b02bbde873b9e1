//! Who is in the way, and which command takes him out of it.

use std::path::Path;

use super::outcome::Refusal;
use super::privileges::OwnProcess;

/// Lets any user have userfaultfd, until the next boot.
const ALLOW_USERFAULTFD: &str = "sysctl -w vm.unprivileged_userfaultfd=1";
/// Lets memfds have huge pages where a program asks for them, until the next boot.
pub(super) const ALLOW_SHMEM_HUGE: &str =
    "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled";
/// Lets anonymous memory have huge pages where a program asks for them, until the next boot.
pub(super) const ALLOW_ANONYMOUS_HUGE: &str =
    "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";

const DEVICE: &str = "/dev/userfaultfd";
const DOCKER_DEVICE: &str = "docker run --device /dev/userfaultfd …";

/// What the refusal of userfaultfd depends on besides this process.
#[derive(Clone, Copy, Debug)]
struct Surroundings {
    anybody_may: bool,
    has_device: bool,
}

impl Surroundings {
    fn look() -> Self {
        let setting = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
        Self {
            anybody_may: setting.is_ok_and(|it| it.trim() == "1"),
            has_device: Path::new(DEVICE).exists(),
        }
    }
}

/// Why `userfaultfd(2)` said `EPERM`.
pub(super) fn no_userfaultfd(own: &OwnProcess) -> Refusal {
    explain(own, Surroundings::look())
}

fn explain(own: &OwnProcess, around: Surroundings) -> Refusal {
    let detail = "neither the system call nor /dev/userfaultfd is permitted";
    if own.is_filtered && (own.effective_uid == 0 || own.may_trace || around.anybody_may) {
        let hint = "a seccomp filter refuses it, as Docker's default profile does: give the \
            container the device, or a profile that allows userfaultfd";
        return Refusal::denied(detail, hint).fix(DOCKER_DEVICE);
    }
    if around.anybody_may {
        let hint = "vm.unprivileged_userfaultfd is 1 and no seccomp filter is in force: a security \
            module must be in the way, see the kernel's log";
        return Refusal::denied(detail, hint);
    }
    let mut hint = if own.may_trace {
        "CAP_SYS_PTRACE counts only outside user namespaces".to_owned()
    } else {
        "it needs CAP_SYS_PTRACE, vm.unprivileged_userfaultfd=1 or /dev/userfaultfd".to_owned()
    };
    if around.has_device && !own.may_trace && own.effective_uid != 0 {
        let user = own.effective_uid;
        hint += &format!("; for this user alone: `setfacl -m u:{user}:rw {DEVICE}`");
    }
    if own.is_filtered {
        hint += "; the seccomp filter in force may refuse it too";
    }
    Refusal::denied(detail, hint).fix(ALLOW_USERFAULTFD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Capability, Need};

    fn hint_and_mend(own: &OwnProcess, around: Surroundings) -> (String, Option<String>) {
        let it = Capability::new("", Need::Full, "", Err(explain(own, around)));
        let crate::host::Answer::Denied { hint } = it.answer else { panic!("{it:?}") };
        (hint, it.fix)
    }

    #[test]
    fn the_advice_fits_who_asks() {
        let closed = Surroundings { anybody_may: false, has_device: true };
        let open = Surroundings { anybody_may: true, has_device: false };

        let nobody = OwnProcess { effective_uid: 65534, ..OwnProcess::default() };
        let (hint, fix) = hint_and_mend(&nobody, closed);
        assert!(hint.contains("setfacl -m u:65534:rw /dev/userfaultfd"), "{hint}");
        assert_eq!(fix.as_deref(), Some(ALLOW_USERFAULTFD));

        let docker_root = OwnProcess { is_filtered: true, ..OwnProcess::default() };
        let (hint, fix) = hint_and_mend(&docker_root, closed);
        assert!(hint.contains("Docker's default profile"), "{hint}");
        assert_eq!(fix.as_deref(), Some(DOCKER_DEVICE));

        let filtered_user = OwnProcess { is_filtered: true, ..nobody.clone() };
        assert_eq!(hint_and_mend(&filtered_user, closed).1.as_deref(), Some(ALLOW_USERFAULTFD));
        assert_eq!(hint_and_mend(&filtered_user, open).1.as_deref(), Some(DOCKER_DEVICE));

        let (hint, fix) = hint_and_mend(&nobody, open);
        assert!(hint.contains("security module"), "{hint}");
        assert_eq!(fix, None);
    }
}
