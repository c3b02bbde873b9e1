//! A control group's memory limit, reached while an arena is frozen.
//!
//! Each case runs in a process of its own (this test binary again), which joins a group made for it.

mod support;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::Ordering::Relaxed;

use cowslip::Arena;
use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};
use support::{Counters, PATIENCE, Watchdog, eventually, fork_child, skip};

const GROUP: &str = "COWSLIP_TEST_GROUP";
const SIGKILL: i32 = 9;

/// A memory group of `cgroups(7)`, version 1 or 2, removed with this value.
struct Group(PathBuf);

impl Group {
    fn create(name: &str) -> Option<Self> {
        let name = format!("cowslip-{name}-{}", std::process::id());
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let v1 = groups.lines().find_map(|line| line.split_once(":memory:"));
        let folder = match v1 {
            Some((_, path)) => {
                Path::new("/sys/fs/cgroup/memory").join(path.trim_start_matches('/'))
            }
            None => {
                let delegated = fs::read_to_string("/sys/fs/cgroup/cgroup.subtree_control").ok()?;
                delegated.contains("memory").then(|| PathBuf::from("/sys/fs/cgroup"))?
            }
        };
        let folder = folder.join(name);
        fs::create_dir(&folder).ok()?;
        Some(Self(folder))
    }

    /// Runs the case `name` of this binary in the group.
    fn run(&self, name: &str) -> ExitStatus {
        let this = std::env::current_exe().unwrap();
        let mut case = Command::new(this);
        case.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(GROUP, &self.0);
        case.status().unwrap()
    }

    /// True if no process is left in it, so that it can be removed.
    fn is_empty(&self) -> bool {
        fs::read_to_string(self.0.join("cgroup.procs")).is_ok_and(|pids| pids.trim().is_empty())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// The group that this process was started to join.
fn join() -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os(GROUP)?);
    fs::write(folder.join("cgroup.procs"), std::process::id().to_string()).unwrap();
    Some(folder)
}

/// Raises the limit to this much above the group's present memory.
fn allow_more(folder: &Path, more: ByteCount) {
    let (limit, used) = match folder.join("memory.max").exists() {
        true => ("memory.max", "memory.current"),
        false => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    };
    let used: u64 = fs::read_to_string(folder.join(used)).unwrap().trim().parse().unwrap();
    fs::write(folder.join(limit), (used + more.0).to_string()).unwrap();
}

fn filled(arena: &Arena) -> Counters {
    let counters = Counters::new(arena, ByteCount::mib(64));
    (0..counters.len()).for_each(|i| counters.at(i).store(i as u64, Relaxed));
    counters
}

#[test]
fn a_thaw_needs_no_memory_that_the_limit_does_not_give() {
    let Some(group) = Group::create("thaw") else {
        return skip("cgroup", "no memory group can be made here");
    };
    let status = group.run("inside_a_thaw_at_the_limit");
    assert!(status.success(), "{status}");
}

#[test]
fn inside_a_thaw_at_the_limit() {
    let Some(folder) = join() else { return };
    let _watchdog = Watchdog::start("a thaw at the limit");
    let arena = Arena::new(ByteCount::mib(128)).unwrap();
    let counters = filled(&arena);
    let view = arena.freeze().unwrap();
    // The copies stay where they are: a chunk that is being moved while the limit is set would need more.
    arena.raw().pause_thaw();
    let step = page_size_bytes() / 8 * 7;
    let dropped = VirtRange::new(counters.slice().range().start + 4 * CHUNK_BYTES, CHUNK_BYTES);
    (0..counters.len()).step_by(step).for_each(|i| counters.at(i).store(1, Relaxed));
    #[allow(unsafe_code)]
    // SAFETY: the counters are atomics, and any content is valid for them.
    unsafe { arena.discard(dropped) }.unwrap();
    let wanted = counters.sum();
    allow_more(&folder, ByteCount::mib(1));
    drop(view);
    arena.raw().resume_thaw();
    if arena.raw().start_service() {
        assert!(arena.wait_live(PATIENCE), "{:?}", arena.metrics());
    }
    assert_eq!(counters.sum(), wanted);
}

#[test]
fn near_the_limit_copies_do_not_linger_after_a_child() {
    let Some(group) = Group::create("linger") else {
        return skip("cgroup", "no memory group can be made here");
    };
    let status = group.run("inside_forks_near_the_limit");
    assert!(status.success(), "{status}");
}

/// The memory that native forks would need, 64 MiB and 24 MiB of copies, and the writes of the milliseconds until a
/// child's end is seen. Copies that linger would take 64 MiB.
#[test]
fn inside_forks_near_the_limit() {
    let Some(folder) = join() else { return };
    let _watchdog = Watchdog::start("forks near the limit");
    let arena = Arena::new(ByteCount::mib(128)).unwrap();
    if !arena.raw().start_service() {
        return skip("userfaultfd", "what nothing thaws keeps its copies");
    }
    let counters = filled(&arena);
    allow_more(&folder, ByteCount::mib(24 + 20));
    let write = |counters: std::ops::Range<usize>, at: &Counters| {
        counters.step_by(page_size_bytes() / 8).for_each(|i| _ = at.at(i).fetch_add(1, Relaxed));
    };
    let part = counters.len() / 64 * 24;
    for _ in 0..4 {
        let child = fork_child(&[&arena], || {
            std::thread::sleep(std::time::Duration::from_millis(60));
            true
        });
        write(0..part, &counters);
        assert_eq!(support::status_of(child.unwrap()), 0);
        write(part..counters.len(), &counters);
    }
    let first = page_size_bytes() / 8 * 5;
    assert_eq!(counters.at(first).load(Relaxed), first as u64 + 4);
}

#[test]
fn who_exceeds_the_limit_while_frozen_is_killed_and_leaves_nobody_behind() {
    let Some(group) = Group::create("copies") else {
        return skip("cgroup", "no memory group can be made here");
    };
    let status = group.run("inside_copies_beyond_the_limit");
    // The kernel chooses: the parent, or the child, which leaves the copies to the parent.
    assert!(status.success() || status.signal() == Some(SIGKILL), "{status}");
    eventually("the group is empty", || group.is_empty());
}

#[test]
fn inside_copies_beyond_the_limit() {
    let Some(folder) = join() else { return };
    let _watchdog = Watchdog::start("copies beyond the limit");
    let arena = Arena::new(ByteCount::mib(128)).unwrap();
    let counters = filled(&arena);
    let parent = cowslip_sys::process::pid();
    let child = fork_child(&[&arena], || {
        // Reads until its parent ends, for any reason.
        while cowslip_sys::process::parent_pid() == parent {
            std::thread::yield_now();
        }
        true
    });
    assert!(child.unwrap() > 0);
    allow_more(&folder, ByteCount::mib(8));
    (0..counters.len()).for_each(|i| counters.at(i).store(i as u64 + 1, Relaxed));
    let wanted: u64 = (1..=counters.len() as u64).sum();
    assert_eq!(counters.sum(), wanted, "the survivor has what it wrote");
}
