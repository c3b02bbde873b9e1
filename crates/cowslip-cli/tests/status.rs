//! `cowslip status` on an arena of the test's own, with known sizes.

mod support;

use std::process::{Command, id};

use cowslip::units::ByteCount;
use cowslip::{Arena, Backing};
use serde_json::Value;
use support::{COWSLIP, run};

const USED_MIB: u64 = 24;
const WRITTEN_MIB: u64 = 6;

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
            is_inside = usize::from_str_radix(start, 16).is_ok_and(|it| range.contains(it));
        } else if is_inside && first == "Rss:" {
            sum += words.next().unwrap().parse::<u64>().unwrap() << 10;
        }
    }
    sum
}

#[test]
fn used_and_held_are_told_apart_for_one_and_for_all() {
    let arena = Arena::builder(ByteCount::mib(64)).backing(Backing::Base).build().unwrap();
    let mut words = arena.slice::<u64>((USED_MIB << 17) as usize).unwrap();
    words[..(WRITTEN_MIB << 17) as usize].fill(7);
    let resident = resident_bytes(&arena);
    assert_eq!(resident, WRITTEN_MIB << 20);

    let pid = id().to_string();
    let one: Value = serde_json::from_str(&status(&[&pid, "--json", "-"])).unwrap();
    let all: Value = serde_json::from_str(&status(&["--json", "-"])).unwrap();
    let programs = all["programs"].as_array().unwrap().iter();
    let ours = programs.clone().find(|it| it["pid"] == id()).unwrap();
    for arenas in [&one["arenas"], &ours["arenas"]] {
        assert_eq!(arenas[0]["used_bytes"], USED_MIB << 20, "{arenas}");
        assert_eq!(arenas[0]["held_bytes"], resident, "{arenas}");
    }

    let told = status(&[&pid]);
    let line = |name: &str| {
        let lines = told.lines().filter_map(|line| line.trim_start().strip_prefix(name));
        lines.map(str::trim).next().unwrap_or_else(|| panic!("{name}: {told}")).to_owned()
    };
    assert_eq!((line("used "), line("held ")), ("24 MiB".to_owned(), "6 MiB".to_owned()));

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
