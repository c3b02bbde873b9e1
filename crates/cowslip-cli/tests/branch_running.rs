//! `cowslip branch` of programs without a branch point: copies with all threads, and with files of their own.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::process::redis_is_there;
use support::python::{OTHER_USER, PYTHON, Program};
use support::redis::Server;
use support::working::Working;
use support::{COWSLIP, Ran, run};

const PATIENCE: Duration = Duration::from_secs(60);

/// A program with a state of many kinds. For each line of its input it uses all of them, and answers with the results.
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

/// The program, and a line of input for each of two copies.
fn start(user: Option<u32>) -> Option<Program> {
    start_by(&[PYTHON, "-c"], user)
}

fn start_by(starter: &[&str], user: Option<u32>) -> Option<Program> {
    let program = Program::start_by(starter, PROGRAM, user)?;
    for copy in 0..2 {
        fs::write(program.folder.0.join(format!("{copy}.in")), "say\n").unwrap();
    }
    Some(program)
}

/// Branches it; each copy gets one line.
fn branch(program: &Program, user: Option<u32>, arguments: &[&str]) -> Ran {
    let mut command = Command::new(COWSLIP);
    let file = |name| program.folder.0.join(name);
    command.args(["branch", &program.pid(), "--input"]).arg(file("%i.in"));
    command.arg("--output").arg(file("%i.out")).args(arguments);
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    run(&mut command)
}

fn answer_of(program: &Program, copy: u32) -> Value {
    let text = fs::read_to_string(program.folder.0.join(format!("{copy}.out"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The process numbers of the copies, as the command prints them with `--net`.
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
    let Some(mut program) = start(None) else { return };
    let pid = program.child.id();
    for round in 0..5 {
        let options = if round == 0 { vec!["-n", "2", "--net"] } else { vec!["-n", "2"] };
        let ran = branch(&program, None, &options);
        assert!(ran.status.success(), "{}", ran.stderr);
        for copy in 0..2 {
            let answer = answer_of(&program, copy);
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
    let answer = program.ask("say");
    check(&answer, pid);
    assert_eq!(answer["peer"], 1, "{answer}");
}

#[test]
fn copies_of_a_program_under_cowslip_run_are_like_others() {
    let starter = [COWSLIP, "run", "--threshold", "64K", "--", PYTHON, "-c"];
    let Some(mut program) = start_by(&starter, None) else { return };
    let pid = program.child.id();
    for _ in 0..5 {
        let ran = branch(&program, None, &["-n", "2", "--running"]);
        assert!(ran.status.success(), "{}", ran.stderr);
        for copy in 0..2 {
            let answer = answer_of(&program, copy);
            check(&answer, pid);
            assert_eq!(answer["peer"], "Broken pipe", "connections are closed");
        }
    }
    check(&program.ask("say"), pid);
}

/// Threads of the program are anywhere in its library when it is held.
#[test]
fn copies_go_on_with_work_in_the_library_of_cowslip_run() {
    const ROUNDS: usize = 5;
    let Some(mut working) = Working::start() else { return };
    let folder = working.folder.0.clone();
    let file = |name: &str| folder.join(name);
    (0..2).for_each(|copy| fs::write(file(&format!("{copy}.in")), "go on\n").unwrap());
    for round in 0..ROUNDS {
        let mut command = Command::new(COWSLIP);
        command.args(["branch", &working.pid(), "--running", "-n", "2", "--input"]);
        let ran = run(command.arg(file("%i.in")).arg("--output").arg(file("%i.out")));
        assert!(ran.status.success(), "round {round}: {}", ran.stderr);
        for copy in 0..2 {
            let said = fs::read_to_string(file(&format!("{copy}.out"))).unwrap();
            assert_eq!(said, "right\n", "round {round}, copy {copy}: {}", ran.stderr);
        }
        working.go_on();
    }
    working.end();
}

#[test]
fn a_user_branches_programs_of_its_own() {
    let Some(mut program) = start(Some(OTHER_USER)) else { return };
    let pid = program.child.id();
    let ran = branch(&program, Some(OTHER_USER), &[]);
    if ran.stderr.contains("make a PID namespace") {
        println!("SKIPPED: user namespaces: {}", ran.stderr);
        return;
    }
    assert!(ran.status.success(), "{}", ran.stderr);
    check(&answer_of(&program, 0), pid);
    let ran = branch(&program, None, &["-n", "1"]);
    assert!(ran.status.success(), "root, in a namespace of the program's user: {}", ran.stderr);
    check(&answer_of(&program, 0), pid);
    let only = serde_json::json!([OTHER_USER.to_string(), OTHER_USER.to_string(), "1"]);
    assert_eq!(
        answer_of(&program, 0)["users"],
        only,
        "the owner of the namespace may become no other"
    );
    check(&program.ask("say"), pid);
}

#[test]
fn a_copy_that_fails_leaves_nothing_and_the_program_goes_on() {
    let code = "import json, os, resource, sys\n\
        resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))\n\
        try:\n while True: os.dup(2)\n\
        except OSError: pass\n\
        print('ready', flush=True)\n\
        print(json.dumps(sys.stdin.readline()), flush=True)";
    let Some(mut program) = Program::start(code, None) else { return };
    let pid = program.pid();
    for _ in 0..3 {
        let ran = run(Command::new(COWSLIP).args(["branch", &pid]));
        assert_eq!(ran.status.code(), Some(125), "{}", ran.stderr);
        assert!(ran.stderr.contains("Too many open files"), "{}", ran.stderr);
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        assert_eq!(children, "", "no holder stays");
    }
    assert_eq!(program.ask("it goes on"), "it goes on\n");
}

/// A set takes no file, and no `/dev/null`: the program would never read them.
#[test]
fn a_copy_that_waits_for_its_input_in_a_set_reads_a_file_to_its_end() {
    let code = "import os, select, sys\n\
        watch = select.epoll()\n\
        watch.register(0, select.EPOLLIN)\n\
        print('ready', flush=True)\n\
        while watch.poll() and (text := os.read(0, 1000)):\n \
         os.write(1, text.upper())\n\
        os.write(1, b' The end.')";
    let Some(program) = Program::start(code, None) else { return };
    // More than a pipe holds.
    fs::write(program.folder.0.join("0.in"), "word ".repeat(1 << 17)).unwrap();
    fs::write(program.folder.0.join("1.in"), "").unwrap();
    let output =
        |copy: u32| fs::read_to_string(program.folder.0.join(format!("{copy}.out"))).unwrap();
    let ran = branch(&program, None, &["-n", "2"]);
    assert!(ran.status.success(), "{}", ran.stderr);
    assert_eq!((output(0), output(1)), ("WORD ".repeat(1 << 17) + " The end.", " The end.".into()));
    let mut without_input = Command::new(COWSLIP);
    without_input.args(["branch", &program.pid(), "-n", "2", "--output"]);
    let ran = run(without_input.arg(program.folder.0.join("%i.out")));
    assert!(ran.status.success(), "{}", ran.stderr);
    assert_eq!((output(0), output(1)), (" The end.".into(), " The end.".into()));
}

#[test]
fn what_cannot_be_is_refused() {
    let Some(mut program) = start(None) else { return };
    let ran = branch(&program, None, &["argument"]);
    assert!(!ran.status.success());
    assert!(ran.stderr.contains("have its arguments"), "{}", ran.stderr);
    let ran = branch(&program, Some(OTHER_USER), &[]);
    assert!(ran.stderr.contains("not be traced"), "{}", ran.stderr);
    check(&program.ask("say"), program.child.id());
}

#[test]
fn copies_end_with_the_command_and_the_program_goes_on() {
    let Some(mut program) = start(None) else { return };
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
    check(&program.ask("say"), program.child.id());
}

#[test]
fn copies_of_redis_answer_each_for_itself() {
    if !redis_is_there() {
        return;
    }
    copies_answer(&Server::stock("branch-redis", &[]));
}

#[test]
fn copies_of_redis_under_cowslip_run_save_each_for_itself() {
    if !redis_is_there() {
        return;
    }
    let server = Server::under_cowslip("branch-redis-run", &[]);
    copies_answer(&server);
    no_child_is_watched(server.pid());
    server.fill(100_000, 100);
    let digest = server.digest();
    let mut branch = start_copies(&server, 2);
    let pids = copies(&mut branch, 2);
    // The server goes on, and so do its saves.
    assert_eq!(server.ask(&["flushall"]), "OK");
    server.fill(50_000, 200);
    server.save();
    assert_eq!(server.digest_of_dump("branch-redis-dump"), server.digest());
    for pid in &pids {
        assert_eq!(ask_copy(&server, pid, &["debug", "digest"]), digest);
        assert_eq!(ask_copy(&server, pid, &["flushall"]), "OK");
        assert_eq!(ask_copy(&server, pid, &["debug", "populate", "20000", "k", "300"]), "OK");
        let own = ask_copy(&server, pid, &["debug", "digest"]);
        assert_eq!(ask_copy(&server, pid, &["save"]), "OK");
        assert_eq!(ask_copy(&server, pid, &["debug", "reload"]), "OK");
        assert_eq!(ask_copy(&server, pid, &["debug", "digest"]), own);
        ask_copy(&server, pid, &["shutdown", "nosave"]);
    }
    assert!(branch.wait().unwrap().success());
}

/// A hold has started the service thread, though the server has an allocator of its own and has not forked: it lets go of holders
/// that have ended, and thaws.
fn no_child_is_watched(pid: i32) {
    let is_watch = |link: fs::DirEntry| {
        fs::read_link(link.path()).is_ok_and(|file| file.to_string_lossy().contains("[pidfd]"))
    };
    let watches = || fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten().any(is_watch);
    let deadline = Instant::now() + PATIENCE;
    while watches() {
        assert!(Instant::now() < deadline, "never: descriptors of ended children are closed");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Starts copies of a server, each in a network of its own.
fn start_copies(server: &Server, count: usize) -> Child {
    let mut command = Command::new(COWSLIP);
    command.args(["branch", &server.pid().to_string(), "-n", &count.to_string(), "--net"]);
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

fn ask_copy(server: &Server, pid: &str, words: &[&str]) -> String {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{pid}/ns/net")).args(["redis-cli", "-p"]);
    run(command.arg(server.port.to_string()).args(words)).stdout.trim().to_owned()
}

/// Each copy writes its own log of changes, and loads it again.
#[test]
fn copies_of_redis_log_changes_each_in_its_own_folder() {
    if !redis_is_there() {
        return;
    }
    let server =
        Server::stock("branch redis log", &["--appendonly", "yes", "--appendfsync", "always"]);
    server.ask(&["set", "of", "the instant"]);
    let mut command = Command::new(COWSLIP);
    command.args(["branch", &server.pid().to_string(), "-n", "2", "--net", "--private"]);
    command.arg(server.folder()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut branch = command.spawn().unwrap();
    let pids = copies(&mut branch, 2);
    for pid in &pids {
        assert_eq!(ask_copy(&server, pid, &["set", "of", pid]), "OK");
        assert_eq!(ask_copy(&server, pid, &["set", pid, "new"]), "OK");
    }
    assert_eq!(server.ask(&["set", "program", "new"]), "OK");
    for pid in &pids {
        assert_eq!(ask_copy(&server, pid, &["debug", "loadaof"]), "OK");
        assert_eq!(ask_copy(&server, pid, &["get", "of"]), *pid);
        assert_eq!(ask_copy(&server, pid, &["dbsize"]), "2");
        ask_copy(&server, pid, &["shutdown", "nosave"]);
    }
    assert!(branch.wait().unwrap().success());
    assert_eq!(server.ask(&["debug", "loadaof"]), "OK");
    assert_eq!(server.ask(&["get", "of"]), "the instant");
    assert_eq!(server.ask(&["dbsize"]), "2");
}

/// The memory of a program that has not asked for huge pages is promoted, and the program is branched where it cannot be.
#[test]
fn a_program_is_promoted_before_it_is_branched() {
    let Some(mut program) = start(None) else { return };
    let ran = branch(&program, None, &["-n", "1", "--promote"]);
    assert!(ran.status.success(), "{}", ran.stderr);
    let line = ran.stderr.lines().find(|line| line.contains("promoted process "));
    let is_denied = ran.stderr.contains("not promoted: ");
    assert!(line.is_some_and(|line| line.contains(" is huge, ")) || is_denied, "{}", ran.stderr);
    check(&answer_of(&program, 0), program.child.id());
    check(&program.ask("say"), program.child.id());
}

fn copies_answer(server: &Server) {
    server.ask(&["debug", "populate", "100000"]);
    server.ask(&["set", "key", "of the instant"]);
    let mut branch = start_copies(server, 3);
    let pids = copies(&mut branch, 3);
    server.ask(&["set", "key", "of later"]);
    let ask = |pid: &str, words: &[&str]| ask_copy(server, pid, words);
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
