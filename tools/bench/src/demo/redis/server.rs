//! A real `redis-server` in a directory of its own. Dropping it ends the process and removes the directory, on each
//! exit path.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::resp::{Connection, Reply};
use super::setup::ServerSetup;
use super::{Error, check};
use crate::interrupt::Interrupt;

/// The file in a server's directory that `BGSAVE` writes and a new server reads.
pub(crate) const RDB: &str = "dump.rdb";
/// The longest time of any reply, and of a reply to a question that can be asked again.
const PATIENCE: Duration = Duration::from_secs(20);
const IMPATIENCE: Duration = Duration::from_secs(1);
/// The longest time until a server's first answer, and until it has read its RDB.
const FIRST_ANSWER: Duration = Duration::from_secs(30);
const LOADED: Duration = Duration::from_secs(900);
const POLITE_END: Duration = Duration::from_secs(10);

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    /// Its number may be another process's by now.
    reaped: bool,
    address: SocketAddr,
    directory: Directory,
}

impl Server {
    /// Starts `redis` in this setup, and waits until it has read the files in `directory` and answers.
    pub(crate) fn start(
        setup: &ServerSetup,
        redis: &Path,
        directory: Directory,
        stop: &Interrupt,
    ) -> Result<Self, Error> {
        let prefix = setup.prefix.iter().map(AsRef::as_ref);
        let mut words = prefix.chain([redis.as_os_str()]);
        let mut command = Command::new(words.next().expect("redis is one of the words"));
        command.args(words).args(setup.arguments);
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        // The values are random bytes, which compression would only slow down.
        command.args(["--rdbcompression", "no"]);
        command.args(["--daemonize", "no", "--dbfilename", RDB, "--dir"]).arg(directory.path());
        for (name, _) in ServerSetup::stock_thp().environment {
            command.env_remove(name);
        }
        command.envs(setup.environment.iter().copied());

        if let Some(user) = setup.user {
            let path = directory.path();
            let given = chown(path, Some(user), Some(user));
            given.map_err(Error::io(format!("give {} to user {user}", path.display())))?;
        }
        let address = free_port()?;
        command.arg("--port").arg(address.port().to_string());
        let log = File::create(directory.log()).map_err(Error::io("the server's log"))?;
        let log_too = log.try_clone().map_err(Error::io("the server's log"))?;
        command.stdin(Stdio::null()).stdout(log).stderr(log_too);
        // A group of its own keeps Ctrl-C from it: the demo handles Ctrl-C, and ends its servers itself.
        let not_started = |why: String| Error::NotStarted {
            server: setup.title.to_owned(),
            why,
            log: directory.last_words(),
        };
        let child = command.process_group(0).spawn().map_err(|e| {
            not_started(format!("{}: {e}", Path::new(command.get_program()).display()))
        })?;
        let mut server = Self { child, reaped: false, address, directory };
        server.wait_ready(setup.title, stop)?;
        Ok(server)
    }

    fn wait_ready(&mut self, title: &str, stop: &Interrupt) -> Result<(), Error> {
        let not_started = |server: &Self, why: String| Error::NotStarted {
            server: title.to_owned(),
            why,
            log: server.directory.last_words(),
        };
        let begin = Instant::now();
        let mut answered = false;
        loop {
            check(stop)?;
            if let Some(status) = self.child.try_wait().map_err(Error::io("wait for Redis"))? {
                self.reaped = true;
                return Err(not_started(self, status.to_string()));
            }
            let connection = Connection::open(self.address, IMPATIENCE);
            match connection.and_then(|mut connection| connection.ask(&[b"PING"])) {
                Ok(Reply::Status(pong)) if pong == "PONG" => return Ok(()),
                Ok(_) => answered = true,
                Err(_) => {}
            }
            if begin.elapsed() > if answered { LOADED } else { FIRST_ANSWER } {
                let why = format!("no PONG after {} s", begin.elapsed().as_secs());
                return Err(not_started(self, why));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn connect(&self) -> Result<Connection, Error> {
        Connection::open(self.address, PATIENCE).map_err(Error::io("connect to Redis"))
    }

    /// The RDB of the last save.
    pub(crate) fn rdb(&self) -> PathBuf {
        self.directory.path().join(RDB)
    }

    /// The end of the server's output.
    pub(crate) fn last_words(&self) -> String {
        self.directory.last_words()
    }

    fn ends_soon(&mut self) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < POLITE_END {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return true;
            }
            thread::sleep(Duration::from_millis(20));
        }
        false
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.reaped {
            return;
        }
        let polite = Connection::open(self.address, IMPATIENCE);
        let asked = polite.and_then(|mut c| c.ask(&[b"SHUTDOWN", b"NOSAVE"]));
        // A server that obeys hangs up instead of answering.
        if asked.is_err_and(|e| e.kind() == io::ErrorKind::UnexpectedEof) && self.ends_soon() {
            return;
        }
        // Kills its whole group: a save may outlive a server that died, and a command before `redis-server` may not be
        // the server itself.
        let group = format!("-{}", self.child.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A temporary directory, removed with its value.
#[derive(Debug)]
pub(crate) struct Directory(PathBuf);

impl Directory {
    /// Makes a new one in `parent` that only this user can read.
    pub(crate) fn new(parent: &Path) -> Result<Self, Error> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("cowslip-demo-{}-{number}", process::id()));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(Error::io(format!("make {}", path.display())))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    fn last_words(&self) -> String {
        let log = fs::read(self.log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().rev().filter(|l| !l.is_empty()).take(4).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A port that is free at this moment.
fn free_port() -> Result<SocketAddr, Error> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Error::io("find a port"))?;
    listener.local_addr().map_err(Error::io("find a port"))
}
