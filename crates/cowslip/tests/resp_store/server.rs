//! Runs the example as a process.

use std::fs::File;
use std::io::{BufRead, BufReader, Lines};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Instant;

use crate::client::Client;
use crate::support::images::Folder;
use crate::support::{PATIENCE, eventually};

/// The folder of a store.
pub(crate) fn home() -> Folder {
    Folder::new("resp-store")
}

/// Its image.
pub(crate) fn image(folder: &Folder) -> PathBuf {
    folder.file("store")
}

/// The example that cargo built with this test; it is not built when tests are selected by name.
fn program() -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let program = this.parent().unwrap().parent().unwrap().join("examples/resp_store");
    assert!(program.exists(), "build it first: cargo build --release --example resp_store");
    program
}

fn command(folder: &Folder, options: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.arg("--image").arg(image(folder)).args(options);
    if !options.contains(&"--port") {
        command.args(["--port", "0"]);
    }
    command.stdout(Stdio::piped());
    command
}

/// Runs it in a case that it should refuse; returns its exit code and its message.
pub(crate) fn refusal(folder: &Folder, options: &[&str]) -> (Option<i32>, String) {
    let ran = command(folder, options).output().unwrap();
    (ran.status.code(), String::from_utf8(ran.stderr).unwrap())
}

pub(crate) struct Server {
    process: Child,
    said: Lines<BufReader<ChildStdout>>,
    complaints: PathBuf,
}

impl Server {
    pub(crate) fn spawn(folder: &Folder, options: &[&str]) -> Self {
        let complaints = folder.file("stderr");
        let stderr = File::create(&complaints).unwrap();
        let mut process = command(folder, options).stderr(stderr).spawn().unwrap();
        let said = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, said, complaints }
    }

    pub(crate) fn start(folder: &Folder, options: &[&str]) -> (Self, SocketAddr) {
        let until = Instant::now() + PATIENCE;
        loop {
            let mut server = Self::spawn(folder, options);
            if let Some(address) = server.until_it_says("ready on ") {
                return (server, address.parse().unwrap());
            }
            // A server that was killed within a thaw has its lock for a moment longer.
            let complaints = server.complaints();
            let is_locked = complaints.contains("another process has it");
            assert!(is_locked && Instant::now() < until, "it ended: {complaints}");
        }
    }

    /// The rest of the next line that begins like this; `None` at the end of its output.
    pub(crate) fn until_it_says(&mut self, beginning: &str) -> Option<String> {
        self.said.find_map(|line| line.unwrap().strip_prefix(beginning).map(str::to_owned))
    }

    pub(crate) fn complaints(&self) -> String {
        std::fs::read_to_string(&self.complaints).unwrap()
    }

    pub(crate) fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Waits for it to end.
    pub(crate) fn end(mut self) -> ExitStatus {
        eventually("its end", || self.process.try_wait().unwrap().is_some());
        self.process.wait().unwrap()
    }

    /// Ends it with a last checkpoint.
    pub(crate) fn shut_down(self, mut client: Client) {
        client.queue(&["shutdown"]);
        client.send().unwrap();
        assert!(self.end().success());
    }

    pub(crate) fn until_it_complains(&self, of: &str) {
        eventually(of, || self.complaints().contains(of));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The file's inode: a different one after each checkpoint.
pub(crate) fn inode(file: &Path) -> Option<u64> {
    std::fs::metadata(file).ok().map(|metadata| std::os::unix::fs::MetadataExt::ino(&metadata))
}
