//! Shared parts of the tests: oracles that ask the kernel, and writers that never stop.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

pub mod children;
pub mod images;
pub mod world;

use std::io::Write as _;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cowslip::units::{ByteCount, VirtRange};
use cowslip::{Arena, ArenaSlice, Fork};

/// Long enough for anything that works.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Sum of a field of `/proc/self/smaps`, in bytes, over the mappings inside `range`.
pub fn smaps_bytes(range: VirtRange, field: &str) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
    let mut inside = false;
    let mut total = 0;
    for line in smaps.lines() {
        let first = line.split_whitespace().next().unwrap_or("");
        if let Some((start, end)) = first.split_once('-') {
            let start = usize::from_str_radix(start, 16).expect("an address");
            let end = usize::from_str_radix(end, 16).expect("an address");
            inside = range.covers(VirtRange::between(start, end));
        } else if inside && first.trim_end_matches(':') == field {
            let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().expect("kB");
            total += kib << 10;
        }
    }
    total
}

/// The number of mappings inside `range` with one of these flags (`VmFlags` of
/// `proc_pid_smaps(5)`).
pub fn smaps_flags(range: VirtRange, wanted: &[&str]) -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
    let mut inside = false;
    let mut found = 0;
    for line in smaps.lines() {
        let mut fields = line.split_whitespace();
        let first = fields.next().unwrap_or("");
        if let Some((start, end)) = first.split_once('-') {
            let address = |text| usize::from_str_radix(text, 16).expect("an address");
            inside = range.covers(VirtRange::between(address(start), address(end)));
        } else if inside && first == "VmFlags:" {
            found += usize::from(fields.any(|flag| wanted.contains(&flag)));
        }
    }
    found
}

/// Bytes of `range` that are mapped by 2 MiB entries.
pub fn huge_mapped_bytes(range: VirtRange) -> u64 {
    smaps_bytes(range, "ShmemPmdMapped") + smaps_bytes(range, "FilePmdMapped")
}

/// Small, fast, good enough to scatter writes.
pub struct Scatter(pub u64);

impl Scatter {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// A shared view of `u64` counters in an arena, for threads that increment them.
#[derive(Clone)]
pub struct Counters {
    slice: Arc<ArenaSlice<u64>>,
}

impl Counters {
    pub fn new(arena: &Arena, bytes: ByteCount) -> Self {
        Self { slice: Arc::new(arena.slice(bytes.0 as usize / 8).expect("counters")) }
    }

    /// The counters that a restored arena has at `range`.
    pub fn restored(arena: &Arena, range: VirtRange) -> Self {
        #[allow(unsafe_code)]
        // SAFETY: only these counters use the restored memory.
        let slice = unsafe { arena.adopt_slice(range) };
        Self { slice: Arc::new(slice.expect("counters")) }
    }

    pub fn slice(&self) -> &ArenaSlice<u64> {
        &self.slice
    }

    pub fn len(&self) -> usize {
        self.slice.len()
    }

    #[allow(unsafe_code)]
    pub fn at(&self, i: usize) -> &AtomicU64 {
        let place = &raw const self.slice[i];
        // SAFETY: aligned, alive as long as self, and all access from tests is through atomics.
        unsafe { AtomicU64::from_ptr(place.cast_mut()) }
    }

    pub fn sum(&self) -> u64 {
        (0..self.len()).map(|i| self.at(i).load(Relaxed)).sum()
    }
}

/// Threads that increment counters all over an arena until they are stopped.
pub struct Writers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u64>>,
}

impl Writers {
    /// Thread `t` of `n` owns the counters with an index of `t` modulo `n`, because plain stores
    /// lose no update only to a thread's own counters.
    pub fn start(counters: &Counters, n: usize) -> Self {
        Self::start_avoiding(counters, n, 0..0)
    }

    /// Like [`Self::start`], without the counters in `avoided`.
    pub fn start_avoiding(counters: &Counters, n: usize, avoided: Range<usize>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..n)
            .map(|t| {
                let (counters, stop) = (counters.clone(), Arc::clone(&stop));
                let avoided = avoided.clone();
                std::thread::spawn(move || {
                    let mut scatter = Scatter(0x9e37_79b9_7f4a_7c15 ^ (t as u64 + 1));
                    let mut written = 0;
                    while !stop.load(Relaxed) {
                        let i = (scatter.next() as usize % (counters.len() / n)) * n + t;
                        if avoided.contains(&i) {
                            continue;
                        }
                        let counter = counters.at(i);
                        counter.store(counter.load(Relaxed) + 1, Relaxed);
                        written += 1;
                        if written % 4096 == 0 {
                            // The machine may have fewer processors than threads.
                            std::thread::yield_now();
                        }
                    }
                    written
                })
            })
            .collect();
        Self { stop, threads }
    }

    /// Stops them; returns the number of their increments.
    pub fn stop(self) -> u64 {
        self.stop.store(true, Relaxed);
        self.threads.into_iter().map(|thread| thread.join().expect("a writer")).sum()
    }
}

/// A checksum that depends on the place of every value.
pub fn checksum(values: &[u64]) -> u64 {
    values.iter().enumerate().fold(0, |sum: u64, (i, &value)| {
        sum.wrapping_mul(0x100_0000_01b3).wrapping_add(value ^ i as u64)
    })
}

/// Reports that a test could not run. A capability that `COWSLIP_EXPECT` declares (a list such as
/// `userfaultfd,huge,hugetlb,root`, set by CI) may not be missing.
pub fn skip(capability: &str, why: &str) {
    assert!(
        !is_listed("COWSLIP_EXPECT", capability),
        "{capability} is declared present, but: {why}"
    );
    println!("SKIPPED: {capability}: {why}");
}

/// Returns true if the comma list in the environment variable `variable` names `word`.
pub fn is_listed(variable: &str, word: &str) -> bool {
    std::env::var(variable).is_ok_and(|list| list.split(',').any(|entry| entry.trim() == word))
}

/// Extent of the tests, from the environment variable `COWSLIP_SCALE`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// `small`: a tenth of the rounds, for an emulated machine.
    Small,
    /// `medium`: a third of the rounds, for `./test`.
    Medium,
    Full,
}

impl Scale {
    pub fn current() -> Self {
        match std::env::var("COWSLIP_SCALE").as_deref() {
            Ok("small") => Self::Small,
            Ok("medium") => Self::Medium,
            Ok("full") | Err(_) => Self::Full,
            Ok(other) => panic!("COWSLIP_SCALE={other}: it is small, medium or full"),
        }
    }
}

/// Fewer rounds than `rounds`, by the scale.
pub fn scaled(rounds: usize) -> usize {
    match Scale::current() {
        Scale::Small => (rounds / 10).max(2),
        Scale::Medium => (rounds / 3).max(2),
        Scale::Full => rounds,
    }
}

/// The call that fails after the `pass`th has failed: the next one, or a later one, by the scale.
pub fn next_call(pass: u32) -> u32 {
    pass + 1
        + match Scale::current() {
            Scale::Small => pass,
            Scale::Medium => pass / 2,
            Scale::Full => 0,
        }
}

/// The errnos that each call fails with, by the scale: all, or the first.
pub fn errnos_of<T>(errnos: &[T]) -> &[T] {
    if Scale::current() == Scale::Full { errnos } else { &errnos[..1] }
}

/// Tests that change something that others would notice run one at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Ends the process if a test hangs, so that a thread that is never woken (I6) fails the run instead of stopping it.
pub struct Watchdog {
    _called_off: mpsc::Sender<()>,
}

impl Watchdog {
    pub fn start(what: &'static str) -> Self {
        let (sender, receiver) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            // An emulated machine is ten times slower.
            let patience = PATIENCE * if Scale::current() == Scale::Small { 12 } else { 3 };
            if receiver.recv_timeout(patience) == Err(mpsc::RecvTimeoutError::Timeout) {
                // Not `eprintln`, which the test harness would capture.
                let _ = writeln!(std::io::stderr(), "HUNG: {what}\n{}", whereabouts());
                std::process::abort();
            }
        });
        Self { _called_off: sender }
    }
}

/// The calls in which every thread of this process, and every child, waits.
fn whereabouts() -> String {
    let mut text = String::new();
    let mut add = |place: &std::path::Path| {
        let read = |name: &str| std::fs::read_to_string(place.join(name)).unwrap_or_default();
        text += &format!("{} {}", place.display(), read("comm"));
        text += &format!("{}\n{}", read("syscall"), read("stack"));
    };
    let entries = |place: &str| {
        let found = std::fs::read_dir(place).into_iter().flatten().flatten();
        found.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    for thread in entries("/proc/self/task") {
        add(&thread);
        let children = std::fs::read_to_string(thread.join("children")).unwrap_or_default();
        for child in children.split_whitespace() {
            add(&std::path::Path::new("/proc").join(child));
        }
    }
    text
}

/// A system-wide setting that is restored at the end.
pub struct Setting {
    path: &'static str,
    before: String,
}

impl Setting {
    /// Changes the setting; `None` if this process may not or the kernel did not accept it.
    pub fn change(path: &'static str, value: &str) -> Option<Self> {
        let before = Self::read(path)?;
        std::fs::write(path, value).ok()?;
        let setting = Self { path, before };
        (Self::read(path)? == value).then_some(setting)
    }

    /// The value, or the chosen one of several.
    pub fn read(path: &str) -> Option<String> {
        let text = std::fs::read_to_string(path).ok()?;
        Some(cowslip_sys::procfs::chosen(&text).unwrap_or(text.trim()).to_owned())
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        std::fs::write(self.path, &self.before).expect("the setting goes back");
    }
}

/// Waits for something that a thread brings about; never a substitute for an order of events.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        // The other threads may need this processor.
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Waits until no frozen memory is left, and no place that others read; `false` if that takes longer than `patience`.
pub fn wait_unread(arena: &Arena, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        let metrics = arena.metrics();
        if metrics.frozen_chunks + metrics.vacated_chunks == 0 {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The value that a place of a patterned slice holds.
pub fn pattern(i: usize) -> u64 {
    (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5ca1_ab1e
}

/// Forks `arenas`, has the child run `check` and report through its exit code; returns its id.
///
/// `check` may use only memory and system calls: other threads held locks when the child was made.
#[allow(unsafe_code)]
pub fn fork_child(arenas: &[&Arena], check: impl FnOnce() -> bool) -> cowslip::Result<i32> {
    // SAFETY: the child does only what this function's description allows, and ends.
    match unsafe { cowslip::fork(arenas) }? {
        Fork::Child => cowslip_sys::process::exit_now(i32::from(!check())),
        Fork::Parent(pid) => Ok(pid),
    }
}

/// The wait status of a child that ended.
pub fn status_of(pid: i32) -> i32 {
    cowslip_sys::process::wait_for(pid).expect("a child to wait for")
}
