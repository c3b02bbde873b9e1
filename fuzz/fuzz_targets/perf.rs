//! Any `perf.data` is refused, or becomes a trace that can be read.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use cowslip_fuzz::{folder, seed, seed_from, traces};
use cowslip_trace::import;
use libfuzzer_sys::fuzz_target;

static FILE: OnceLock<PathBuf> = OnceLock::new();

fn file() -> PathBuf {
    FILE.get_or_init(|| folder().join("perf.data")).clone()
}

/// The recording of the tests, and others where perf is installed.
fn seeds() {
    seed_from("cowslip-trace/tests/data");
    for (name, events) in
        [("faults", "page-faults"), ("calls", "syscalls:sys_*_m*map,exceptions:page_fault_*")]
    {
        let mut perf = Command::new("perf");
        perf.args(["record", "-q", "-c", "1", "-d", "-g", "-e", events, "-o"]).arg(file());
        if perf.arg("true").output().is_ok_and(|done| done.status.success()) {
            seed(name, &fs::read(file()).expect("a recording"));
        }
    }
}

fuzz_target!(init: seeds(), |input: &[u8]| {
    let file = file();
    fs::write(&file, input).expect("a file of some bytes");
    let mut trace = Vec::new();
    if import::import(&file, &mut trace, &mut |_, _| {}).is_ok() {
        traces::look(&trace).expect("what was imported is a trace");
    }
});
