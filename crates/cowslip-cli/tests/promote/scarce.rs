//! Explanations of regions where something is scarce: swap is in use, programs wait for memory, memory is in pieces, or
//! there is not enough of it for all.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::explain::explained;
use crate::group::Group;
use crate::support::{COWSLIP, Folder, run};
use crate::target::{MIB, PATIENCE, Program, place};

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

/// A program in a control group with little memory reads a file that does not fit into it, again and again: it keeps
/// waiting for memory.
struct Waiting {
    reader: Child,
    _group: Group,
}

impl Waiting {
    fn start(folder: &Folder) -> Option<Self> {
        let group = Group::new(folder, "16M")?;
        let script = "head -c 64M /dev/zero > \"$2\" && while :; do cat \"$2\" > /dev/null; done";
        let reader = group.shell(script, &[&folder.0.join("large")]).spawn().unwrap();
        Some(Self { reader, _group: group })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.reader.kill();
        let _ = self.reader.wait();
    }
}

/// The time in which some task waited for memory, in percent of the last ten seconds; `None` if the kernel does not
/// tell.
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

/// Two processes want more than is available, and all of it goes to the one that has least of its share. The machine's
/// free memory is set in a record of both: other programs take and free memory all the while.
#[test]
fn what_there_is_goes_to_who_has_least_of_its_share() {
    const POOR: usize = 10;
    const RICH: usize = 20;
    let Some((folder, program)) = place("promote-share") else { return };
    let mut poor = Program::start(&mut Command::new(&program));
    let mut rich = Program::start(&mut Command::new(program));
    map(&mut poor, POOR);
    let start = map(&mut rich, RICH);
    for (target, regions) in [(&mut poor, POOR), (&mut rich, RICH)] {
        target.fill(0..regions, 110);
    }
    let settings = "threshold_percent = 21\npressure_percent = 100\npromotion_cpu_percent = 100\n";
    let mut record = Record::new(&folder, &[(poor.pid(), 1000), (rich.pid(), 1)], settings);
    let last = start + (RICH as u64 - 1) * 2 * MIB;
    let mut explained = |to_spare_bytes: u64| {
        record.each("look", |look| {
            let total_bytes = look["system"]["total_bytes"].as_u64().unwrap();
            look["system"]["available_bytes"] =
                (total_bytes / 100 * Record::KEPT_PERCENT + to_spare_bytes).into();
            look["system"]["free_huge_pages"] = 1000.into();
        });
        record.explain(last)
    };
    // A promotion takes 1.6 MiB here: this is enough for half of the poor one's, and later for all of both.
    let said = explained(POOR as u64 * MIB);
    assert!(said.contains("110 of 512 pages in use (21 %)"), "{said}");
    assert!(said.contains("fair_share: left: what there is goes to processes"), "{said}");
    let said = explained(4 * (POOR + RICH) as u64 * MIB);
    assert!(!said.contains("fair_share"), "{said}");
}

/// A record of looks at processes, which the test changes.
struct Record {
    file: PathBuf,
    events: Vec<serde_json::Value>,
}

impl Record {
    const KEPT_PERCENT: u64 = 5;

    /// Records looks at processes with their weights, without promoting anything.
    fn new(folder: &Folder, targets: &[(u32, u32)], settings: &str) -> Self {
        let target =
            |(pid, weight): &(u32, u32)| format!("[[target]]\npid = {pid}\nweight = {weight}\n");
        let targets: String = targets.iter().map(target).collect();
        let config = folder.0.join("promote.toml");
        let none = "keep_available_percent = 100\ninterval_ms = 50\n";
        fs::write(&config, format!("{targets}[settings]\n{none}{settings}")).unwrap();
        let file = folder.0.join("record.jsonl");
        let mut command = Command::new(COWSLIP);
        command.args(["promote", "--once", "--timeout", "1", "--config"]).arg(config);
        run(command.arg("--record").arg(&file));
        let text = fs::read_to_string(&file).unwrap();
        let events = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let mut record = Self { file, events };
        record.each("start", |start| {
            start["settings"]["keep_available_percent"] = Self::KEPT_PERCENT.into();
        });
        record
    }

    fn each(&mut self, kind: &str, change: impl Fn(&mut serde_json::Value)) {
        self.events.iter_mut().filter_map(|event| event.get_mut(kind)).for_each(change);
    }

    fn explain(&self, address: u64) -> String {
        let lines: Vec<String> = self.events.iter().map(ToString::to_string).collect();
        fs::write(&self.file, lines.join("\n") + "\n").unwrap();
        let mut command = Command::new(COWSLIP);
        let address = format!("{address:#x}");
        run(command.args(["promote", "--explain", &address, "--replay"]).arg(&self.file)).stdout
    }
}

/// Fragmenting all of a large machine's memory takes minutes (`bench bloat --only fairness` does it): the explanations
/// come from a record of a machine without a free huge page.
#[test]
fn memory_in_pieces_holds_promotions_back_unless_the_kernel_may_move_it_together() {
    let Some((folder, program)) = place("promote-pieces") else { return };
    let mut target = Program::start(&mut Command::new(program));
    let start = map(&mut target, 1);
    target.fill(0..1, 512);
    let mut record = Record::new(&folder, &[(target.pid(), 1)], "");
    record.each("look", |look| look["system"]["free_huge_pages"] = 0.into());
    let mut explained = |compactions: u32| {
        record.each("start", |start| start["settings"]["compactions"] = compactions.into());
        record.explain(start)
    };
    let said = explained(0);
    assert!(said.contains("fragmented: left: free memory is in pieces"), "{said}");
    assert!(!said.contains("full: "), "{said}");
    let said = explained(1);
    assert!(said.contains("full: "), "{said}");
}
