//! Explanations of regions.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::support::{COWSLIP, Folder, run};
use crate::target::{MIB, Program, once, place};
use crate::user::is_root;

/// The reason for the treatment of the region at an address, beside these processes with their weights, and the text
/// that people read about it.
pub(crate) fn explained(
    folder: &Folder,
    targets: &[(u32, u32)],
    address: u64,
    settings: &str,
) -> (String, String) {
    let config = folder.0.join("promote.toml");
    let target =
        |(pid, weight): &(u32, u32)| format!("[[target]]\npid = {pid}\nweight = {weight}\n");
    let targets: String = targets.iter().map(target).collect();
    fs::write(&config, format!("{targets}[settings]\ninterval_ms = 100\n{settings}")).unwrap();
    // Any address in it will do.
    let address = format!("{:#x}", address + 4711);
    let mut command = Command::new(COWSLIP);
    command.args(["promote", "--explain", &address, "--config"]).arg(&config);
    let file = folder.0.join("explained.json");
    let ran = run(command.arg("--json").arg(&file));
    assert!(ran.status.success(), "{}", ran.stderr);
    let json: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    (json["regions"][0]["reason"].as_str().unwrap().to_owned(), ran.stdout)
}

#[test]
fn a_region_of_each_kind_is_explained() {
    let Some((folder, program)) = place("promote-explain") else { return };
    let mut target = Program::start(&mut Command::new(program));
    let start = u64::from_str_radix(&target.tell("map 6")[2..], 16).unwrap();
    target.fill(0..1, 512);
    target.fill(1..2, 300);
    target.fill(2..3, 512);
    target.fill(3..4, 20);
    assert_eq!(target.tell("huge 2 2"), "0");
    let explain = |target: &Program, region: u64, settings: &str| {
        explained(&folder, &[(target.pid(), 1)], start + region * 2 * MIB, settings)
    };
    for (region, settings, reason, says) in [
        (0, "", "full", "512 of 512 pages in use"),
        (0, "keep_available_percent = 100", "memory_low", "too little memory"),
        (0, "stall_percent = 0.0001", "stall_budget", "held up the process"),
        (1, "", "below_threshold", "300 of 512 pages in use (58 %)"),
        (2, "", "huge", "one huge page"),
        (3, "", "sparse", "20 of 512 pages hold anything but zeroes"),
    ] {
        let (found, human) = explain(&target, region, settings);
        assert_eq!(found, reason, "{human}");
        assert!(human.contains(says) && human.contains(&format!("{reason}: ")), "{human}");
    }
    // The rest of that huge page is still the kernel's, which only root can see.
    target.tell("release 2 400");
    let (found, human) = explain(&target, 2, "");
    assert_eq!(found, if is_root() { "partially_mapped" } else { "below_threshold" }, "{human}");
    assert_eq!(human.contains("a huge page is behind it"), is_root(), "{human}");
    target.tell("fork");
    let (found, human) = explain(&target, 0, "");
    assert_eq!(found, "shared", "{human}");
    assert_eq!(target.tell("reap"), "0");

    // Reasons that need a history are explained from a record.
    let record = folder.0.join("record.jsonl");
    assert_eq!(target.tell("refuse_some 0 1"), "0");
    // Something to do, after which it looks again.
    target.fill(4..5, 512);
    once(target.pid(), &["--record", record.to_str().unwrap(), "--demote-below", "0"]);
    let story = |region: u64| {
        let address = format!("{:#x}", start + region * 2 * MIB);
        let mut command = Command::new(COWSLIP);
        run(command.args(["promote", "--explain", &address, "--replay"]).arg(&record)).stdout
    };
    let given_up = story(0);
    let wanted = ["first_look: ", "full: ", "given_up: "].map(|reason| given_up.find(reason));
    assert!(wanted.is_sorted() && wanted.iter().all(Option::is_some), "{given_up}");
    assert_eq!(target.tell("refuse"), "0");
    assert_eq!(explain(&target, 1, "threshold_percent = 50").0, "disabled");
    assert_eq!(target.tell("check"), "0");
}
