//! A program under `cowslip run` holds as much memory as it uses, like natively: after sparse touches, and after giving
//! a part of its memory back.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::{COWSLIP, Folder, compile, run};

const MIB: u64 = 1 << 20;
/// Other memory that a small program has in its arena.
const OTHERS_BYTES: u64 = MIB / 2;

/// Memory that the arenas of a process hold, and true if they have huge pages.
fn held_bytes(pid: u32) -> (u64, bool) {
    let ran = run(Command::new(COWSLIP).args(["status", &pid.to_string(), "--json", "-"]));
    let status: serde_json::Value = serde_json::from_str(&ran.stdout).expect(&ran.stderr);
    let arenas = status["arenas"].as_array().expect("arenas");
    let sum = |name: &str| arenas.iter().map(|arena| arena[name].as_u64().unwrap()).sum::<u64>();
    (sum("held_bytes"), sum("is_huge") > 0)
}

fn holds_what_it_uses(program: &Path, mode: &str, mib: u64) {
    let mut command = Command::new(COWSLIP);
    command.args(["run", "--"]).arg(program).args([mode, &mib.to_string()]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let used: u64 = line.trim().parse().unwrap_or_else(|_| panic!("{mode}: {line}"));
    let most = (used as f64 * 1.15) as u64 + OTHERS_BYTES;
    // Memory that was given back while a child read it is freed when that child has ended.
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let (held, is_huge) = held_bytes(child.id());
        assert!(is_huge || held <= most, "base pages");
        if held <= most {
            break;
        }
        assert!(Instant::now() < deadline, "{mode}: {held} bytes are held for {used}");
        std::thread::yield_now();
    }
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    line.clear();
    said.read_line(&mut line).unwrap();
    assert!(child.wait().unwrap().success() && line.is_empty(), "{mode}: {line}");
}

#[test]
fn what_is_used_sparsely_or_given_back_in_part_costs_what_it_costs_natively() {
    let folder = Folder::new("sparse");
    let Some(program) = compile(&folder, "sparse") else { return };
    for (mode, mib) in [
        ("touch", 1024),
        ("zero", 1024),
        ("refuse", 512),
        ("give", 64),
        ("both", 64),
        ("outgrow", 7),
    ] {
        holds_what_it_uses(&program, mode, mib);
    }
}
