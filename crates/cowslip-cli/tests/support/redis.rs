//! A real `redis-server`, stock or under Cowslip, and `redis-cli` for requests to it.

use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{COWSLIP, Folder};

const PATIENCE: Duration = Duration::from_secs(120);

pub struct Server {
    child: Child,
    pub port: u16,
    folder: Folder,
}

impl Server {
    pub fn stock(name: &str, options: &[&str]) -> Self {
        Self::start(Command::new("redis-server"), Folder::new(name), options)
    }

    pub fn under_cowslip(name: &str, options: &[&str]) -> Self {
        Self::under_cowslip_with(name, &[], options)
    }

    /// With options of `cowslip run`.
    pub fn under_cowslip_with(name: &str, of_run: &[&str], options: &[&str]) -> Self {
        let folder = Folder::new(name);
        let mut command = Command::new(COWSLIP);
        command.args(["run", "--capacity", "1G", "--log"]).arg(folder.0.join("cowslip.log"));
        command.args(of_run).args(["--", "redis-server"]);
        Self::start(command, folder, options)
    }

    /// A stock server that has loaded a saved file.
    pub fn loaded(name: &str, dump: &Path) -> Self {
        let folder = Folder::new(name);
        std::fs::copy(dump, folder.0.join("dump.rdb")).unwrap();
        let stock = Self::start(Command::new("redis-server"), folder, &[]);
        stock.until("loading:0", &["info", "persistence"]);
        stock
    }

    fn start(mut command: Command, folder: Folder, options: &[&str]) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""]);
        command.args(["--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0"]);
        command.args(options).arg("--dir").arg(&folder.0);
        let log = File::create(folder.0.join("redis.log")).unwrap();
        let child = command.stdout(log).stderr(Stdio::inherit()).spawn().unwrap();
        let server = Self { child, port, folder };
        server.until("PONG", &["ping"]);
        server
    }

    pub fn folder(&self) -> &Path {
        &self.folder.0
    }

    pub fn ask(&self, words: &[&str]) -> String {
        let port = self.port.to_string();
        let answer = Command::new("redis-cli").args(["-p", &port]).args(words).output();
        String::from_utf8_lossy(&answer.unwrap().stdout).trim().to_owned()
    }

    /// Asks until the answer contains `wanted`.
    pub fn until(&self, wanted: &str, words: &[&str]) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.ask(words);
            if answer.contains(wanted) {
                return;
            }
            assert!(Instant::now() < deadline, "{words:?} never said {wanted}: {answer}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A hash over every key and value.
    pub fn digest(&self) -> String {
        let digest = self.ask(&["debug", "digest"]);
        assert_eq!(digest.len(), 40, "{digest}");
        digest
    }

    pub fn fill(&self, keys: u32, value_bytes: u32) {
        let sizes = [keys, value_bytes].map(|number| number.to_string());
        assert_eq!(self.ask(&["debug", "populate", &sizes[0], "key", &sizes[1]]), "OK");
    }

    pub fn save(&self) {
        self.until("Background saving started", &["bgsave"]);
        self.until("rdb_bgsave_in_progress:0", &["info", "persistence"]);
        assert!(self.ask(&["info", "persistence"]).contains("rdb_last_bgsave_status:ok"));
    }

    /// The digest of a stock server that has loaded the saved file.
    pub fn digest_of_dump(&self, name: &str) -> String {
        Self::loaded(name, &self.folder.0.join("dump.rdb")).digest()
    }

    /// The server's own process id: it may have made itself a daemon.
    pub fn pid(&self) -> i32 {
        let info = self.ask(&["info", "server"]);
        let line = info.lines().find_map(|line| line.strip_prefix("process_id:")).unwrap();
        line.trim().parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ask(&["shutdown", "nosave", "force"]);
        let _ = self.child.wait();
    }
}
