//! `cowslip mark` and `cowslip rollback`: a running program is taken back in place.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::process::redis_is_there;
use support::redis::Server;
use support::{COWSLIP, Folder, Ran, run};

const PATIENCE: Duration = Duration::from_secs(60);

/// A program that says its state, or changes it, for each line of its input.
const PROGRAM: &str = r#"
import hashlib, json, os, sys, threading, time
with open(sys.argv[1] + '/data', 'w') as new:
    new.write('0123456789' * 100)
data = open(sys.argv[1] + '/data', 'rb', buffering=0)
data.read(5)
count = os.eventfd(3, os.EFD_NONBLOCK)
pairs, lock = [[0, 0] for _ in range(4)], threading.Lock()
def work(pair):
    while True:
        with lock:
            pair[0] += 1
            pair[1] -= 1
        time.sleep(0.0005)
threads = [threading.Thread(target=work, args=(pair,), daemon=True) for pair in pairs]
[thread.start() for thread in threads]
memory, more, changes = bytearray(b'cowslip!' * (1 << 20)), [], 0
def live():
    before = [pair[0] for pair in pairs]
    while any(pair[0] <= then for pair, then in zip(pairs, before)):
        time.sleep(0.001)
    return True
print('ready', flush=True)
for line in iter(sys.stdin.readline, ''):
    if line == 'change\n':
        changes += 1
        memory[changes * 4096:(changes + 500) * 4096] = os.urandom(500 * 4096)
        more += [bytearray(os.urandom(1 << size)) for size in range(26)]
        data.read(7)
        os.eventfd_write(count, 2)
        opened = open('/dev/null')
        more.append(opened)
    if line == 'thread\n':
        stop = threading.Event()
        threading.Thread(target=stop.wait, daemon=True).start()
    if line == 'end\n':
        stop.set()
        while threading.active_count() > 5:
            time.sleep(0.001)
    with lock:
        added, left = sum(pair[0] for pair in pairs), sum(sum(pair) for pair in pairs)
    number = os.eventfd_read(count)
    os.eventfd_write(count, number)
    print(json.dumps({
        'changes': changes, 'added': added, 'left': left, 'more': len(more), 'live': live(),
        'memory': hashlib.sha256(memory).hexdigest(), 'offset': os.lseek(data.fileno(), 0, os.SEEK_CUR),
        'count': number, 'descriptors': len(os.listdir('/proc/self/fd')),
    }), flush=True)
"#;

struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    _folder: Folder,
}

impl Program {
    fn start() -> Option<Self> {
        const PYTHON: &str = "/usr/bin/python3";
        if !Path::new(PYTHON).exists() {
            println!("SKIPPED: python: {PYTHON} is not there");
            return None;
        }
        let folder = Folder::new("mark");
        let mut command = Command::new(PYTHON);
        command.args(["-c", PROGRAM]).arg(&folder.0);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut program = Self { child, input, output: BufReader::new(output), _folder: folder };
        assert_eq!(program.line(), "ready");
        Some(program)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// What it says after a line of input, and the sum of its threads' counts.
    fn ask(&mut self, line: &str) -> (Value, u64) {
        writeln!(self.input, "{line}").unwrap();
        let mut answer: Value = serde_json::from_str(&self.line()).unwrap();
        let added = answer.as_object_mut().unwrap().remove("added").unwrap();
        (answer, added.as_u64().unwrap())
    }

    fn cowslip(&self, command: &str, options: &[&str]) -> Ran {
        run(Command::new(COWSLIP).args([command, &self.child.id().to_string()]).args(options))
    }

    /// Waits until its threads have counted on.
    fn wait_counted(&mut self, to: u64) -> u64 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (_, added) = self.ask("say");
            if added >= to {
                return added;
            }
            assert!(Instant::now() < deadline, "never: {to}");
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn good(ran: &Ran) {
    assert!(ran.status.success(), "{}", ran.stderr);
}

#[test]
fn a_program_is_taken_back_again_and_again() {
    let Some(mut program) = Program::start() else { return };
    let (before, added) = program.ask("change");
    let ran = program.cowslip("mark", &[]);
    good(&ran);
    assert!(ran.stdout.contains("5 threads"), "{}", ran.stdout);
    for _ in 0..5 {
        for _ in 0..3 {
            let (changed, _) = program.ask("change");
            assert_ne!(changed, before);
        }
        let later = program.wait_counted(added + 4_000);
        let ran = program.cowslip("rollback", &["--json"]);
        good(&ran);
        let done: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert!(done["bytes"].as_u64().unwrap() >= 2 << 20, "{done}");
        let (after, added) = program.ask("say");
        assert_eq!(after, before);
        assert!(added < later, "its threads are as then, too");
    }
    good(&program.cowslip("mark", &["--drop"]));
    let ran = program.cowslip("rollback", &[]);
    assert_eq!(ran.status.code(), Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("is not marked"), "{}", ran.stderr);
    assert_eq!(program.ask("say").0, before);
}

#[test]
fn output_that_others_write_is_not_written_over() {
    let folder = Folder::new("mark-output");
    let (path, cowslip) = (folder.0.join("log"), COWSLIP);
    let script = format!(
        "sleep 1000 & echo one; {cowslip} mark $! --json /dev/null && echo two; \
         {cowslip} rollback $! --json /dev/null && echo three; kill $!"
    );
    let log = std::fs::File::create(&path).unwrap();
    let status = Command::new("sh").args(["-c", &script]).stdout(log).status().unwrap();
    assert!(status.success());
    assert_eq!(std::fs::read_to_string(path).unwrap(), "one\ntwo\nthree\n");
}

#[test]
fn threads_that_have_come_since_end() {
    let Some(mut program) = Program::start() else { return };
    let (before, _) = program.ask("say");
    good(&program.cowslip("mark", &[]));
    let task = format!("/proc/{}/task", program.child.id());
    let threads = || std::fs::read_dir(&task).unwrap().count();
    assert_eq!(threads(), 5);
    for _ in 0..3 {
        program.ask("thread");
        program.ask("change");
        program.ask("thread");
        assert_eq!(threads(), 7);
        good(&program.cowslip("rollback", &[]));
        assert_eq!((threads(), program.ask("say").0), (5, before.clone()));
    }
}

#[test]
fn a_program_whose_threads_are_gone_is_left_as_it_is() {
    let Some(mut program) = Program::start() else { return };
    program.ask("thread");
    good(&program.cowslip("mark", &[]));
    let ran = program.cowslip("mark", &[]);
    assert!(ran.stderr.contains("marked already"), "{}", ran.stderr);
    program.ask("change");
    let (changed, _) = program.ask("end");
    let ran = program.cowslip("rollback", &[]);
    assert_eq!(ran.status.code(), Some(3), "{}", ran.stderr);
    assert!(ran.stderr.contains("threads have ended since"), "{}", ran.stderr);
    assert_eq!(program.ask("say").0, changed);
    let pid = program.child.id().to_string();
    let listed = || run(Command::new(COWSLIP).args(["mark", "--list"])).stdout;
    assert!(listed().lines().any(|line| line == pid));
    drop(program);
    let deadline = Instant::now() + PATIENCE;
    while listed().lines().any(|line| line == pid) {
        assert!(Instant::now() < deadline, "never: the mark ends with its program");
    }
}

/// A process of another user that listens at an abstract name, until its standard input ends.
fn foreign_listener(name: &str) -> Option<Child> {
    const NOBODY: u32 = 65534;
    let code = "import socket, sys\n\
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
        listener.bind('\\0' + sys.argv[1]); listener.listen()\n\
        print('listens', flush=True); sys.stdin.read()";
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", code, name]).uid(NOBODY).gid(NOBODY);
    let Ok(mut child) = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
        println!("SKIPPED: python: it is not there");
        return None;
    };
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "listens\n");
    Some(child)
}

#[test]
fn a_name_that_another_user_took_is_not_believed() {
    let pid = std::process::id().to_string();
    let Some(mut listener) = foreign_listener(&format!("cowslip-mark-{pid}")) else { return };
    let ran = run(Command::new(COWSLIP).args(["rollback", &pid]));
    assert_eq!(ran.status.code(), Some(4), "{}", ran.stderr);
    assert!(ran.stderr.contains("not that user's to keep"), "{}", ran.stderr);
    let ran = run(Command::new(COWSLIP).args(["mark", &pid]));
    assert!(ran.stderr.contains("another user has taken the name"), "{}", ran.stderr);
    drop(listener.stdin.take());
    assert!(listener.wait().unwrap().success());
    let name = format!("taken-{pid}");
    let Some(mut listener) = foreign_listener(&format!("cowslip-warm-0-{name}")) else { return };
    let ran = run(Command::new(COWSLIP).args(["start", &name]));
    assert!(ran.stderr.contains("is kept by user 65534"), "{}", ran.stderr);
    drop(listener.stdin.take());
    assert!(listener.wait().unwrap().success());
}

#[test]
fn redis_forgets_what_came_after_the_mark() {
    if !redis_is_there() {
        return;
    }
    let server = Server::stock("mark-redis", &[]);
    server.fill(100_000, 100);
    let digest = server.digest();
    let pid = server.pid().to_string();
    good(&run(Command::new(COWSLIP).args(["mark", &pid])));
    for round in 0..3 {
        server.ask(&["set", "new", &round.to_string()]);
        server.ask(&["flushall", "async"]);
        server.fill(1000, 10);
        assert_ne!(server.digest(), digest);
        good(&run(Command::new(COWSLIP).args(["rollback", &pid])));
        assert_eq!(server.digest(), digest);
    }
}
