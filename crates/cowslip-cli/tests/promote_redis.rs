//! `cowslip promote` on a real, unmodified Redis that saves in the background.
//!
//! The oracles are Redis' own (`DEBUG DIGEST`, a hash over every key and value) and the kernel's `smaps_rollup`.

mod support;

use std::process::Command;

use serde_json::Value;
use support::process::redis_is_there;
use support::redis::Server;
use support::{COWSLIP, run};

const MIB: u64 = 1 << 20;

/// A sum of `smaps_rollup`.
fn sum(server: &Server, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", server.pid())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

fn promote(server: &Server, options: &[&str]) -> (Value, Option<i32>) {
    let mut command = Command::new(COWSLIP);
    command.args(["promote", "--once", "--stall-budget", "100", "--json", "-", "--pid"]);
    let ran = run(command.arg(server.pid().to_string()).args(options));
    let json = serde_json::from_str(&ran.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", ran.stdout, ran.stderr));
    (json, ran.status.code())
}

const SAVING: &str = "rdb_bgsave_in_progress:1";
const NOT_SAVING: &str = "rdb_bgsave_in_progress:0";

#[test]
fn a_redis_that_saves_is_left_alone_and_promoted_afterwards_with_every_key() {
    if !redis_is_there() {
        return;
    }
    let server = Server::stock("promote-redis", &["--rdb-key-save-delay", "30"]);
    server.fill(80_000, 1000);
    let digest = server.digest();

    server.ask(&["bgsave"]);
    server.until(SAVING, &["info", "persistence"]);
    let before = sum(&server, "Anonymous:");
    let (report, code) = promote(&server, &["--timeout", "2"]);
    assert!(server.ask(&["info", "persistence"]).contains(SAVING), "it saved all the while");
    assert_eq!(code, Some(0), "{report:#}");
    let of = |reason: &str| report["processes"][0]["regions_by_reason"][reason].as_u64();
    assert!(of("shared").unwrap_or(0) >= 40, "{report:#}");
    assert_eq!((of("full"), sum(&server, "AnonHugePages:")), (None, 0), "{report:#}");
    // The server goes on meanwhile, and copies a few pages.
    assert!(sum(&server, "Anonymous:") < before + 8 * MIB);

    server.until(NOT_SAVING, &["info", "persistence"]);
    assert!(server.ask(&["info", "persistence"]).contains("rdb_last_bgsave_status:ok"));
    let (report, code) = promote(&server, &["--coverage", "0.8"]);
    assert_eq!(code, Some(0), "{report:#}");
    let huge = sum(&server, "AnonHugePages:");
    assert!(huge >= 64 * MIB, "{huge}: {report:#}");
    assert_eq!(server.digest(), digest);

    server.ask(&["config", "set", "rdb-key-save-delay", "0"]);
    server.ask(&["debug", "reload"]);
    assert_eq!(server.digest(), digest, "saved on huge pages, and loaded again");
}
