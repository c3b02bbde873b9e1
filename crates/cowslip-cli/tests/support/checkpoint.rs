//! A server with threads, its checkpoints, and CRIU. `CRIU` names the program, if it is not in the path.

use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::python::{self, PYTHON};
use super::{COWSLIP, Folder, Ran, run};

pub const PATIENCE: Duration = Duration::from_secs(60);

/// A server with threads: each adds to one number and takes from another, under a lock. An answer says their sums, how
/// many threads live, how long the file is that it has written so far, and whether its peer is connected. It also has a
/// connection to itself that it never accepts.
const SERVER: &str = r#"
import os, socket, sys, threading, time
folder, pairs, lock = sys.argv[1], [[0, 0] for _ in range(4)], threading.Lock()
def work(pair):
    while True:
        with lock:
            pair[0] += 1
            pair[1] -= 1
        time.sleep(0.0005)
threads = [threading.Thread(target=work, args=(pair,), daemon=True) for pair in pairs]
[thread.start() for thread in threads]
memory = bytearray(b'cowslip!' * (1 << 20))
peer = socket.socket(socket.AF_UNIX)
peer.connect(folder + '/peer')
idle = socket.create_server(('127.0.0.1', 0))
waiting = socket.create_connection(idle.getsockname())
def has_peer():
    try:
        return peer.recv(1, socket.MSG_DONTWAIT) != b''
    except BlockingIOError:
        return True
log = open(folder + '/log', 'w', buffering=1)
server = socket.create_server(('127.0.0.1', 0))
with open(folder + '/port.new', 'w') as port:
    port.write(str(server.getsockname()[1]))
os.rename(folder + '/port.new', folder + '/port')
while True:
    client, _ = server.accept()
    log.write('asked\n')
    with lock:
        added, left = sum(pair[0] for pair in pairs), sum(sum(pair) for pair in pairs)
    live = sum(thread.is_alive() for thread in threads)
    right = memory == b'cowslip!' * (1 << 20)
    client.sendall(f'{added} {left} {live} {log.tell()} {int(right)} {int(has_peer())}'.encode())
    client.close()
"#;

/// An answer of the server.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Answer {
    pub added: u64,
    pub left: i64,
    pub live_threads: u64,
    pub log_bytes: u64,
    pub is_memory_right: bool,
    pub has_peer: bool,
}

pub struct Server {
    pub folder: Folder,
    pub pid: u32,
    port: u16,
    _peer: UnixStream,
    pub child: Option<Child>,
}

impl Server {
    /// Debian's Python, in a session of its own.
    pub fn start() -> Option<Self> {
        Self::start_by(&[])
    }

    /// Under a command that starts programs.
    pub fn start_by(starter: &[&str]) -> Option<Self> {
        Self::start_program(starter, SERVER)
    }

    /// Another program, which connects to `peer` in a folder, and has its port in `port` there.
    pub fn start_program(starter: &[&str], text: &str) -> Option<Self> {
        if !python::is_there() {
            return None;
        }
        let folder = Folder::new("checkpoint");
        let listener = UnixListener::bind(folder.0.join("peer")).unwrap();
        let mut command = Command::new("setsid");
        command.args(starter).args([PYTHON, "-c", text]).arg(&folder.0).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + PATIENCE;
        let port = loop {
            if let Ok(text) = fs::read_to_string(folder.0.join("port")) {
                break text.parse().unwrap();
            }
            assert_eq!(child.try_wait().unwrap(), None, "it listens");
            assert!(Instant::now() < deadline, "it listens");
            std::thread::sleep(Duration::from_millis(5));
        };
        let (_peer, _) = listener.accept().unwrap();
        Some(Self { folder, pid: child.id(), port, _peer, child: Some(child) })
    }

    /// All that it sends to a client.
    pub fn answer(&self) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    pub fn ask(&self) -> Answer {
        let text = self.answer();
        let words: Vec<i64> = text.split(' ').map(|word| word.parse().unwrap()).collect();
        let [added, left, live_threads, log_bytes, is_right, has_peer] = words[..] else {
            panic!("{text}")
        };
        Answer {
            added: added as u64,
            left,
            live_threads: live_threads as u64,
            log_bytes: log_bytes as u64,
            is_memory_right: is_right == 1,
            has_peer: has_peer == 1,
        }
    }

    pub fn kill(&mut self) {
        cowslip_sys::process::end(self.pid.cast_signed(), true).unwrap();
        if let Some(mut child) = self.child.take() {
            child.wait().unwrap();
        }
        let deadline = Instant::now() + PATIENCE;
        while Path::new(&format!("/proc/{}", self.pid)).exists() {
            assert!(Instant::now() < deadline, "its number is free");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn checkpoint(&self, folder: &Path, criu: &Path) -> Ran {
        self.checkpoint_with(folder, criu, &[])
    }

    pub fn checkpoint_with(&self, folder: &Path, criu: &Path, options: &[&str]) -> Ran {
        let mut command = Command::new(COWSLIP);
        command.args(["checkpoint", &self.pid.to_string(), "--criu"]).arg(criu);
        run(command.arg("-o").arg(folder).args(options))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = cowslip_sys::process::end(self.pid.cast_signed(), true);
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
    }
}

/// A CRIU that works here.
pub fn criu() -> Option<PathBuf> {
    let program = PathBuf::from(std::env::var_os("CRIU").unwrap_or("criu".into()));
    let mut check = Command::new(&program);
    check.arg("check").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if check.status().is_ok_and(|status| status.success()) {
        return Some(program);
    }
    let is_declared = std::env::var("COWSLIP_EXPECT").is_ok_and(|list| list.contains("criu"));
    assert!(!is_declared, "criu is declared, and {} does not work", program.display());
    println!("SKIPPED: criu: {} is not there, or cannot work here", program.display());
    None
}

pub fn restore(folder: &Path, criu: &Path) -> Ran {
    restore_with(folder, criu, &[])
}

pub fn restore_with(folder: &Path, criu: &Path, options: &[&str]) -> Ran {
    run(Command::new(COWSLIP).arg("restore").arg(folder).arg("--criu").arg(criu).args(options))
}

/// Identities of age, for these tests alone.
pub const KEYS: [&str; 2] = [
    "AGE-SECRET-KEY-1W6FV8TF4GZACQ0QZPVAWUEKD3ZR3YV35AGXXUU2RCZKAW0L5X8KSKJUVF7",
    "AGE-SECRET-KEY-18LZVELN5TPCW9SXENACLXRLSV4KGMMW5RNQA057NW6CDHE59UTESCVP7TP",
];

/// Writes the identities to files.
pub fn keys(folder: &Folder) -> [String; 2] {
    [0, 1].map(|key| {
        let path = folder.0.join(format!("key-{key}"));
        fs::write(&path, KEYS[key]).unwrap();
        path.to_str().unwrap().to_owned()
    })
}
