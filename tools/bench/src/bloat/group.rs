//! A control group that counts a process's memory, including memory that no page table shows any more.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::error::{Error, Result, during};

/// The last process of a group leaves it shortly after it was waited for.
const TRIES: u32 = 50;
const LOOK: Duration = Duration::from_millis(20);

const MEMBERS: &str = "cgroup.procs";
const V1_USAGE: &str = "memory.usage_in_bytes";

/// A control group, removed with this value.
#[derive(Debug)]
pub(super) struct Group {
    directory: PathBuf,
    usage: &'static str,
}

impl Group {
    /// Makes a group below this process's own.
    pub(super) fn new() -> Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Relaxed);
        let read = |path| fs::read_to_string(path).map_err(during(path));
        let found = locate(&read("/proc/self/cgroup")?, &read("/proc/self/mounts")?);
        let (parent, usage) = found.ok_or_else(|| {
            Error::Failed("no control group of this process counts memory".to_owned())
        })?;
        let directory = parent.join(format!("cowslip-bloat-{}-{number}", std::process::id()));
        let doing = format!("make the control group {}", directory.display());
        fs::create_dir(&directory).map_err(during(doing))?;
        Ok(Self { directory, usage })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn add(&self, pid: i32) -> Result<()> {
        fs::write(self.directory.join(MEMBERS), pid.to_string())
            .map_err(during("put a process into a control group"))
    }

    /// A command that runs `program`, and with it all that it starts, in the group.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]);
        command.arg(self.directory.join(MEMBERS)).arg(program);
        command
    }

    /// The ids of its processes.
    pub(super) fn pids(&self) -> Result<Vec<i32>> {
        let members = fs::read_to_string(self.directory.join(MEMBERS));
        let members = members.map_err(during("read the processes of a control group"))?;
        Ok(members.lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// Has the kernel reclaim what it can, as under memory pressure in this group alone, which also splits underused
    /// huge pages.
    pub(super) fn reclaim(&self) -> Result<()> {
        let (file, text) = match self.usage {
            V1_USAGE => ("memory.force_empty", "0".to_owned()),
            _ => ("memory.reclaim", self.bytes()?.to_string()),
        };
        let path = self.directory.join(file);
        match fs::write(&path, text) {
            // The kernel reclaimed less than all.
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ResourceBusy) =>
            {
                Ok(())
            }
            written => written.map_err(during(format_args!("write to {}", path.display()))),
        }
    }

    /// Memory that the group is charged with.
    pub(super) fn bytes(&self) -> Result<u64> {
        let path = self.directory.join(self.usage);
        let doing = path.display();
        let text = fs::read_to_string(&path).map_err(during(&doing))?;
        text.trim().parse().map_err(during(&doing))
    }

    /// The same without the page cache of files on disks, which the first of all groups to read them is charged with.
    pub(super) fn bytes_without_files(&self) -> Result<u64> {
        let in_memory = self.counter("shmem", "shmem")?;
        let cached = self.counter("cache", "file")?.saturating_sub(in_memory);
        Ok(self.bytes()?.saturating_sub(cached))
    }

    /// Anonymous memory on pages of 2 MiB.
    pub(super) fn huge_bytes(&self) -> Result<u64> {
        self.counter("rss_huge", "anon_thp")
    }

    /// A counter of `memory.stat`, by its name in either version.
    fn counter(&self, v1: &str, v2: &str) -> Result<u64> {
        let name = if self.usage == V1_USAGE { v1 } else { v2 };
        let path = self.directory.join("memory.stat");
        let text = fs::read_to_string(&path).map_err(during(path.display()))?;
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        let value = lines.find(|(key, _)| *key == name).and_then(|(_, value)| value.parse().ok());
        value.ok_or_else(|| Error::Failed(format!("{} has no number {name}", path.display())))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..TRIES {
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            thread::sleep(LOOK);
        }
    }
}

/// The directory of the group that counts memory, and the file that says how much, in either version.
fn locate(groups: &str, mounts: &str) -> Option<(PathBuf, &'static str)> {
    let mount = |is_it: &dyn Fn(&str, &str) -> bool| {
        mounts.lines().find_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            is_it(words.get(2)?, words.get(3)?).then(|| words[1].to_owned())
        })
    };
    let has_memory = |list: &str| list.split(',').any(|word| word == "memory");
    let v1 = groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        has_memory(controllers).then_some(path)
    });
    let (path, mount, usage) = match v1 {
        Some(path) => {
            let mount = mount(&|kind, options| kind == "cgroup" && has_memory(options))?;
            (path, mount, V1_USAGE)
        }
        None => {
            let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
            (path, mount(&|kind, _| kind == "cgroup2")?, "memory.current")
        }
    };
    Some((Path::new(&mount).join(path.trim_start_matches('/')), usage))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_both_versions_are_found() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let v1 = locate("9:cpu:/\n4:memory:/a/b\n0::/c\n", mounts);
        let wanted = (PathBuf::from("/sys/fs/cgroup/memory/a/b"), "memory.usage_in_bytes");
        assert_eq!(v1, Some(wanted));
        let v2 = locate("0::/c\n", mounts);
        assert_eq!(v2, Some((PathBuf::from("/sys/fs/cgroup/unified/c"), "memory.current")));
        assert_eq!(locate("", mounts), None);
    }
}
