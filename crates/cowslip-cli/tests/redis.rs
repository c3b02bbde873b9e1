//! A real, unmodified Redis under `cowslip run`: what it saves, replicates and reloads is exact.
//!
//! The oracle is Redis' own: `DEBUG DIGEST`, a hash over every key and value, asked of the server and
//! of a stock server that loads what was saved.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const COWSLIP: &str = env!("CARGO_BIN_EXE_cowslip");
const PATIENCE: Duration = Duration::from_secs(60);

fn redis_is_there() -> bool {
    let there = Command::new("redis-server").arg("--version").output().is_ok();
    let expected = std::env::var("COWSLIP_EXPECT").is_ok_and(|list| list.contains("redis"));
    assert!(there || !expected, "redis-server is declared to be there and is not");
    if !there {
        println!("SKIPPED: redis-server is not installed");
    }
    there
}

struct Server {
    child: Option<Child>,
    port: u16,
    folder: PathBuf,
}

impl Server {
    /// Starts a server: under Cowslip or stock.
    fn start(name: &str, with_cowslip: bool, options: &[&str]) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = std::env::temp_dir().join(format!("cowslip-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut command = if with_cowslip {
            let mut command = Command::new(COWSLIP);
            command.args(["run", "--capacity", "1G", "--log"]).arg(folder.join("cowslip.log"));
            command.args(["--", "redis-server"]);
            command
        } else {
            Command::new("redis-server")
        };
        let log = std::fs::File::create(folder.join("redis.log")).unwrap();
        let child = command
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""])
            .args(["--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0"])
            .args(options)
            .arg("--dir")
            .arg(&folder)
            .stdout(log)
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let server = Self { child: Some(child), port, folder };
        server.until("PONG", &["ping"]);
        server
    }

    fn ask(&self, words: &[&str]) -> String {
        let answer =
            Command::new("redis-cli").args(["-p", &self.port.to_string()]).args(words).output();
        String::from_utf8_lossy(&answer.unwrap().stdout).trim().to_owned()
    }

    /// Asks until the answer contains `wanted`.
    fn until(&self, wanted: &str, words: &[&str]) {
        let deadline = Instant::now() + PATIENCE;
        while !self.ask(words).contains(wanted) {
            assert!(
                Instant::now() < deadline,
                "{words:?} never said {wanted}: {}",
                self.ask(words)
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn digest(&self) -> String {
        self.ask(&["debug", "digest"])
    }

    fn fill(&self, keys: u32) {
        assert_eq!(self.ask(&["debug", "populate", &keys.to_string(), "key", "400"]), "OK");
    }

    fn save(&self) {
        self.until("Background saving started", &["bgsave"]);
        self.until("rdb_bgsave_in_progress:0", &["info", "persistence"]);
        assert!(self.ask(&["info", "persistence"]).contains("rdb_last_bgsave_status:ok"));
    }

    fn pid(&self) -> i32 {
        let info = self.ask(&["info", "server"]);
        let line = info.lines().find_map(|line| line.strip_prefix("process_id:")).unwrap();
        line.trim().parse().unwrap()
    }

    fn status(&self) -> serde_json::Value {
        let output = Command::new(COWSLIP)
            .args(["status", "--json", "-"])
            .arg(self.pid().to_string())
            .output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let whole: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        whole["arenas"][0].clone()
    }

    fn until_live(&self) -> serde_json::Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.status();
            if status["state"] == "live" {
                return status;
            }
            assert!(Instant::now() < deadline, "never thawed: {status}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What a stock server makes of the saved file.
    fn digest_of_dump(&self, name: &str) -> String {
        let stock = Self::start_on(name, &self.folder.join("dump.rdb"));
        stock.digest()
    }

    fn start_on(name: &str, dump: &Path) -> Self {
        let folder = std::env::temp_dir().join(format!("cowslip-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::copy(dump, folder.join("dump.rdb")).unwrap();
        let stock = Self::start(name, false, &[]);
        stock.until("loading:0", &["info", "persistence"]);
        stock
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ask(&["shutdown", "nosave"]);
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn saves_are_exact_and_the_arena_is_live_again() {
    if !redis_is_there() {
        return;
    }
    let server = Server::start("save", true, &[]);
    server.fill(200_000);
    for round in 0..3 {
        server.ask(&["set", "round", &round.to_string()]);
        let before = server.digest();
        server.save();
        assert_eq!(server.digest(), before);
        assert_eq!(server.digest_of_dump(&format!("dump{round}")), before);
    }
    let status = server.until_live();
    assert_eq!(status["forks"], 3, "{status}");
    assert!(status["used_bytes"].as_u64().unwrap() > 100 << 20, "{status}");
    assert_eq!(status["failed_freezes"], 0, "{status}");
}

#[test]
fn a_replica_has_what_its_master_has() {
    if !redis_is_there() {
        return;
    }
    let master = Server::start("master", true, &[]);
    master.fill(100_000);
    let replica = Server::start("replica", true, &[]);
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
    let server = Server::start("aof", true, &["--appendonly", "yes"]);
    server.fill(100_000);
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
    let server = Server::start("reload", true, &[]);
    server.fill(100_000);
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
    let server = Server::start("daemon", true, &["--daemonize", "yes"]);
    server.fill(150_000);
    let before = server.digest();
    server.save();
    assert_eq!(server.digest_of_dump("daemon-dump"), before);
    let status = server.until_live();
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

    let helped = run(&["--", name]);
    assert_eq!(helped.stdout, b"hello\n");
    assert!(String::from_utf8_lossy(&helped.stderr).contains("it is a script"));
    let refused = run(&["--strict", "--", name]);
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(3), 0));
    std::fs::remove_file(script).unwrap();

    assert_eq!(run(&["--", "no-such-program"]).status.code(), Some(1));
    assert_eq!(run(&["--capacity", "9999T", "--", "true"]).status.code(), Some(2));
    assert_eq!(run(&["--no-such-option"]).status.code(), Some(2));
    assert_eq!(run(&["--", "sh", "-c", "exit 7"]).status.code(), Some(7));
}
