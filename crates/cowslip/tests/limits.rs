//! Limits that are reached while an arena is frozen: a control group's of memory, and the kernel's of mappings.
//!
//! Each case runs in a process of its own (this test binary again), which joins a group made for it.

mod support;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::Ordering::Relaxed;

use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip::{Arena, Prot};
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

const MAPPINGS: &str = "COWSLIP_TEST_MAPPINGS";

/// Pages of alternating protection, so that each is a mapping, after a part that is joined again.
struct Mappings {
    next: usize,
}

#[allow(unsafe_code)]
impl Mappings {
    /// Makes the kernel's last ones. None is left but the few that it keeps for a split.
    fn all_that_are_left() -> Self {
        let limit: usize =
            fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
        let len = (limit + 2) * page_size_bytes();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at no given address.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, 0, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let mut all = Self { next: start as usize + page_size_bytes() };
        let first = all.next;
        while all.protect(libc::PROT_READ) {
            all.next += 2 * page_size_bytes();
        }
        assert!(all.next < start as usize + len, "the limit was not reached");
        Self { next: first }
    }

    fn protect(&mut self, prot: libc::c_int) -> bool {
        // SAFETY: a page of this value's mapping, which holds nothing.
        unsafe { libc::mprotect(self.next as *mut libc::c_void, page_size_bytes(), prot) == 0 }
    }

    /// Gives two of them back.
    fn join_one(&mut self) {
        assert!(self.protect(libc::PROT_NONE));
        self.next += 2 * page_size_bytes();
    }
}

#[test]
fn near_the_limit_of_mappings_an_arena_goes_back_or_stays() {
    let case = "inside_roll_backs_near_the_limit_of_mappings";
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", case, "--nocapture", "--test-threads=1"]).env(MAPPINGS, "1");
    assert!(command.status().unwrap().success());
}

#[test]
#[allow(unsafe_code)]
fn inside_roll_backs_near_the_limit_of_mappings() {
    if std::env::var_os(MAPPINGS).is_none() {
        return;
    }
    let _watchdog = Watchdog::start("roll backs near the limit of mappings");
    const CHUNKS: usize = 16;
    let arena = Arena::new(ByteCount::mib(64)).unwrap();
    let mut words = arena.slice::<u64>(CHUNKS * CHUNK_BYTES / 8).unwrap();
    let range = VirtRange::new(words.as_ptr() as usize, CHUNKS * CHUNK_BYTES);
    let protect = |chunk: usize, prot| {
        let chunk = VirtRange::new(range.start + chunk * CHUNK_BYTES, CHUNK_BYTES);
        // SAFETY: no reference into it is used before it can be written again.
        unsafe { arena.protect(chunk, prot) }.unwrap();
    };
    words.fill(1);
    (0..CHUNKS).step_by(2).for_each(|chunk| protect(chunk, Prot::READ));
    let Ok(view) = arena.freeze() else {
        return skip("userfaultfd", "no view");
    };
    // From here on the kernel joins neighbours of one protection to one mapping, as none is written.
    // SAFETY: this thread alone uses the arena.
    let roll_back = || unsafe { arena.raw().roll_back_handed_out(&view) };
    roll_back().unwrap();
    let mut mappings = Mappings::all_that_are_left();
    let (mut back, mut refused) = (0, 0);
    for _ in 0..100 {
        (0..CHUNKS).step_by(2).for_each(|chunk| protect(chunk, Prot::RW));
        match roll_back() {
            Ok(()) => back += 1,
            Err(_) => refused += 1,
        }
        assert!(words.iter().all(|&word| word == 1));
        mappings.join_one();
    }
    assert!(back > 0 && refused > 0, "{back} went back, {refused} were refused");
}
