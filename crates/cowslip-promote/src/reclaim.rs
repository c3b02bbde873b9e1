//! The kernel's own way to give bloat back: reclaim of a control group (`memory.reclaim`).
//!
//! Since Linux 6.12 it splits huge pages with more zero pages than `khugepaged/max_ptes_none`, unless that is 511. One
//! write for a whole group takes the place of a split for each page. The number of bytes asked for does not bound what
//! comes back, but it bounds the file pages that are dropped.

use cowslip::host::Answer;
use cowslip_sys::cgroup::Group;
use cowslip_sys::{self as sys, Errno};

use crate::model::Settings;

/// The answer to a request for reclaim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReclaimAnswer {
    /// The answer.
    pub answer: Answer,
    /// The reason, for people.
    pub detail: &'static str,
}

/// One step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Memory may have come back.
    Taken,
    /// Tasks of the group wait for memory: nothing was asked for.
    Braked,
    /// The kernel does not do it here.
    Refused(ReclaimAnswer),
}

/// Has the kernel reclaim a step of the group's memory, unless tasks in it wait for memory.
pub(crate) fn step(group: &Group, settings: &Settings) -> Step {
    if group.pressure_percent() >= settings.pressure_percent {
        return Step::Braked;
    }
    let used_bytes = group.used_bytes().unwrap_or(0);
    let bytes = (used_bytes as f64 * settings.reclaim_percent / 100.0) as u64;
    match group.reclaim(bytes) {
        Ok(()) => Step::Taken,
        Err(errno) => Step::Refused(refusal(group, errno)),
    }
}

fn refusal(group: &Group, errno: sys::Errno) -> ReclaimAnswer {
    let (answer, detail) = match errno {
        Errno::NOENT => (
            Answer::Unsupported,
            "no memory.reclaim: control groups version 1, or Linux before 5.19",
        ),
        Errno::INVAL => (Answer::Unsupported, "memory.reclaim might swap (before Linux 6.11)"),
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            let file = group.directory().join("memory.reclaim");
            let hint = format!(
                "`chown USER {}`, and no ProtectControlGroups= in the unit",
                file.display()
            );
            (Answer::Denied { hint }, "memory.reclaim cannot be written")
        }
        errno => (Answer::Unknown { errno: errno.raw_os_error() }, "memory.reclaim failed"),
    };
    ReclaimAnswer { answer, detail }
}

/// The answer after reclaim that split nothing.
pub(crate) fn fruitless() -> ReclaimAnswer {
    let detail = "the kernel split nothing: khugepaged/max_ptes_none is 511, or Linux is older than 6.12, or the group \
                  has many file pages";
    ReclaimAnswer { answer: Answer::Unsupported, detail }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use cowslip_sys::cgroup::locate;

    use super::*;

    /// A folder of files like a group's, removed with the value.
    struct Files(PathBuf);

    impl Files {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("cowslip-reclaim-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("memory.current"), "104857600\n").unwrap();
            Self(path)
        }

        fn group(&self) -> Group {
            let mounts = format!("9 1 0:9 / {} rw - cgroup2 none rw\n", self.0.display());
            locate("0::/\n", &mounts).unwrap()
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_step_is_a_part_of_the_memory_and_waits_while_tasks_do() {
        let files = Files::new("step");
        let (reclaim, pressure) = (files.0.join("memory.reclaim"), files.0.join("memory.pressure"));
        let settings = Settings { reclaim_percent: 1.0, ..Settings::default() };
        fs::write(&reclaim, "").unwrap();
        fs::write(&pressure, "some avg10=10.00 avg60=0 avg300=0 total=7\n").unwrap();
        assert_eq!(step(&files.group(), &settings), Step::Braked);
        assert_eq!(fs::read_to_string(&reclaim).unwrap(), "", "it was not asked");
        fs::write(&pressure, "some avg10=9.90 avg60=0 avg300=0 total=7\n").unwrap();
        assert_eq!(step(&files.group(), &settings), Step::Taken);
        assert_eq!(fs::read_to_string(&reclaim).unwrap(), "1048576 swappiness=0");
    }

    #[test]
    fn a_group_without_the_file_has_an_answer() {
        let files = Files::new("missing");
        let settings = Settings { reclaim_percent: 1.0, ..Settings::default() };
        let Step::Refused(refused) = step(&files.group(), &settings) else { panic!("no file") };
        assert!(refused.answer == Answer::Unsupported && refused.detail.contains("version 1"));
        assert!(!files.0.join("memory.reclaim").exists());
        let denied = refusal(&files.group(), Errno::ROFS);
        assert!(matches!(denied.answer, Answer::Denied { hint } if hint.contains("chown")));
        assert_eq!(refusal(&files.group(), Errno::NODEV).answer, Answer::Unknown { errno: 19 });
    }
}
