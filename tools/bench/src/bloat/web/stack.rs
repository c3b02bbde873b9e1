//! nginx, PHP-FPM and MariaDB, in a control group.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::bloat::group::Group;
use crate::bloat::target::{mapped, sleep};
use crate::error::{Error, Result, during};
use crate::interrupt::Interrupt;
use crate::program::{Folder, Running};

const PACKAGES: &str =
    "apt-get install nginx-light php-fpm php-mysql mariadb-server-core mariadb-client-core";
const LONGEST_START: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);
/// As many as the clients, so that none waits for a worker that waits for the database.
const WORKERS: usize = super::CLIENTS;
/// Rows that one statement adds.
const BATCH: u64 = 20_000;

/// The servers, which end with this value.
pub(super) struct Stack {
    // The order in which they end.
    servers: Vec<Running>,
    pub(super) group: Group,
    pub(super) port: u16,
    folder: Folder,
    /// Variables of the servers.
    environment: &'static [(&'static str, &'static str)],
}

impl Stack {
    /// Starts the servers and fills the database with this many events. All of it may be cached in `cache_bytes`.
    pub(super) fn start(
        events: u64,
        cache_bytes: u64,
        environment: &'static [(&'static str, &'static str)],
        stop: &Interrupt,
    ) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = port.map_err(during("find a free port"))?.port();
        let (folder, group) = (Folder::new("bench-web")?, Group::new()?);
        let mut stack = Self { servers: Vec::new(), group, port, folder, environment };
        stack.database(cache_bytes, stop)?;
        stack.fill(events, stop)?;
        stack.php(stop)?;
        stack.nginx(stop)?;
        Ok(stack)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts a server, and waits until `socket` is there.
    fn serve(&mut self, command: &mut Command, socket: &Path, stop: &Interrupt) -> Result<()> {
        command.envs(self.environment.iter().copied());
        let number = self.servers.len();
        let [out, err] = ["out", "err"].map(|name| self.path(&format!("{name}-{number}")));
        let mut running = Running::start(command, &out, &err)?;
        let began = Instant::now();
        while !socket.exists() {
            if running.ended()?.is_some() || began.elapsed() > LONGEST_START {
                let said = fs::read_to_string(&err).unwrap_or_default();
                let last = said.lines().last().unwrap_or_default();
                return Err(Error::Failed(format!("{command:?} did not start: {last}")));
            }
            sleep(LOOK, stop)?;
        }
        self.servers.push(running);
        Ok(())
    }

    fn database(&mut self, cache_bytes: u64, stop: &Interrupt) -> Result<()> {
        let (data, socket) = (self.path("data"), self.path("database"));
        let mut install = Command::new("mariadb-install-db");
        install.args(["--no-defaults", "--auth-root-authentication-method=normal"]);
        install.args(["--skip-test-db", "--user=root"]);
        install.arg(format!("--datadir={}", data.display()));
        self.folder.finish(&mut install, stop).map_err(needs)?;
        let mut server = self.group.command("mariadbd");
        server.args(["--no-defaults", "--skip-networking", "--user=root"]);
        server.arg(format!("--datadir={}", data.display()));
        server.arg(format!("--socket={}", socket.display()));
        server.arg(format!("--innodb-buffer-pool-size={cache_bytes}"));
        // A disk is not what this measures.
        server.args(["--innodb-flush-log-at-trx-commit=0", "--innodb-log-file-size=64M"]);
        self.serve(&mut server, &socket, stop)
    }

    fn fill(&self, events: u64, stop: &Interrupt) -> Result<()> {
        let mut sql = String::from(
            "CREATE DATABASE calendar; USE calendar;
             CREATE TABLE events (id INT PRIMARY KEY, title TEXT, body TEXT);
             CREATE TABLE comments (id INT AUTO_INCREMENT PRIMARY KEY, event INT, body TEXT, KEY (event));",
        );
        for first in (0..events).step_by(BATCH as usize) {
            let rows = format!("seq_{first}_to_{}", (first + BATCH).min(events) - 1);
            sql += &format!(
                "INSERT INTO events SELECT seq, CONCAT('event ', seq), REPEAT(CONCAT(MD5(seq), '. '), 40) FROM {rows};
                 INSERT INTO comments (event, body) SELECT seq * 7919 % {events}, REPEAT(MD5(seq), 8) FROM {rows};",
            );
        }
        let sql = self.folder.write("fill.sql", &sql)?;
        let mut client = Command::new("mariadb");
        client.args(["--no-defaults", "--user=root"]);
        client.arg(format!("--socket={}", self.path("database").display()));
        client.arg(format!("--execute=source {}", sql.display()));
        self.folder.finish(&mut client, stop).map_err(needs).map(drop)
    }

    fn php(&mut self, stop: &Interrupt) -> Result<()> {
        let socket = self.path("php");
        let config = format!(
            "[global]\nerror_log={0}\ndaemonize=no\n[www]\nuser=root\ngroup=root\nlisten={1}\npm=static\n\
             pm.max_children={WORKERS}\nenv[DATABASE]={2}\n",
            self.path("php.log").display(),
            socket.display(),
            self.path("database").display(),
        );
        let config = self.folder.write("php.conf", &config)?;
        self.folder.write("page.php", include_str!("page.php"))?;
        let mut server = self.group.command(&fpm()?);
        server.args(["--nodaemonize", "--allow-to-run-as-root", "--fpm-config"]).arg(config);
        self.serve(&mut server, &socket, stop)
    }

    fn nginx(&mut self, stop: &Interrupt) -> Result<()> {
        let folder = self.folder.path().display();
        let config = format!(
            "daemon off; user root; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
             events {{ worker_connections 256; }}
             http {{
               access_log off; keepalive_requests 1000000;
               server {{
                 listen 127.0.0.1:{};
                 location / {{
                   fastcgi_pass unix:{folder}/php;
                   fastcgi_param SCRIPT_FILENAME {folder}/page.php;
                   fastcgi_param REQUEST_METHOD $request_method;
                   fastcgi_param QUERY_STRING $query_string;
                 }}
               }}
             }}",
            self.port
        );
        let config = self.folder.write("nginx.conf", &config)?;
        let mut server = self.group.command("nginx");
        server.arg("-p").arg(self.folder.path()).arg("-c").arg(config);
        self.serve(&mut server, &self.path("nginx.pid"), stop)
    }

    /// All of its processes.
    pub(super) fn pids(&self) -> Result<Vec<i32>> {
        self.group.pids()
    }

    /// Memory of all processes on huge pages.
    pub(super) fn huge_bytes(&self) -> Result<u64> {
        let pids = self.pids()?;
        let of = |pid| mapped(pid).map_or(0, |memory| memory.huge_bytes);
        Ok(pids.into_iter().map(of).sum())
    }
}

fn needs(error: Error) -> Error {
    Error::Failed(format!("{error}; {PACKAGES}"))
}

/// The name of Debian's server has its version.
fn fpm() -> Result<String> {
    let entries = fs::read_dir("/usr/sbin").map_err(during("read /usr/sbin"))?;
    let paths = entries.flatten().map(|entry| entry.path().display().to_string());
    let found = paths.filter(|path| path.contains("/php-fpm")).max();
    found.ok_or_else(|| needs(Error::Failed("there is no php-fpm".to_owned())))
}
