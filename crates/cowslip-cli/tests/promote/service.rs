//! A promoter that runs as a daemon.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::support::COWSLIP;
use crate::target::PATIENCE;

/// A running daemon; ended when dropped.
pub(crate) struct Daemon {
    pub(crate) child: Child,
    /// Its lines on standard error.
    lines: mpsc::Receiver<String>,
}

impl Daemon {
    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (told, lines) = mpsc::channel();
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).try_for_each(|line| told.send(line))
        });
        Self { child, lines }
    }

    /// Waits for a line with this text.
    pub(crate) fn until(&mut self, wanted: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|error| panic!("never {wanted:?}: {error}"));
            if line.contains(wanted) {
                return line;
            }
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// Ends it like systemd, and returns its exit code.
    pub(crate) fn end(mut self) -> Option<i32> {
        self.signal("-TERM");
        let told = loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(_) => {}
                Err(end) => break end,
            }
        };
        assert_eq!(told, mpsc::RecvTimeoutError::Disconnected, "it hangs");
        self.child.wait().unwrap().code()
    }
}

impl Drop for Daemon {
    /// Lets it restore the settings that it changed, even after a failure, unless it hangs.
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.signal("-TERM");
            while self.lines.recv_timeout(PATIENCE).is_ok() {}
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn scrape(address: &str) -> String {
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    answer
}

/// A daemon that promotes one process, and the address of its metrics.
pub(crate) fn daemon_of(pid: u32, options: &[&str]) -> (Daemon, String) {
    let mut command = Command::new(COWSLIP);
    command.args(["promote", "--stall-budget", "100", "--metrics", "127.0.0.1:0", "--pid"]);
    let mut daemon = Daemon::start(command.arg(pid.to_string()).args(options));
    let line = daemon.until("metrics at");
    let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
    (daemon, address)
}
