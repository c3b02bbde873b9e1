//! What is said of regions where something is short: swap is in use, programs wait for memory, it is in pieces, or
//! there is not enough of it for all.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::explain::explained;
use crate::support::{COWSLIP, Folder, run};
use crate::target::{MIB, PATIENCE, Program, once, place};

/// The address of a program's first region.
fn map(target: &mut Program, regions: usize) -> u64 {
    u64::from_str_radix(&target.tell(&format!("map {regions}"))[2..], 16).unwrap()
}

#[test]
fn a_region_in_swap_is_left_alone() {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().count() < 2 {
        return println!("SKIPPED: swap: this machine has none");
    }
    let Some((folder, program)) = place("promote-swapped") else { return };
    let mut target = Program::start(&mut Command::new(program));
    let start = map(&mut target, 1);
    target.fill(0..1, 512);
    assert_eq!(target.tell("page_out 0 100"), "0");
    let (found, human) = explained(&folder, &[(target.pid(), 1)], start, "");
    assert_eq!(found, "swapped", "{human}");
    assert!(human.contains("412 of 512 pages in use (80 %), 100 in swap"), "{human}");
    assert_eq!(target.tell("check"), "0");
}

/// A control group with little memory, in which a program reads a file that does not fit into it, again and again:
/// it waits for memory all the while. `None`, said and counted, where that cannot be had.
struct Waiting {
    group: PathBuf,
    reader: Child,
}

impl Waiting {
    fn start(folder: &Folder) -> Option<Self> {
        let name = folder.0.file_name().unwrap();
        let places =
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        let made = places.iter().find_map(|(parent, limit)| {
            let group = PathBuf::from(parent).join(name);
            fs::create_dir(&group).ok()?;
            if fs::write(group.join(limit), "16M").is_ok() {
                return Some(group);
            }
            fs::remove_dir(&group).unwrap();
            None
        });
        let Some(group) = made else {
            println!("SKIPPED: cgroup: none that limits memory can be made here");
            return None;
        };
        let script = "echo $$ > \"$1/cgroup.procs\" && head -c 64M /dev/zero > \"$2\" && \
                      while :; do cat \"$2\" > /dev/null; done";
        let file = folder.0.join("large");
        let reader = Command::new("sh").args(["-c", script, "sh"]).arg(&group).arg(file).spawn();
        Some(Self { group, reader: reader.unwrap() })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.reader.kill();
        let _ = self.reader.wait();
        let deadline = Instant::now() + PATIENCE;
        // Its last program is on its way out.
        while fs::remove_dir(&self.group).is_err() && Instant::now() < deadline {
            std::thread::yield_now();
        }
    }
}

/// Time in which some task waited for memory, percent of the last ten seconds; `None` if the kernel does not say.
fn pressure() -> Option<f64> {
    let text = fs::read_to_string("/proc/pressure/memory").ok()?;
    text.lines().next()?.strip_prefix("some avg10=")?.split(' ').next()?.parse().ok()
}

#[test]
fn nothing_is_promoted_while_programs_wait_for_memory() {
    if pressure().is_none() {
        return println!("SKIPPED: pressure: this kernel does not measure it");
    }
    let Some((folder, program)) = place("promote-pressure") else { return };
    let mut target = Program::start(&mut Command::new(program));
    let start = map(&mut target, 1);
    target.fill(0..1, 512);
    let Some(_waiting) = Waiting::start(&folder) else { return };
    let deadline = Instant::now() + PATIENCE;
    // The kernel sums up every two seconds.
    while pressure().is_some_and(|percent| percent < 0.5) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(100));
    }
    let targets = [(target.pid(), 1)];
    let (found, human) = explained(&folder, &targets, start, "pressure_percent = 0.1\n");
    assert_eq!(found, "pressure", "{human}");
    assert!(human.contains("programs wait for memory"), "{human}");
    let (found, human) = explained(&folder, &targets, start, "pressure_percent = 100\n");
    assert_eq!(found, "full", "{human}");
}

/// Memory that programs can have, and all of it, in KiB.
fn available_and_total_kib() -> (u64, u64) {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let of = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
    };
    (of("MemAvailable:"), of("MemTotal:"))
}

/// Two processes want more than may be had, and all of it goes to the one that has least of its share.
#[test]
fn what_there_is_goes_to_who_has_least_of_its_share() {
    const POOR: usize = 150;
    const RICH: usize = 300;
    let Some((folder, program)) = place("promote-share") else { return };
    let mut poor = Program::start(&mut Command::new(&program));
    let mut rich = Program::start(&mut Command::new(program));
    map(&mut poor, POOR);
    let start = map(&mut rich, RICH);
    for (target, regions) in [(&mut poor, POOR), (&mut rich, RICH)] {
        target.fill(0..regions, 110);
    }
    // A promotion takes 1.6 MiB here, and what has to stay is a whole percentage: of what there is above it the poor
    // one gets all that it wants, or all that there is. Others take and free memory meanwhile.
    let targets = [(poor.pid(), 1000), (rich.pid(), 1)];
    let last = start + (RICH as u64 - 1) * 2 * MIB;
    let deadline = Instant::now() + PATIENCE;
    let human = loop {
        let (available, total) = available_and_total_kib();
        let keep = available * 100 / total;
        let found = [keep, keep - 1].into_iter().find_map(|keep| {
            let settings = format!("threshold_percent = 21\nkeep_available_percent = {keep}\n");
            let (found, human) = explained(&folder, &targets, last, &settings);
            (found == "fair_share").then_some(human)
        });
        match found {
            Some(human) => break human,
            None => assert!(Instant::now() < deadline, "it never was about shares"),
        }
    };
    assert!(human.contains("110 of 512 pages in use (21 %)"), "{human}");
    assert!(human.contains("fair_share: left: what there is goes to processes"), "{human}");
}

/// To bring all of a large machine's memory into pieces takes minutes (`bench bloat --only fairness` does it): what
/// is said is told from a record, whose machine had no huge page free.
#[test]
fn memory_in_pieces_holds_promotions_back_unless_the_kernel_may_move_it_together() {
    let Some((folder, program)) = place("promote-pieces") else { return };
    let mut target = Program::start(&mut Command::new(program));
    let address = format!("{:#x}", map(&mut target, 1));
    target.fill(0..1, 512);
    let record = folder.0.join("record.jsonl");
    // Nothing is promoted, so that it is looked at again.
    let settings = folder.0.join("promote.toml");
    fs::write(&settings, "[settings]\nkeep_available_percent = 100\ninterval_ms = 50\n").unwrap();
    let files = [settings.to_str().unwrap(), record.to_str().unwrap()];
    once(target.pid(), &["--config", files[0], "--record", files[1], "--timeout", "1"]);
    let text = fs::read_to_string(&record).unwrap();
    let mut events: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut explained = |compactions: u32| {
        for event in &mut events {
            if let Some(start) = event.get_mut("start") {
                start["settings"]["keep_available_percent"] = 5.into();
                start["settings"]["compactions"] = compactions.into();
            }
            if let Some(look) = event.get_mut("look") {
                look["system"]["free_huge_pages"] = 0.into();
            }
        }
        let lines: Vec<String> = events.iter().map(ToString::to_string).collect();
        fs::write(&record, lines.join("\n") + "\n").unwrap();
        let mut command = Command::new(COWSLIP);
        run(command.args(["promote", "--explain", &address, "--replay"]).arg(&record)).stdout
    };
    let said = explained(0);
    assert!(said.contains("fragmented: left: free memory is in pieces"), "{said}");
    assert!(!said.contains("full: "), "{said}");
    let said = explained(1);
    assert!(said.contains("full: "), "{said}");
}
