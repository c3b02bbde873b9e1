//! A program with little of a processor is held as one with all of it.

mod support;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cowslip_process::look;
use support::python;

/// A group of processes that get a millisecond of a processor in each second (`cgroups(7)`, version 1 or 2). It is removed with
/// this value, once it is empty.
struct SlowGroup(PathBuf);

impl SlowGroup {
    fn create() -> Option<Self> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let v1 = groups.lines().find_map(|line| line.split_once(":cpu:"));
        let root = match v1 {
            Some((_, path)) => Path::new("/sys/fs/cgroup/cpu").join(path.trim_start_matches('/')),
            None => PathBuf::from("/sys/fs/cgroup"),
        };
        let group = Self(root.join(format!("cowslip-slow-{}", std::process::id())));
        std::fs::create_dir(&group.0).ok()?;
        group.set(1000).ok()?;
        Some(group)
    }

    /// Gives its processes this much of a processor in each second.
    fn set(&self, us: u32) -> std::io::Result<()> {
        match self.0.join("cpu.max") {
            v2 if v2.exists() => std::fs::write(v2, format!("{us} 1000000")),
            _ => std::fs::write(self.0.join("cpu.cfs_period_us"), "1000000")
                .and_then(|()| std::fs::write(self.0.join("cpu.cfs_quota_us"), us.to_string())),
        }
    }
}

impl Drop for SlowGroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Eight processes take turns of milliseconds in a group that has one each second. Some seconds later it has more.
#[test]
fn a_program_that_waits_for_its_processor_for_seconds_is_held() {
    let Some(group) = SlowGroup::create() else {
        println!("SKIPPED: cgroup: no group of processors can be made here");
        return;
    };
    let mut programs = Vec::new();
    for _ in 0..8 {
        let Some(mut command) = python("print('ready', flush=True)\nwhile True: pass") else {
            return;
        };
        let mut child = command.spawn().unwrap();
        child.stdout.take().unwrap().read_exact(&mut [0; 6]).unwrap();
        std::fs::write(group.0.join("cgroup.procs"), child.id().to_string()).unwrap();
        programs.push(child);
    }
    let pid = programs[0].id().cast_signed();
    let is_traced = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        !status.contains("TracerPid:\t0\n")
    };
    let held = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_traced() {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_secs(4));
            group.set(1_000_000).unwrap();
        });
        look(pid).unwrap().hold().map(drop)
    });
    for mut program in programs {
        program.kill().unwrap();
        program.wait().unwrap();
    }
    held.unwrap();
}
