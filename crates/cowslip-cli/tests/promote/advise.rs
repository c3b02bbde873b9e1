//! The sizes of pages that `advise` weighs.

use std::process::Command;

use serde_json::Value;

use crate::support::{COWSLIP, run};
use crate::target::{MIB, Program, place};

fn advised(target: &Program) -> Value {
    let pid = target.pid().to_string();
    let ran = run(Command::new(COWSLIP).args(["promote", "advise", &pid, "--json", "-"]));
    assert!(ran.status.success(), "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap()
}

#[test]
fn the_cost_of_each_size_is_the_memory_that_it_takes_more() {
    let Some((_folder, program)) = place("advise") else { return };
    let mut target = Program::start(&mut Command::new(program));
    let before = advised(&target);
    target.tell("map 32");
    // Of each 2 MiB, 1 MiB and 4 KiB.
    target.fill(0..32, 257);
    let after = advised(&target);
    let more = |kib: u64, field: &str| {
        let of = |advice: &Value| {
            let sizes = advice["sizes"].as_array().unwrap();
            let size = sizes.iter().map(|entry| &entry["size"]);
            let size = size.clone().find(|size| size["page_bytes"] == kib << 10).unwrap();
            size[field].as_u64().unwrap()
        };
        of(&after) - of(&before)
    };
    let resident = after["resident_bytes"].as_u64().unwrap();
    assert!(resident >= 32 * 257 * 4096 && resident <= target.sum("Anonymous:"), "{after:#}");
    // A mapping before it may have become longer.
    let near = |value: u64, wanted: u64| value.abs_diff(wanted) <= MIB / 4;
    assert!(near(more(16, "added_bytes"), 32 * 3 * 4096), "{after:#}");
    assert!(near(more(64, "added_bytes"), 32 * 15 * 4096), "{after:#}");
    assert!(near(more(2048, "added_bytes"), 32 * 255 * 4096), "{after:#}");
    assert!(near(more(1024, "dense_covered_bytes"), 32 * MIB), "{after:#}");
    assert!(near(more(2048, "dense_covered_bytes"), 0), "{after:#}");
    let advice = after["advice"].as_str().unwrap();
    assert!(advice.contains("hugepages-64kB") || advice.contains("hugepages-128kB"), "{advice}");
    target.fill(0..32, 512);
    assert!(advised(&target)["advice"].as_str().unwrap().contains("promote measure"));
    assert_eq!(target.huge_mib(), 0, "it changes nothing");
}
