//! What claims to be runs (CSV, sysstat, perf stat, hyperfine, recordings) is refused, or compared.
#![no_main]

use cowslip_compare::inputs;
use cowslip_compare::{Options, compare};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&str, bool)| {
    let (text, halves) = input;
    let name = if halves { "runs.csv" } else { "runs.json" };
    let Ok(runs) = inputs::parse(text, name, None) else { return };
    let (good, bad) = runs.split_at(runs.len() / 2);
    let _ = compare(good, bad, &Options::default());
});
