#![allow(unsafe_code)]
//! `cowslip status` on an arena of the test's own, with known sizes.

mod support;

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio, id};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use cowslip::units::ByteCount;
use cowslip::{Arena, Backing, Metrics};
use cowslip_sys::AsFd;
use cowslip_sys::memfile::{self, MemfdKind};
use cowslip_sys::memory::{self, Prot, Sharing};
use serde_json::{Value, json};
use support::{COWSLIP, Folder, compile, run};

const USED_MIB: u64 = 24;
const WRITTEN_MIB: u64 = 6;

/// Held while this process has arenas, or another name.
static SHOWN: Mutex<()> = Mutex::new(());

fn status(words: &[&str]) -> String {
    let ran = run(Command::new(COWSLIP).arg("status").args(words));
    assert!(ran.status.success(), "{}", ran.stderr);
    ran.stdout
}

/// Resident bytes of the arena's mappings, according to the kernel.
fn resident_bytes(arena: &Arena) -> u64 {
    let range = arena.range();
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut is_inside, mut sum) = (false, 0);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap();
        if let Some((start, _)) = first.split_once('-') {
            is_inside = usize::from_str_radix(start, 16).is_ok_and(|start| range.contains(start));
        } else if is_inside && first == "Rss:" {
            sum += words.next().unwrap().parse::<u64>().unwrap() << 10;
        }
    }
    sum
}

#[test]
fn used_and_held_are_told_apart_for_one_and_for_all() {
    let _alone = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let arena = Arena::builder(ByteCount::mib(64)).backing(Backing::Base).build().unwrap();
    let mut words = arena.slice::<u64>((USED_MIB << 17) as usize).unwrap();
    words[..(WRITTEN_MIB << 17) as usize].fill(7);
    let resident = resident_bytes(&arena);
    assert_eq!(resident, WRITTEN_MIB << 20);

    let pid = id().to_string();
    let one: Value = serde_json::from_str(&status(&[&pid, "--json", "-"])).unwrap();
    let all: Value = serde_json::from_str(&status(&["--json", "-"])).unwrap();
    let programs = all["programs"].as_array().unwrap().iter();
    let ours = programs.clone().find(|program| program["pid"] == id()).unwrap();
    for arenas in [&one["arenas"], &ours["arenas"]] {
        assert_eq!(arenas[0]["used_bytes"], USED_MIB << 20, "{arenas}");
        assert_eq!(arenas[0]["held_bytes"], resident, "{arenas}");
    }

    let name = std::fs::read_to_string("/proc/self/comm").unwrap();
    let named: Value = serde_json::from_str(&status(&[name.trim(), "--json"])).unwrap();
    assert_eq!(named["programs"][0]["pid"], id(), "{named}");
    assert!(status(&[name.trim()]).starts_with(&format!("process {pid}\n")));

    let told = status(&[&pid]);
    let line = |name: &str| {
        let lines = told.lines().filter_map(|line| line.trim_start().strip_prefix(name));
        lines.map(str::trim).next().unwrap_or_else(|| panic!("{name}: {told}")).to_owned()
    };
    assert_eq!((line("used "), line("held ")), ("24 MiB".to_owned(), "6 MiB".to_owned()));
    // After a long wait, these are asked for.
    for name in ["moved chunks", "kept chunks", "collapsed chunks", "waits of threads"] {
        assert_eq!(line(name), "0", "{told}");
    }

    // A column is where its head ends.
    let told = status(&[]);
    let mut lines = told.lines();
    let head = lines.next().unwrap();
    let row = lines.find(|line| line.split_whitespace().next() == Some(&pid)).unwrap();
    for (name, size) in [("USED", "24 MiB"), ("HELD", "6 MiB")] {
        let end = head.find(name).unwrap() + name.len();
        assert!(row[..end].ends_with(&format!("  {size}")), "{name}: {told}");
    }
}

#[test]
fn an_arena_that_ends_meanwhile_is_left_out() {
    let _alone = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let _kept = Arena::builder(ByteCount::mib(64)).backing(Backing::Base).build().unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                drop(Arena::builder(ByteCount::mib(64)).backing(Backing::Base).build().unwrap());
            }
        });
        let all = (0..100).map(|_| run(Command::new(COWSLIP).args(["status", &id().to_string()])));
        let failed = all.into_iter().find(|ran| !ran.status.success());
        is_over.store(true, Relaxed);
        assert!(failed.is_none(), "{}", failed.unwrap().stderr);
    });
}

/// The page of counters of this process' arena.
fn counters(arena: &Arena) -> [u8; 4096] {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let memory = File::open("/proc/self/mem").unwrap();
    let pages = maps.lines().filter(|line| line.contains("/memfd:cowslip-status"));
    let read = |line: &str| {
        let start = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
        let mut page = [0; 4096];
        memory.read_exact_at(&mut page, start).ok().map(|()| page)
    };
    let start = arena.range().start;
    let of_arena = |page: &[u8; 4096]| {
        Metrics::from_page(page).is_some_and(|metrics| metrics.arena_start_address == start as u64)
    };
    pages.filter_map(read).find(of_arena).unwrap()
}

/// `tests/programs/hostile.c`.
struct Hostile(Child);

impl Hostile {
    fn start(program: &Path, kind: &str, folder: &Folder) -> Self {
        let mut command = Command::new(program);
        command.arg(kind).current_dir(&folder.0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = [0; 6];
        child.stdout.take().unwrap().read_exact(&mut said).unwrap();
        assert_eq!(&said, b"ready\n");
        Self(child)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    fn end(&mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

#[test]
fn a_file_that_is_named_as_a_page_of_counters_is_not_believed() {
    let _alone = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = Folder::new("status-forged");
    let Some(program) = compile(&folder, "hostile") else { return };
    let arena = Arena::builder(ByteCount::mib(64)).backing(Backing::Base).build().unwrap();
    fs::write(folder.0.join("cowslip-status"), counters(&arena)).unwrap();
    let mut forger = Hostile::start(&program, "file", &folder);
    let pid = forger.pid();
    let one = run(Command::new(COWSLIP).args(["status", &pid]));
    let all = status(&["--json", "-"]);
    forger.end();
    assert_eq!(one.status.code(), Some(1), "{}", one.stdout);
    assert!(one.stderr.contains("has no arena"), "{}", one.stderr);
    let all: Value = serde_json::from_str(&all).unwrap();
    let pid = pid.parse().ok();
    let mut programs = all["programs"].as_array().unwrap().iter();
    assert!(programs.all(|program| program["pid"].as_u64() != pid), "{all}");
}

/// A program that was started before an upgrade has the page of the version before.
#[test]
fn a_page_of_another_version_is_named_and_not_believed() {
    let _alone = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let arena = Arena::builder(ByteCount::mib(64)).backing(Backing::Base).build().unwrap();
    let page = counters(&arena);
    drop(arena);
    let mut without_layout = page;
    without_layout[..8].copy_from_slice(b"COWSLIP1");
    let mut other_layout = page;
    other_layout[8] ^= 1;
    for page in [without_layout, other_layout] {
        let file = memfile::memfd("cowslip-status", MemfdKind::Shmem, 4096).unwrap();
        memfile::write_at(file.as_fd(), &page, 0).unwrap();
        let place = memory::reserve(4096, 4096).unwrap();
        // SAFETY: the place belongs to this test.
        unsafe { memory::map_file(place, file.as_fd(), 0, Sharing::Shared, Prot::READ) }.unwrap();
        let one = run(Command::new(COWSLIP).args(["status", &id().to_string()]));
        let all = status(&[]);
        let json: Value = serde_json::from_str(&status(&["--json", "-"])).unwrap();
        // SAFETY: as above.
        unsafe { memory::unmap(place) }.unwrap();
        assert_eq!((one.status.code(), one.stdout.as_str()), (Some(3), ""));
        assert!(one.stderr.contains("another version of Cowslip"), "{}", one.stderr);
        let row = |line: &&str| line.split_whitespace().next() == Some(&id().to_string());
        let row = all.lines().find(row).unwrap();
        assert!(row.ends_with("of another version of Cowslip"), "{row}");
        let ours =
            json["programs"].as_array().unwrap().iter().find(|program| program["pid"] == id());
        let (arenas, is_other) = (&ours.unwrap()["arenas"], &ours.unwrap()["of_another_version"]);
        assert_eq!((arenas, is_other), (&json!([]), &json!(true)));
    }
}

#[test]
fn a_page_of_counters_that_never_comes_is_not_waited_for() {
    if cowslip_sys::process::effective_uid() != 0 {
        return println!("SKIPPED: root: a userfaultfd that holds the kernel's accesses");
    }
    let folder = Folder::new("status-held");
    let Some(program) = compile(&folder, "hostile") else { return };
    let mut holder = Hostile::start(&program, "held", &folder);
    let one = run(Command::new(COWSLIP).args(["status", &holder.pid()]));
    let all = run(Command::new(COWSLIP).arg("status"));
    holder.end();
    assert!(!one.status.success() && one.stderr.contains("look into process"), "{}", one.stderr);
    assert!(all.status.success(), "{}", all.stderr);
}

#[test]
fn the_name_of_a_program_commands_no_terminal() {
    let _alone = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let _arena = Arena::builder(ByteCount::mib(64)).backing(Backing::Base).build().unwrap();
    let before = fs::read("/proc/self/comm").unwrap();
    fs::write("/proc/self/comm", "a\x1b[2J\n7 b").unwrap();
    let told = status(&[]);
    fs::write("/proc/self/comm", before).unwrap();
    let pid = id().to_string();
    let row = told.lines().find(|line| line.split_whitespace().next() == Some(&pid)).unwrap();
    assert!(row.contains("a\u{fffd}[2J\u{fffd}7 b "), "{row:?}");
    assert!(!told.contains('\x1b'), "{told:?}");
}
