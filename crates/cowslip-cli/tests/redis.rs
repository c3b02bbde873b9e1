//! A real, unmodified Redis under `cowslip run`: its saves, replicas and reloads are exact.
//!
//! The oracle is Redis' own: `DEBUG DIGEST`, a hash over every key and value, taken from the server and from a stock
//! server that loads the save.

mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::COWSLIP;
use support::process::redis_is_there;
use support::redis::Server;

const PATIENCE: Duration = Duration::from_secs(60);

fn status(server: &Server) -> Value {
    let mut command = Command::new(COWSLIP);
    let output = command.args(["status", "--json", "-", &server.pid().to_string()]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let whole: Value = serde_json::from_slice(&output.stdout).unwrap();
    whole["arenas"][0].clone()
}

fn until_live(server: &Server) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = status(server);
        if status["state"] == "live" {
            return status;
        }
        assert!(Instant::now() < deadline, "never thawed: {status}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn saves_are_exact_and_the_arena_is_live_again() {
    if !redis_is_there() {
        return;
    }
    let server = Server::under_cowslip("save", &[]);
    server.fill(200_000, 400);
    for round in 0..3 {
        server.ask(&["set", "round", &round.to_string()]);
        let before = server.digest();
        server.save();
        assert_eq!(server.digest(), before);
        assert_eq!(server.digest_of_dump(&format!("dump{round}")), before);
    }
    let status = until_live(&server);
    assert_eq!(status["forks"], 3, "{status}");
    assert!(status["used_bytes"].as_u64().unwrap() > 100 << 20, "{status}");
    assert_eq!(status["failed_freezes"], 0, "{status}");
}

#[test]
fn a_save_that_costs_too_much_fails_and_the_server_goes_on() {
    if !redis_is_there() {
        return;
    }
    let server = Server::under_cowslip_with("costly", &["--child-memory", "16M"], &[]);
    server.fill(200_000, 400);
    // Slow enough to be still at work.
    server.ask(&["config", "set", "rdb-key-save-delay", "100"]);
    server.ask(&["bgsave"]);
    let all =
        "for _, key in ipairs(redis.call('keys', '*')) do redis.call('setrange', key, 9, 'x') end";
    server.ask(&["eval", all, "0"]);
    server.until("rdb_last_bgsave_status:err", &["info", "persistence"]);
    assert_eq!(status(&server)["ended_children"], 1);
    server.ask(&["config", "set", "rdb-key-save-delay", "0"]);
    let before = server.digest();
    server.save();
    assert_eq!(server.digest_of_dump("after"), before);
    assert_eq!(until_live(&server)["ended_children"], 1);
}

#[test]
fn a_replica_has_what_its_master_has() {
    if !redis_is_there() {
        return;
    }
    let master = Server::under_cowslip("master", &[]);
    master.fill(100_000, 400);
    let replica = Server::under_cowslip("replica", &[]);
    replica.ask(&["replicaof", "127.0.0.1", &master.port.to_string()]);
    replica.until("master_link_status:up", &["info", "replication"]);
    master.ask(&["set", "after", "sync"]);
    replica.until("sync", &["get", "after"]);
    assert_eq!(replica.digest(), master.digest());
}

#[test]
fn an_append_only_file_is_rewritten_and_loaded() {
    if !redis_is_there() {
        return;
    }
    let server = Server::under_cowslip("aof", &["--appendonly", "yes"]);
    server.fill(100_000, 400);
    server.until("aof_rewrite_in_progress:0", &["info", "persistence"]);
    server.until("started", &["bgrewriteaof"]);
    server.until("aof_rewrite_in_progress:0", &["info", "persistence"]);
    server.ask(&["set", "tail", "1"]);
    let before = server.digest();
    assert_eq!(server.ask(&["debug", "loadaof"]), "OK");
    assert_eq!(server.digest(), before);
}

#[test]
fn debug_reload_gives_back_every_key() {
    if !redis_is_there() {
        return;
    }
    let server = Server::under_cowslip("reload", &[]);
    server.fill(100_000, 400);
    let before = server.digest();
    server.save();
    for _ in 0..3 {
        assert_eq!(server.ask(&["debug", "reload"]), "OK");
        assert_eq!(server.digest(), before);
    }
}

#[test]
fn a_daemon_takes_the_arena_over_from_its_parent() {
    if !redis_is_there() {
        return;
    }
    let server = Server::under_cowslip("daemon", &["--daemonize", "yes"]);
    server.fill(150_000, 400);
    let before = server.digest();
    server.save();
    assert_eq!(server.digest_of_dump("daemon-dump"), before);
    let status = until_live(&server);
    assert_eq!(status["is_owner"], 1, "{status}");
    assert!(status["used_bytes"].as_u64().unwrap() > 50 << 20, "{status}");
}

#[test]
fn programs_that_cannot_be_helped_are_run_or_refused_with_a_reason() {
    let run = |options: &[&str]| Command::new(COWSLIP).arg("run").args(options).output().unwrap();
    let script = std::env::temp_dir().join(format!("cowslip-hello-{}", std::process::id()));
    std::fs::write(&script, "#!/bin/sh\necho hello\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).unwrap();
    let name = script.to_str().unwrap();

    for options in [&["--", name][..], &["--strict", "--", name]] {
        let helped = run(options);
        assert_eq!(helped.stdout, b"hello\n", "as its interpreter is: {helped:?}");
        assert!(helped.stderr.is_empty(), "{helped:?}");
    }
    std::fs::remove_file(script).unwrap();
    let unhelped = run(&["--", "/bin/su", "--version"]);
    assert!(String::from_utf8_lossy(&unhelped.stderr).contains("setuid"), "{unhelped:?}");
    assert!(unhelped.status.success() && !unhelped.stdout.is_empty(), "{unhelped:?}");
    let refused = run(&["--strict", "--", "/bin/su", "--version"]);
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(3), 0));

    assert_eq!(run(&["--capacity", "9999T", "--", "true"]).status.code(), Some(2));
    assert_eq!(run(&["--no-such-option"]).status.code(), Some(2));
    assert_eq!(run(&["--", "sh", "-c", "exit 7"]).status.code(), Some(7));
}
