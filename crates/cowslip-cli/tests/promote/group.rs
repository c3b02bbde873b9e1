//! A control group that limits memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::support::Folder;
use crate::target::PATIENCE;

/// Removed with this value, once its last program has ended.
pub(crate) struct Group(pub(crate) PathBuf);

impl Group {
    /// Makes a group of version 1 or 2, named like the folder; `None`, reported as skipped, where that is not possible.
    pub(crate) fn new(folder: &Folder, limit: &str) -> Option<Self> {
        let name = folder.0.file_name().unwrap();
        let places =
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        for (parent, file) in places {
            let path = PathBuf::from(parent).join(name);
            if fs::create_dir(&path).is_err() {
                continue;
            }
            let group = Self(path);
            if fs::write(group.0.join(file), limit).is_ok() {
                return Some(group);
            }
        }
        println!("SKIPPED: cgroup: none that limits memory can be made here");
        None
    }

    /// A part of it without a limit of its own.
    pub(crate) fn below(&self) -> Self {
        let path = self.0.join("below");
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Has the kernel reclaim the group's memory.
    pub(crate) fn reclaim(&self) {
        // Version 2 fails with EAGAIN once there is no more.
        let asked = [("memory.force_empty", "0"), ("memory.reclaim", "1G")];
        let taken = asked.iter().find(|(file, _)| self.0.join(file).exists());
        let (file, text) = taken.expect("one of both");
        let _ = fs::write(self.0.join(file), text);
    }

    /// Has a shell run the script in the group, with these arguments as `$2` and so on.
    pub(crate) fn shell(&self, script: &str, arguments: &[&Path]) -> Command {
        let mut command = Command::new("sh");
        let script = format!("echo $$ > \"$1/cgroup.procs\" && {script}");
        command.args(["-c", &script, "sh"]).arg(&self.0).args(arguments);
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            std::thread::yield_now();
        }
    }
}
