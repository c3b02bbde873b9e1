//! Finds the obstacle in the way, and the command that removes it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::outcome::Refusal;
use super::privileges::OwnProcess;

/// Allows userfaultfd for any user, until the next boot.
const ALLOW_USERFAULTFD: &str = "sysctl -w vm.unprivileged_userfaultfd=1";
/// Gives memfds huge pages where a program asks for them, until the next boot.
const ALLOW_SHMEM_HUGE: &str = "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled";
/// Lets anonymous memory have huge pages where a program asks for them, until the next boot.
pub(super) const ALLOW_ANONYMOUS_HUGE: &str =
    "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";

const DEVICE: &str = "/dev/userfaultfd";
const DOCKER_DEVICE: &str =
    "docker run --device /dev/userfaultfd --group-add $(stat -c %g /dev/userfaultfd) IMAGE";
/// Directories where `sudo` finds a command by its name.
const COMMANDS: [&str; 3] = ["/usr/bin", "/usr/local/bin", "/bin"];

/// The command that prepares the machine for this user's programs.
fn set_up(uid: u32) -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let is_found = program
        .parent()
        .is_some_and(|folder| COMMANDS.iter().any(|found| folder == Path::new(found)));
    let is_ours = program.file_name().is_some_and(|name| name == "cowslip");
    let command = if is_ours && !is_found { program.as_path() } else { Path::new("cowslip") };
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    });
    format!("sudo {} setup --user {}", command.display(), name.unwrap_or("$(id -un)"))
}

/// The command that gives memfds huge pages where a program asks for them.
pub(super) fn allow_shmem_huge() -> String {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if is_read_only("/sys", &mounts) {
        return format!(
            "{ALLOW_SHMEM_HUGE}    # outside of this container, whose /sys is read-only"
        );
    }
    match cowslip_sys::process::effective_uid() {
        // An administrator ruled them out: setup does not override that.
        uid if uid != 0 && cowslip_sys::procfs::shmem_setting().as_deref() != Some("deny") => {
            set_up(uid)
        }
        _ => ALLOW_SHMEM_HUGE.to_owned(),
    }
}

/// Reads the options of the last mount at `folder` (`proc_pid_mountinfo(5)`).
fn is_read_only(folder: &str, mountinfo: &str) -> bool {
    let mut at_folder = mountinfo.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(4);
        (fields.next()? == folder).then(|| fields.next())?
    });
    at_folder.next_back().is_some_and(|options| options.split(',').any(|option| option == "ro"))
}

/// The circumstances, besides this process, on which access to userfaultfd depends.
#[derive(Clone, Copy, Debug)]
struct Surroundings {
    anybody_may: bool,
    has_device: bool,
    /// A group other than root's may open the device.
    is_a_groups: bool,
}

impl Surroundings {
    fn look() -> Self {
        let setting = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
        let device = std::fs::metadata(DEVICE).ok();
        Self {
            anybody_may: setting.is_ok_and(|text| text.trim() == "1"),
            has_device: device.is_some(),
            is_a_groups: device.is_some_and(|file| file.gid() != 0 && file.mode() & 0o060 == 0o060),
        }
    }
}

/// Explains why `userfaultfd(2)` failed with `EPERM`.
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
    let by_group = around.has_device && !own.may_trace && own.effective_uid != 0;
    if by_group && around.is_a_groups {
        hint += &format!(
            "; a group may open {DEVICE}, and who joined it in this session needs `newgrp`"
        );
    }
    if own.is_filtered {
        hint += "; the seccomp filter in force may refuse it too";
    }
    let fix = if by_group { set_up(own.effective_uid) } else { ALLOW_USERFAULTFD.to_owned() };
    Refusal::denied(detail, hint).fix(fix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Capability, Need};

    fn hint_and_fix(own: &OwnProcess, around: Surroundings) -> (String, Option<String>) {
        let capability = Capability::new("", Need::Full, "", Err(explain(own, around)));
        let crate::host::Answer::Denied { hint } = capability.answer else {
            panic!("{capability:?}")
        };
        (hint, capability.fix)
    }

    #[test]
    fn a_read_only_sys_is_known_by_its_last_mount() {
        let writable = "24 1 0:22 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n";
        let read_only = "30 1 0:22 / /sys ro,nosuid - sysfs sysfs rw\n";
        assert!(!is_read_only("/sys", writable) && is_read_only("/sys", read_only));
        assert!(is_read_only("/sys", &[writable, read_only].concat()));
        assert!(!is_read_only("/sys", &[read_only, writable].concat()));
        assert!(!is_read_only("/sys", "31 1 0:22 / /sys/fs ro - sysfs sysfs rw\n"));
    }

    #[test]
    fn the_advice_fits_who_asks() {
        let closed = Surroundings { anybody_may: false, has_device: true, is_a_groups: false };
        let open = Surroundings { anybody_may: true, has_device: false, is_a_groups: false };
        let without_device = Surroundings { has_device: false, ..closed };
        let of_a_group = Surroundings { is_a_groups: true, ..closed };

        let nobody = OwnProcess { effective_uid: 65534, ..OwnProcess::default() };
        let (hint, fix) = hint_and_fix(&nobody, closed);
        assert!(!hint.contains("newgrp"), "{hint}");
        assert_eq!(fix.as_deref(), Some("sudo cowslip setup --user nobody"));
        assert!(hint_and_fix(&nobody, of_a_group).0.contains("newgrp"));
        assert_eq!(hint_and_fix(&nobody, without_device).1.as_deref(), Some(ALLOW_USERFAULTFD));
        let nameless = OwnProcess { effective_uid: 4_000_000_000, ..OwnProcess::default() };
        let (_, fix) = hint_and_fix(&nameless, closed);
        assert_eq!(fix.as_deref(), Some("sudo cowslip setup --user $(id -un)"));
        let root = OwnProcess::default();
        assert_eq!(hint_and_fix(&root, closed).1.as_deref(), Some(ALLOW_USERFAULTFD));

        let docker_root = OwnProcess { is_filtered: true, ..OwnProcess::default() };
        let (hint, fix) = hint_and_fix(&docker_root, closed);
        assert!(hint.contains("Docker's default profile"), "{hint}");
        assert_eq!(fix.as_deref(), Some(DOCKER_DEVICE));

        let filtered_user = OwnProcess { is_filtered: true, ..nobody.clone() };
        assert!(hint_and_fix(&filtered_user, closed).1.is_some_and(|fix| fix.starts_with("sudo ")));
        assert_eq!(hint_and_fix(&filtered_user, open).1.as_deref(), Some(DOCKER_DEVICE));

        let (hint, fix) = hint_and_fix(&nobody, open);
        assert!(hint.contains("security module"), "{hint}");
        assert_eq!(fix, None);
    }
}
