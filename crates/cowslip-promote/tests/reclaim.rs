#![allow(unsafe_code)]
//! Bloat that the kernel's reclaim gives back. The process is this one, in a control group of its own.
//!
//! The oracles are the memory that the group holds, the kernel's count of split huge pages, and every written byte.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use cowslip_promote::Settings;
use cowslip_promote::plan::{Plan, Rule, Who};
use cowslip_promote::session::{Notice, Operator, Session};
use cowslip_sys::memory::{self, Advice, Prot};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{process, procfs};

const REGIONS: usize = 32;

static ALONE: Mutex<()> = Mutex::new(());

/// A control group that this process is in until it is dropped.
struct Group {
    path: PathBuf,
    parent: PathBuf,
    is_v2: bool,
}

impl Group {
    fn enter() -> Option<Self> {
        let places = [
            ("/sys/fs/cgroup/memory", "memory.usage_in_bytes"),
            ("/sys/fs/cgroup", "memory.current"),
        ];
        for (parent, used) in places {
            let parent = PathBuf::from(parent);
            let path = parent.join(format!("cowslip-reclaim-{}", std::process::id()));
            if fs::create_dir(&path).is_err() {
                continue;
            }
            let group = Self { is_v2: used == "memory.current", path, parent };
            let enters = || fs::write(group.path.join("cgroup.procs"), "0").is_ok();
            if group.path.join(used).exists() && enters() {
                return Some(group);
            }
        }
        println!("SKIPPED: cgroup: none that counts memory can be made here");
        None
    }

    fn used_bytes(&self) -> u64 {
        let file = if self.is_v2 { "memory.current" } else { "memory.usage_in_bytes" };
        fs::read_to_string(self.path.join(file)).unwrap().trim().parse().unwrap()
    }

    /// True if the kernel can be asked to reclaim.
    fn is_reclaimed(&self) -> bool {
        self.is_v2 && self.path.join("memory.reclaim").exists()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.parent.join("cgroup.procs"), "0");
        let _ = fs::remove_dir(&self.path);
    }
}

/// The system's settings, put back when dropped.
struct Restored(procfs::Thp);

impl Restored {
    fn set(max_ptes_none: u32) -> Option<Self> {
        let before = procfs::Thp::read().ok()?;
        let ours = procfs::Thp { max_ptes_none, ..before.clone() };
        if !Path::new("/sys/kernel/mm/transparent_hugepage/shrink_underused").exists() {
            println!(
                "SKIPPED: shrinker: this kernel keeps zero pages of huge pages (before Linux 6.12)"
            );
            return None;
        }
        if before.enabled == procfs::Policy::Never || ours.write().is_err() {
            println!("SKIPPED: root: the settings of huge pages are root's, or none are given");
            return None;
        }
        Some(Self(before))
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        let _ = self.0.write();
    }
}

/// Huge pages with one written page each.
struct Sparse(VirtRange);

impl Sparse {
    fn new() -> Self {
        let range = memory::reserve(REGIONS * CHUNK_BYTES, CHUNK_BYTES).unwrap();
        // SAFETY: the range was reserved for this value, which alone uses it.
        unsafe {
            memory::map_anonymous(range, Prot::RW).unwrap();
            memory::advise(range, Advice::HugePage).unwrap();
        }
        let sparse = Self(range);
        // SAFETY: inside the mapping.
        (0..REGIONS).for_each(|region| unsafe { sparse.word(region, 3).write_volatile(7) });
        sparse
    }

    fn word(&self, region: usize, page: usize) -> *mut u64 {
        (self.0.start + region * CHUNK_BYTES + page * page_size_bytes()) as *mut u64
    }

    fn is_right(&self) -> bool {
        // SAFETY: inside the mapping.
        let is =
            |region, page, wanted| unsafe { self.word(region, page).read_volatile() == wanted };
        (0..REGIONS).all(|region| is(region, 3, 7) && is(region, 4, 0) && is(region, 511, 0))
    }
}

impl Drop for Sparse {
    fn drop(&mut self) {
        // SAFETY: the value's own memory.
        unsafe { memory::unmap(self.0) }.unwrap();
    }
}

/// Keeps the notices on reclaim.
struct Told(Arc<Mutex<Vec<String>>>);

impl Operator for Told {
    fn tell(&mut self, notice: &Notice<'_>) {
        if let Notice::NoReclaim(_, answer) = notice {
            self.0.lock().unwrap().push(format!("{}: {}", answer.answer.word(), answer.detail));
        }
    }

    fn write_metrics(&mut self, _: &Path, _: &str) -> io::Result<()> {
        Ok(())
    }
}

/// The kernel's count of huge pages that its shrinker has split.
fn underused() -> u64 {
    let text = fs::read_to_string("/proc/vmstat").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("thp_underused_split_page "));
    line.map_or(0, |count| count.parse().unwrap())
}

/// The result of looks until no huge page is sparse any more.
struct Done {
    splits: u64,
    stall_ns: u64,
    reclaims: u64,
    told: Vec<String>,
    by_kernel: u64,
    freed_bytes: u64,
}

fn promote(group: &Group, sparse: &Sparse, settings: Settings) -> Done {
    let told = Arc::new(Mutex::new(Vec::new()));
    let settings = Settings {
        stall_percent: 100.0,
        promotion_cpu_percent: 100.0,
        slow_ms: 10_000,
        ..settings
    };
    let plan =
        Plan { rules: vec![Rule::new(Who::Pid(process::pid()), 1)], settings, ..Plan::default() };
    let mut session = Session::start(plan, Box::new(Told(Arc::clone(&told)))).unwrap();
    let (before, by_kernel) = (group.used_bytes(), underused());
    for _ in 0..4 {
        let mut round = session.look(u64::MAX).unwrap();
        // Only the memory of the test: huge pages of the test's own heap may be sparse too.
        round.decisions.retain(|decision| sparse.0.contains(decision.address as usize));
        session.act(&mut round, |_, _| {}).unwrap();
    }
    assert!(sparse.is_right(), "no byte has changed");
    let tally = session.tally();
    let mine = tally.processes.values().next().unwrap();
    let told = told.lock().unwrap().clone();
    Done {
        splits: mine.splits,
        stall_ns: mine.stall_ns,
        reclaims: tally.reclaims,
        told,
        by_kernel: underused() - by_kernel,
        freed_bytes: before.saturating_sub(group.used_bytes()),
    }
}

fn reclaiming() -> Settings {
    Settings { reclaim_percent: 1.0, pressure_percent: 100.0, ..Settings::default() }
}

/// Nearly all of the memory but the written pages.
const MOST: u64 = (REGIONS * CHUNK_BYTES * 9 / 10) as u64;

#[test]
fn the_kernel_gives_the_bloat_of_a_group_back_in_a_step() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(group) = Group::enter() else { return };
    let Some(_restored) = Restored::set(409) else { return };
    let sparse = Sparse::new();
    let done = promote(&group, &sparse, reclaiming());
    assert!(done.freed_bytes > MOST, "{} of {MOST}", done.freed_bytes);
    assert_eq!(done.splits, REGIONS as u64);
    if group.is_reclaimed() {
        assert_eq!((done.told, done.stall_ns, done.reclaims), (Vec::new(), 0, 1));
        assert!(done.by_kernel >= REGIONS as u64);
    } else {
        assert_eq!((done.told.len(), done.reclaims, done.by_kernel), (1, 0, 0));
        assert!(done.told[0].starts_with("unsupported: ") && done.stall_ns > 0, "{:?}", done.told);
    }
}

/// With the kernel's default, its shrinker splits nothing.
#[test]
fn a_kernel_that_splits_nothing_is_no_obstacle() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(group) = Group::enter() else { return };
    let Some(_restored) = Restored::set(511) else { return };
    let sparse = Sparse::new();
    let done = promote(&group, &sparse, reclaiming());
    assert!(done.freed_bytes > MOST && done.stall_ns > 0, "{} of {MOST}", done.freed_bytes);
    assert_eq!((done.splits, done.by_kernel), (REGIONS as u64, 0));
    assert_eq!(done.reclaims, u64::from(group.is_reclaimed()));
}

#[test]
fn nothing_is_reclaimed_unless_asked_for() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(group) = Group::enter() else { return };
    let Some(_restored) = Restored::set(409) else { return };
    let sparse = Sparse::new();
    let done = promote(&group, &sparse, Settings::default());
    assert_eq!((done.splits, done.reclaims, done.by_kernel), (REGIONS as u64, 0, 0));
    assert!(done.told.is_empty() && done.freed_bytes > MOST);
}
