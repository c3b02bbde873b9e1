//! Runs in any format (CSV, recordings, results of tools in JSON and in text) are refused, or compared.
//!
//! An input is the good runs, and behind a line of dashes the bad ones; without it they are the same.
#![no_main]

use std::fs;
use std::path::Path;

use cowslip_compare::inputs;
use cowslip_compare::{Options, compare};
use cowslip_fuzz::{seed, seed_from};
use libfuzzer_sys::fuzz_target;

const DASHES: &str = "\n---\n";

fn seeds() {
    seed_from("cowslip-compare/tests/data/inputs");
    for file in ["sample.json", "estimates.json"] {
        let data = "../crates/cowslip-compare/tests/data/inputs/criterion/alone/new";
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(data).join(file);
        seed(&format!("criterion-{file}"), &fs::read(path).expect("test data"));
    }
    let row = |row: u32| format!("{row},{},{}\n", row * row % 7, row * 3 % 5);
    let table = |rows: std::ops::Range<u32>| rows.map(row).collect::<String>();
    let csv =
        format!("a,b,wall_seconds\n{}{DASHES}a,b,wall_seconds\n{}", table(0..9), table(5..20));
    seed("csv", csv.as_bytes());
    let recording = r#"{"start":{"schema":"cowslip.recording/1","created_unix_ns":1,"facts":{"kernel":"6"}}}
{"metrics":[{"name":"a","kind":"counter"},{"name":"b","kind":"gauge"},{"name":"c","kind":"share"}]}
{"sample":{"at_ns":0,"values":[10.0,2.0,0.1]}}
{"sample":{"at_ns":20000000,"values":[30.0,4.0,0.2]}}
{"sample":{"at_ns":900000000,"values":[35.0,null,0.3]}}
{"totals":{"exit_code":0.0,"wall_seconds":1.5}}"#;
    let other = recording.replace("30.0", "60.0").replace("1.5", "2.5");
    seed("recording", [recording, &other].join(DASHES).as_bytes());
}

fuzz_target!(init: seeds(), |input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let (good, bad) = text.split_once(DASHES).unwrap_or((text, text));
    let read = |text| inputs::parse(text, "runs", Some(1));
    if let (Ok(good), Ok(bad)) = (read(good), read(bad)) {
        let _ = compare(&good, &bad, &Options::default());
    }
});
