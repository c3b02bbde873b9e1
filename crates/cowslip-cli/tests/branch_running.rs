//! `cowslip branch` of programs without a branch point: copies with all threads, and with files of their own.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::process::redis_is_there;
use support::redis::Server;
use support::{COWSLIP, Folder, Ran, run};

const PATIENCE: Duration = Duration::from_secs(60);
const NOBODY: u32 = 65534;

/// A program with a state of many kinds. For each line of its input it uses all of it, and says what it found.
const PROGRAM: &str = r#"
import json, os, select, socket, sys, threading, time
folder = sys.argv[1]
with open(folder + '/data', 'w') as new:
    new.write('0123456789')
data = open(folder + '/data', 'rb', buffering=0)
data.read(5)
count = os.eventfd(3, os.EFD_NONBLOCK)
read, write = os.pipe()
os.write(write, b'waiting')
one, other = socket.socketpair()
server = socket.create_server(('127.0.0.1', 0))
port = server.getsockname()[1]
client = socket.create_connection(('127.0.0.1', port))
served = server.accept()[0]
watch = select.epoll()
watch.register(count, select.EPOLLIN)
pairs, lock = [[0, 0] for _ in range(4)], threading.Lock()
def work(pair):
    while True:
        with lock:
            pair[0] += 1
            pair[1] -= 1
        time.sleep(0.0005)
threads = [threading.Thread(target=work, args=(pair,), daemon=True) for pair in pairs]
[thread.start() for thread in threads]
memory = bytearray(b'cowslip!' * (1 << 20))
def counts():
    with lock:
        return [pair[0] for pair in pairs]
def go_on():
    before = counts()
    while any(now <= then for now, then in zip(counts(), before)):
        time.sleep(0.001)
    return True
def try_to(call):
    try:
        return call()
    except OSError as error:
        return error.strerror
def connect():
    with socket.create_connection(('127.0.0.1', port)):
        return 'connected'
print('ready', flush=True)
while sys.stdin.readline():
    one.send(b'pair')
    print(json.dumps({
        'pid': os.getpid(),
        'task': os.readlink('/proc/self'),
        'threads_go_on': go_on(),
        'left': sum(sum(pair) for pair in pairs),
        'memory': memory == b'cowslip!' * (1 << 20),
        'ready': watch.poll(0) == [(count, select.EPOLLIN)],
        'count': try_to(lambda: os.eventfd_read(count)),
        'data': data.read(3).decode(),
        'pipe': os.read(read, 100).decode(),
        'pair': other.recv(100).decode(),
        'peer': try_to(lambda: served.send(b'x')),
        'port': server.getsockname()[1] == port,
        'own_port': try_to(connect),
        'listens_at': server.getsockname()[0],
        'users': open('/proc/self/uid_map').read().split(),
    }), flush=True)
"#;

struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    folder: Folder,
}

impl Program {
    /// Debian's Python, of a user.
    fn start(user: Option<u32>) -> Option<Self> {
        const PYTHON: &str = "/usr/bin/python3";
        if !Path::new(PYTHON).exists() {
            println!("SKIPPED: python: {PYTHON} is not there");
            return None;
        }
        let folder = Folder::new("branch-running");
        let mut command = Command::new(PYTHON);
        command.args(["-c", PROGRAM]).arg(&folder.0);
        if let Some(user) = user {
            std::os::unix::fs::chown(&folder.0, Some(user), Some(user)).unwrap();
            command.uid(user).gid(user);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut program = Self { child, input, output: BufReader::new(output), folder };
        assert_eq!(program.line(), "ready");
        for copy in 0..2 {
            fs::write(program.file(&format!("{copy}.in")), "say\n").unwrap();
        }
        Some(program)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    /// Branches it; each copy gets one line.
    fn branch(&self, user: Option<u32>, arguments: &[&str]) -> Ran {
        let mut command = Command::new(COWSLIP);
        command.args(["branch", &self.child.id().to_string(), "--input"]).arg(self.file("%i.in"));
        command.arg("--output").arg(self.file("%i.out")).args(arguments);
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        run(&mut command)
    }

    fn answer_of(&self, copy: u32) -> Value {
        let text = fs::read_to_string(self.file(&format!("{copy}.out"))).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// The program's own answer.
    fn answer(&mut self) -> Value {
        self.input.write_all(b"say\n").unwrap();
        serde_json::from_str(&self.line()).unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The numbers of the copies, which a branch with networks of their own says.
fn copies(branch: &mut Child, count: usize) -> Vec<String> {
    let lines = BufReader::new(branch.stderr.take().unwrap()).lines().map(Result::unwrap);
    let of_line = |line: String| {
        let (_, rest) = line.strip_prefix("cowslip: copy ")?.split_once(" is process ")?;
        Some(rest.split_once(':')?.0.to_owned())
    };
    lines.filter_map(of_line).take(count).collect()
}

/// The state of the instant.
fn check(answer: &Value, pid: u32) {
    for (name, value) in [
        ("pid", Value::from(pid)),
        ("threads_go_on", true.into()),
        ("left", 0.into()),
        ("memory", true.into()),
        ("ready", true.into()),
        ("count", 3.into()),
        ("data", "567".into()),
        ("pipe", "waiting".into()),
        ("pair", "pair".into()),
    ] {
        assert_eq!(answer[name], value, "{name}: {answer}");
    }
}

#[test]
fn copies_have_threads_and_files_of_their_own() {
    let Some(mut program) = Program::start(None) else { return };
    let pid = program.child.id();
    for round in 0..5 {
        let options = if round == 0 { vec!["-n", "2", "--net"] } else { vec!["-n", "2"] };
        let ran = program.branch(None, &options);
        assert!(ran.status.success(), "{}", ran.stderr);
        for copy in 0..2 {
            let answer = program.answer_of(copy);
            check(&answer, pid);
            assert_eq!(answer["task"], pid.to_string(), "its own numbers are in /proc");
            assert_eq!(answer["peer"], "Broken pipe", "connections are closed");
            assert_eq!(answer["port"], round == 0, "{answer}");
            let has_own = answer["own_port"] == "connected";
            assert!(has_own, "its own in a network of its own, else the program's: {answer}");
            assert_eq!(answer["listens_at"], "127.0.0.1", "not everywhere");
        }
    }
    // Copies took nothing of the program's.
    let answer = program.answer();
    check(&answer, pid);
    assert_eq!(answer["peer"], 1, "{answer}");
}

#[test]
fn a_user_branches_programs_of_its_own() {
    let Some(mut program) = Program::start(Some(NOBODY)) else { return };
    let pid = program.child.id();
    let ran = program.branch(Some(NOBODY), &[]);
    if ran.stderr.contains("make a PID namespace") {
        println!("SKIPPED: user namespaces: {}", ran.stderr);
        return;
    }
    assert!(ran.status.success(), "{}", ran.stderr);
    check(&program.answer_of(0), pid);
    let ran = program.branch(None, &["-n", "1"]);
    assert!(ran.status.success(), "root, in a namespace with all users: {}", ran.stderr);
    check(&program.answer_of(0), pid);
    let only = serde_json::json!([NOBODY.to_string(), NOBODY.to_string(), "1"]);
    assert_eq!(
        program.answer_of(0)["users"],
        only,
        "the owner of the namespace may become no other"
    );
    check(&program.answer(), pid);
}

#[test]
fn a_copy_that_fails_leaves_nothing_and_the_program_goes_on() {
    let code = "import os, resource, sys\n\
        resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))\n\
        try:\n while True: os.dup(2)\n\
        except OSError: pass\n\
        print('full', flush=True)\n\
        print(sys.stdin.readline(), flush=True)";
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", code]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        println!("SKIPPED: python: it is not there");
        return;
    };
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(output.next().as_deref(), Some("full"));
    let pid = child.id().to_string();
    for _ in 0..3 {
        let ran = run(Command::new(COWSLIP).args(["branch", &pid]));
        assert_eq!(ran.status.code(), Some(125), "{}", ran.stderr);
        assert!(ran.stderr.contains("Too many open files"), "{}", ran.stderr);
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        assert_eq!(children, "", "no holder stays");
    }
    writeln!(child.stdin.take().unwrap(), "it goes on").unwrap();
    assert_eq!(output.next().as_deref(), Some("it goes on"));
    assert!(child.wait().unwrap().success());
}

#[test]
fn what_cannot_be_is_refused() {
    let Some(mut program) = Program::start(None) else { return };
    let ran = program.branch(None, &["argument"]);
    assert!(!ran.status.success());
    assert!(ran.stderr.contains("its copies have its arguments"), "{}", ran.stderr);
    let ran = program.branch(Some(NOBODY), &[]);
    assert!(ran.stderr.contains("not be traced"), "{}", ran.stderr);
    check(&program.answer(), program.child.id());
}

#[test]
fn copies_end_with_the_command_and_the_program_goes_on() {
    let Some(mut program) = Program::start(None) else { return };
    let mut command = Command::new(COWSLIP);
    command.args(["branch", &program.child.id().to_string(), "--net"]);
    // An input that never ends: the copy waits.
    let mut branch = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pids = copies(&mut branch, 1);
    let live = || pids.iter().filter(|pid| Path::new(&format!("/proc/{pid}")).exists()).count();
    assert_eq!((pids.len(), live()), (1, 1));
    branch.kill().unwrap();
    branch.wait().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while live() > 0 {
        assert!(Instant::now() < deadline, "never: the copies end");
        std::thread::sleep(Duration::from_millis(1));
    }
    check(&program.answer(), program.child.id());
}

#[test]
fn copies_of_redis_answer_each_for_itself() {
    if !redis_is_there() {
        return;
    }
    let server = Server::stock("branch-redis", &[]);
    server.ask(&["debug", "populate", "100000"]);
    server.ask(&["set", "key", "of the instant"]);
    let mut command = Command::new(COWSLIP);
    command.args(["branch", &server.pid().to_string(), "-n", "3", "--net"]);
    let mut branch = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let pids = copies(&mut branch, 3);
    server.ask(&["set", "key", "of later"]);
    let ask = |pid: &str, words: &[&str]| {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{pid}/ns/net")).args(["redis-cli", "-p"]);
        run(command.arg(server.port.to_string()).args(words)).stdout.trim().to_owned()
    };
    for (i, pid) in pids.iter().enumerate() {
        assert_eq!(ask(pid, &["get", "key"]), "of the instant");
        ask(pid, &["set", "key", &i.to_string()]);
        assert_eq!(ask(pid, &["dbsize"]), "100001");
        // A thread beside the main one.
        assert_eq!(ask(pid, &["flushall", "async"]), "OK");
    }
    for (i, pid) in pids.iter().enumerate() {
        assert_eq!(ask(pid, &["dbsize"]), "0", "{i}");
        ask(pid, &["shutdown", "nosave"]);
    }
    assert!(branch.wait().unwrap().success());
    assert_eq!(server.ask(&["get", "key"]).trim(), "of later");
    assert_eq!(server.ask(&["dbsize"]).trim(), "100001");
}
