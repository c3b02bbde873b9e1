//! `cowslip promote` on a real, unmodified Redis that saves in the background.
//!
//! The oracles are Redis' own (`DEBUG DIGEST`, a hash over every key and value) and the kernel's `smaps_rollup`.

mod support;

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{COWSLIP, Folder, run};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(120);
const KEYS: &str = "80000";

struct Server {
    child: Child,
    socket: PathBuf,
    _folder: Folder,
}

impl Server {
    fn start() -> Option<Self> {
        let folder = Folder::new("promote-redis");
        let socket = folder.0.join("socket");
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--enable-debug-command", "yes"]);
        command.args(["--rdb-key-save-delay", "30"]);
        command.arg("--unixsocket").arg(&socket).arg("--dir").arg(&folder.0);
        match command.stdout(Stdio::null()).spawn() {
            Ok(child) => {
                let server = Self { child, socket, _folder: folder };
                server.until("PONG", &["ping"]);
                Some(server)
            }
            Err(error) => {
                let expected = std::env::var("COWSLIP_EXPECT").is_ok_and(|it| it.contains("redis"));
                assert!(!expected, "redis-server is declared to be there: {error}");
                println!("SKIPPED: redis-server: {error}");
                None
            }
        }
    }

    fn ask(&self, words: &[&str]) -> String {
        let answer = Command::new("redis-cli").arg("-s").arg(&self.socket).args(words).output();
        String::from_utf8_lossy(&answer.unwrap().stdout).trim().to_owned()
    }

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

    /// `smaps_rollup`'s sum.
    fn sum(&self, field: &str) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() << 10
    }

    fn promote(&self, options: &[&str]) -> (Value, Option<i32>) {
        let mut command = Command::new(COWSLIP);
        command.args(["promote", "--once", "--stall-budget", "100", "--json", "-", "--pid"]);
        let ran = run(command.arg(self.child.id().to_string()).args(options));
        let json = serde_json::from_str(&ran.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", ran.stdout, ran.stderr));
        (json, ran.status.code())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const SAVING: &str = "rdb_bgsave_in_progress:1";
const NOT_SAVING: &str = "rdb_bgsave_in_progress:0";

#[test]
fn a_redis_that_saves_is_left_alone_and_promoted_afterwards_with_every_key() {
    let Some(server) = Server::start() else { return };
    server.ask(&["debug", "populate", KEYS, "key", "1000"]);
    let digest = server.ask(&["debug", "digest"]);
    assert_eq!(digest.len(), 40, "{digest}");

    server.ask(&["bgsave"]);
    server.until(SAVING, &["info", "persistence"]);
    let before = server.sum("Anonymous:");
    let (report, code) = server.promote(&["--timeout", "2"]);
    assert!(server.ask(&["info", "persistence"]).contains(SAVING), "it saved all the while");
    assert_eq!(code, Some(0), "{report:#}");
    let of = |reason: &str| report["processes"][0]["regions_by_reason"][reason].as_u64();
    assert!(of("shared").unwrap_or(0) >= 40, "{report:#}");
    assert_eq!((of("full"), server.sum("AnonHugePages:")), (None, 0), "{report:#}");
    // Serving goes on meanwhile, and copies a few pages.
    assert!(server.sum("Anonymous:") < before + 8 * MIB);

    server.until(NOT_SAVING, &["info", "persistence"]);
    assert!(server.ask(&["info", "persistence"]).contains("rdb_last_bgsave_status:ok"));
    let (report, code) = server.promote(&["--coverage", "0.8"]);
    assert_eq!(code, Some(0), "{report:#}");
    let huge = server.sum("AnonHugePages:");
    assert!(huge >= 64 * MIB, "{huge}: {report:#}");
    assert_eq!(server.ask(&["debug", "digest"]), digest);

    server.ask(&["config", "set", "rdb-key-save-delay", "0"]);
    server.ask(&["debug", "reload"]);
    assert_eq!(server.ask(&["debug", "digest"]), digest, "saved on huge pages, and loaded again");
}
