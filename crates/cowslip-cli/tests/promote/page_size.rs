//! The size of pages at faults that a daemon with `manage_thp` sets.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::PoisonError;

use serde_json::Value;

use crate::service::Daemon;
use crate::support::{COWSLIP, Folder, run};
use crate::target::{Program, SETTINGS, place};
use crate::user::is_root;

const THP: &str = "/sys/kernel/mm/transparent_hugepage";
const PAGE: u64 = 4096;

/// Every setting of a size by its folder, and that of all sizes.
fn settings() -> BTreeMap<String, String> {
    let folders =
        fs::read_dir(THP).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let sizes = folders.filter(|name| name.starts_with("hugepages-")).map(|name| name + "/enabled");
    let names = sizes.chain(["enabled".into(), "khugepaged/max_ptes_none".into()]);
    let read = |name: &String| fs::read_to_string(format!("{THP}/{name}")).ok();
    names.filter_map(|name| Some((name.clone(), read(&name)?))).collect()
}

/// Skips on a machine without the size that the tests' memory suits, or where it is in use.
fn is_free() -> bool {
    let all = settings();
    let is = |name: &str, word: &str| all.get(name).is_some_and(|setting| setting.contains(word));
    let is_free = is_root()
        && is("hugepages-128kB/enabled", "[never]")
        && is("hugepages-256kB/enabled", "[never]")
        && is("enabled", "[madvise]");
    if !is_free {
        println!("SKIPPED: mthp: not root, or not the kernel's settings as they come");
    }
    is_free
}

/// A program with 1,088 KiB of each 2 MiB in use, in one piece: pages of 128 KiB suit it.
fn suited(program: &Path) -> Program {
    let mut target = Program::start(&mut Command::new(program));
    target.tell("map 64");
    target.fill(0..64, 272);
    target
}

/// The pages that the first touch of a piece of memory brings.
fn fault(target: &mut Program, asks: bool) -> u64 {
    const PIECES: u64 = 4;
    let before = target.sum("Anonymous:");
    target.tell(&format!("fault {PIECES} {}", u8::from(asks)));
    (target.sum("Anonymous:") - before) / (PIECES * PAGE)
}

fn daemon(folder: &Folder, pid: u32) -> Command {
    let config = folder.0.join("promote.toml");
    let text = format!(
        "manage_thp = true\n[[target]]\npid = {pid}\n[settings]\ncpu_percent = 100\ninterval_ms = 50\n"
    );
    fs::write(&config, text).unwrap();
    let mut command = Command::new(COWSLIP);
    command.arg("promote").arg("--config").arg(config).env("RUNTIME_DIRECTORY", &folder.0);
    command
}

#[test]
fn memory_that_asks_gets_the_size_that_suits_until_the_end() {
    let Some((folder, program)) = place("promote-size") else { return };
    let _one_at_a_time = SETTINGS.lock().unwrap_or_else(PoisonError::into_inner);
    if !is_free() {
        return;
    }
    let before = settings();
    let mut target = suited(&program);
    assert_eq!(target.tell("ask"), "0");
    assert_eq!((fault(&mut target, true), fault(&mut target, false)), (1, 1));
    let report = folder.0.join("report.json");
    let mut daemon = Daemon::start(daemon(&folder, target.pid()).arg("--json").arg(&report));
    let told = daemon.until("hugepages-128kB/enabled is madvise (was never): ");
    assert!(told.contains("most of it asked"), "{told}");
    let changed = settings().into_iter().filter(|(name, now)| before[name] != *now);
    let changed: Vec<String> = changed.map(|(name, _)| name).collect();
    assert_eq!(changed, ["hugepages-128kB/enabled", "khugepaged/max_ptes_none"]);
    assert_eq!((fault(&mut target, true), fault(&mut target, false)), (32, 1));
    assert_eq!(daemon.end(), Some(0));
    assert_eq!(settings(), before);
    assert_eq!((fault(&mut target, true), target.tell("check").as_str()), (1, "0"));
    let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    let change = &report["page_size"]["change"];
    assert_eq!((&change["page_bytes"], &change["now"]), (&(128 << 10).into(), &"madvise".into()));
}

#[test]
fn a_size_that_a_killed_daemon_has_set_is_put_back() {
    let Some((folder, program)) = place("promote-size-left") else { return };
    let _one_at_a_time = SETTINGS.lock().unwrap_or_else(PoisonError::into_inner);
    if !is_free() {
        return;
    }
    let before = settings();
    let mut target = suited(&program);
    assert_eq!(target.tell("ask"), "0");
    let kill_one = || {
        let mut running = Daemon::start(&mut daemon(&folder, target.pid()));
        running.until("hugepages-128kB/enabled is madvise");
        running.child.kill().unwrap();
        running.child.wait().unwrap();
        assert!(settings()["hugepages-128kB/enabled"].contains("[madvise]"), "it had no time");
    };
    let restore = || {
        let mut command = Command::new(COWSLIP);
        run(command.args(["promote", "--restore-thp"]).env("RUNTIME_DIRECTORY", &folder.0))
    };
    kill_one();
    let told = restore().stderr;
    assert!(told.contains("hugepages-128kB/enabled is never"), "{told}");
    assert_eq!(settings(), before);
    kill_one();
    let setting = format!("{THP}/hugepages-128kB/enabled");
    fs::write(&setting, "inherit").unwrap();
    let told = restore().stderr;
    assert!(told.contains("hugepages-128kB/enabled is inherit"), "changed elsewhere: {told}");
    fs::write(&setting, "never").unwrap();
    assert_eq!(settings(), before);
}

#[test]
fn a_program_that_does_not_ask_gets_it_unless_that_costs_all_programs_too_much() {
    let Some((folder, program)) = place("promote-size-all") else { return };
    let _one_at_a_time = SETTINGS.lock().unwrap_or_else(PoisonError::into_inner);
    if !is_free() {
        return;
    }
    let before = settings();
    let mut target = suited(&program);
    let mut daemon = Daemon::start(&mut daemon(&folder, target.pid()));
    let told = daemon.until("all programs together");
    let size =
        told.split_once("hugepages-").and_then(|(_, rest)| rest.split_once("kB/enabled is always"));
    match size {
        Some((kib, _)) => assert_eq!(fault(&mut target, false), kib.parse::<u64>().unwrap() / 4),
        None => println!("SKIPPED: mthp: other programs' memory is too sparse here: {told}"),
    }
    assert_eq!(target.tell("check"), "0");
    assert_eq!(daemon.end(), Some(0));
    assert_eq!(settings(), before);
}

#[test]
fn dense_memory_is_left_to_promotion() {
    let Some((folder, program)) = place("promote-size-dense") else { return };
    let _one_at_a_time = SETTINGS.lock().unwrap_or_else(PoisonError::into_inner);
    if !is_free() {
        return;
    }
    let before = settings();
    let mut target = suited(&program);
    target.fill(0..64, 512);
    let mut daemon = Daemon::start(&mut daemon(&folder, target.pid()));
    daemon.until("the size of pages at faults stays as it is: most of the memory is dense");
    let mut expected = before.clone();
    expected.insert("khugepaged/max_ptes_none".into(), "51\n".into());
    assert_eq!(settings(), expected);
    assert_eq!(daemon.end(), Some(0));
    assert_eq!(settings(), before);
}
