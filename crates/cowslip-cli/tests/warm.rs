//! `cowslip warm` and `cowslip start`: copies go on from a point, each with its start's streams, folder and arguments.

mod support;

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cowslip_sys::{AsFd, packets, process, socket};
use serde_json::Value;
use support::python::{self, PYTHON};
use support::{COWSLIP, Folder, run};

/// A program that reads its job, and prints its own state.
const PROGRAM: &str = r#"
import json, os, sys, threading, time
turns = [0]
def turn():
    while True:
        turns[0] += 1
        time.sleep(0.0005)
threading.Thread(target=turn, daemon=True).start()
state = list(range(100000))
with os.fdopen(int(os.environ['COWSLIP_WARM_FD'])) as job:
    job = json.load(job)
before = turns[0]
while turns[0] == before:
    time.sleep(0.001)
if job['arguments'][0] == 'exit':
    os._exit(int(job['arguments'][1]))
if job['arguments'][0] == 'wait':
    print('waiting', flush=True)
    time.sleep(1000)
print(json.dumps({
    'arguments': job['arguments'], 'variable': job['environment'].get('OF_START'), 'seed': job['seed'],
    'folder': os.getcwd(), 'input': sys.stdin.read(), 'state': sum(state), 'threads': threading.active_count(),
    'descriptors': sorted(os.listdir('/proc/self/fd'), key=int)[:-1],
}))
"#;

struct Warm {
    child: Child,
    name: String,
}

impl Warm {
    fn start(name: &str, options: &[&str], command: &[&str]) -> Self {
        let name = format!("test-{name}-{}", std::process::id());
        let mut warm = Command::new(COWSLIP);
        warm.args(["warm", &name]).args(options).arg("--").args(command);
        let mut child = warm.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let line = lines.find(|line| line.contains(" is warm after "));
        // Later lines are read, too: its pipe must not fill.
        std::thread::spawn(move || lines.for_each(drop));
        assert!(line.is_some(), "{:?}", child.wait());
        Self { child, name }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(COWSLIP);
        command.args(["start", &self.name]).args(arguments);
        command
    }
}

impl Drop for Warm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn each_start_has_its_own_arguments_streams_and_folder() {
    if !python::is_there() {
        return;
    }
    let warm = Warm::start("job", &[], &[PYTHON, "-c", PROGRAM]);
    let (mut seeds, mut descriptors) = (HashSet::new(), HashSet::new());
    for round in 0..5 {
        let folder = Folder::new("start");
        let word = format!("round {round}");
        let mut command = warm.command(&["--", &word, "--flag"]);
        command.current_dir(&folder.0).env("OF_START", &word);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(word.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{:?}", output.status);
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(said["arguments"], serde_json::json!([word, "--flag"]));
        assert_eq!((&said["variable"], &said["input"]), (&word.clone().into(), &word.into()));
        assert_eq!(said["folder"], folder.0.to_str().unwrap());
        assert_eq!((&said["state"], &said["threads"]), (&4_999_950_000_u64.into(), &2.into()));
        descriptors.insert(said["descriptors"].to_string());
        assert!(seeds.insert(said["seed"].to_string()), "{said}");
    }
    assert_eq!(descriptors.len(), 1, "none stays open from start to start: {descriptors:?}");
    assert_eq!(run(&mut warm.command(&["--", "exit", "7"])).status.code(), Some(7));
    let listed = run(Command::new(COWSLIP).args(["start", "--list"])).stdout;
    assert!(listed.lines().any(|name| name == warm.name), "{listed}");
}

#[test]
fn many_starts_run_side_by_side_and_end_with_theirs() {
    if !python::is_there() {
        return;
    }
    let warm = Warm::start("many", &[], &[PYTHON, "-c", PROGRAM]);
    let mut starts: Vec<Child> = (0..8)
        .map(|_| warm.command(&["--", "wait"]).stdout(Stdio::piped()).spawn().unwrap())
        .collect();
    for start in &mut starts {
        let mut line = String::new();
        BufReader::new(start.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "waiting\n");
    }
    let signal = |start: &Child, signal: &str| {
        run(Command::new("kill").args([signal, &start.id().to_string()]));
    };
    for (start, name) in starts.iter_mut().zip(["-TERM", "-INT"]) {
        signal(start, name);
        assert!(!start.wait().unwrap().success());
    }
    // Its copy ends with it: nothing holds its output open.
    for start in &mut starts[2..] {
        start.kill().unwrap();
        start.wait().unwrap();
        let mut rest = Vec::new();
        std::io::Read::read_to_end(start.stdout.as_mut().unwrap(), &mut rest).unwrap();
    }
    assert_eq!(run(&mut warm.command(&["--", "exit", "0"])).status.code(), Some(0));
}

#[test]
fn programs_that_know_nothing_start_at_their_first_read() {
    let warm = Warm::start(
        "sh",
        &[],
        &["/bin/sh", "-c", "value=warm; read word code; echo $value $word; exit $code"],
    );
    for round in 0..3 {
        let mut start =
            warm.command(&[]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let line = format!("{round} {round}\n");
        start.stdin.take().unwrap().write_all(line.as_bytes()).unwrap();
        let output = start.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("warm {round}\n"));
        assert_eq!(output.status.code(), Some(round));
    }
    let ran = run(&mut warm.command(&["--", "argument"]));
    assert!(ran.stderr.contains("takes no arguments"), "{}", ran.stderr);
}

#[test]
fn each_start_has_a_folder_of_its_own() {
    let warm =
        Warm::start("private", &[], &["/bin/sh", "-c", "read word; echo $word >> said; cat said"]);
    let folder = Folder::new("start private");
    for word in ["one\n", "two\n"] {
        let mut command = warm.command(&["--private", "."]);
        command.current_dir(&folder.0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut start = command.spawn().unwrap();
        start.stdin.take().unwrap().write_all(word.as_bytes()).unwrap();
        let output = start.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), word);
    }
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 0, "they wrote nothing there");
    let ran = run(warm.command(&["--private", "missing"]).current_dir(&folder.0));
    assert!(ran.stderr.contains("No such file"), "{}", ran.stderr);
}

/// Node and others that wait for several files at a time never come to a read that waits.
#[test]
fn programs_that_wait_for_their_input_in_other_calls_are_at_their_read() {
    if !python::is_there() {
        return;
    }
    let folder = Folder::new("waits");
    let file = folder.0.join("input");
    std::fs::write(&file, "word").unwrap();
    for wait in [
        "watch = select.epoll(); watch.register(0, select.EPOLLIN); watch.poll()",
        "watch = select.poll(); watch.register(1, 0); watch.register(0); watch.poll()",
        "select.select([0, 1], [], [])",
    ] {
        let code = format!("import os, select\n{wait}\nprint(os.read(0, 9), os.read(0, 9))");
        let warm = Warm::start("waits", &[], &[PYTHON, "-c", &code]);
        let input = std::fs::File::open(&file).unwrap();
        let output = warm.command(&[]).stdin(input).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "b'word' b''\n", "{wait}");
    }
}

#[test]
fn a_start_before_the_point_ends_by_a_signal() {
    const SIGTERM: i32 = 15;
    let name = format!("test-never-{}", std::process::id());
    let mut warm = Command::new(COWSLIP);
    warm.args(["warm", &name, "--", "sleep", "1000"]);
    let mut warm = warm.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while !run(Command::new(COWSLIP).args(["start", "--list"])).stdout.contains(&name) {
        assert!(warm.try_wait().unwrap().is_none(), "it waits for the point");
    }
    let mut start = Command::new(COWSLIP).args(["start", &name]).spawn().unwrap();
    // Until it listens to them, a signal kills it.
    run(Command::new("kill").args(["-TERM", &start.id().to_string()]));
    let status = start.wait().unwrap();
    assert!(status.code() == Some(128 + SIGTERM) || status.signal() == Some(SIGTERM), "{status}");
    run(Command::new("kill").args(["-TERM", &warm.id().to_string()]));
    assert!(!warm.wait().unwrap().success());
}

/// Also one that reads nothing, which cannot see that its input has ended.
#[test]
fn a_program_ends_with_a_command_that_is_killed_before_the_point() {
    let (name, folder) = (format!("test-killed-{}", std::process::id()), Folder::new("killed"));
    let file = folder.0.join("number");
    let script = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000", file.display());
    let mut warm = Command::new(COWSLIP);
    warm.args(["warm", &name, "--until", "line:never", "--", "/bin/sh", "-c", &script]);
    let mut warm = warm.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let wait_until = |is_so: &dyn Fn() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    wait_until(&|| file.exists());
    let number = std::fs::read_to_string(file).unwrap();
    warm.kill().unwrap();
    warm.wait().unwrap();
    let stat = || std::fs::read_to_string(format!("/proc/{}/stat", number.trim()));
    wait_until(&|| stat().map_or(true, |stat| stat.contains(") Z")));
}

#[test]
fn other_points_and_their_ends() {
    if !python::is_there() {
        return;
    }
    let code = "import sys, time\nprint('loading')\nprint('now it is up', flush=True)\ntime.sleep(0.3)\nprint('copy', flush=True)";
    let warm = Warm::start("line", &["--until", "line:is up"], &[PYTHON, "-c", code]);
    let ran = run(&mut warm.command(&["--json", "/dev/stderr"]));
    assert_eq!(ran.stdout, "copy\n", "{}", ran.stderr);
    let result: Value = serde_json::from_str(&ran.stderr).unwrap();
    assert_eq!(result["exit_code"], 0);
    drop(warm);
    let refused = |options: &[&str], command: &[&str], why: &str| {
        let mut warm = Command::new(COWSLIP);
        let ran = run(warm.args(["warm", "test-refused"]).args(options).arg("--").args(command));
        assert!(!ran.status.success() && ran.stderr.contains(why), "{}", ran.stderr);
    };
    refused(&[], &["true"], "ended before its point");
    refused(&["--timeout", "0.2"], &["sleep", "60"], "did not come to its point");
    refused(&[], &["/nosuch"], "/nosuch");
    refused(&["--until", "elsewhere"], &["true"], "line:TEXT");
    let ran = run(Command::new(COWSLIP).args(["start", "nosuch"]));
    assert!(ran.stderr.contains("there is no warm program nosuch"), "{}", ran.stderr);
}

#[test]
fn a_start_of_another_version_is_refused() {
    let warm = Warm::start("version", &[], &["/bin/sh", "-c", "read word"]);
    let name = format!("cowslip-warm-{}-{}", process::effective_uid(), warm.name);
    for message in [r#"{"version": 1}"#, "{}", "no message"] {
        let connection = packets::connect_to_name(name.as_bytes()).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        socket::send(connection.as_fd(), message.as_bytes(), &[null.as_fd(); 4]).unwrap();
        let mut answer = [0; 1024];
        let (len, _) = socket::receive(connection.as_fd(), &mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer[..len]);
        assert!(answer.contains("another version"), "{message}: {answer}");
    }
    assert_eq!(run(&mut warm.command(&[])).status.code(), Some(1), "the read is at its end");
}

#[test]
fn it_ends_with_its_input_if_that_is_asked_for() {
    if !python::is_there() {
        return;
    }
    let name = format!("test-input-{}", std::process::id());
    let mut warm = Command::new(COWSLIP);
    warm.args(["warm", &name, "--while-input", "--", PYTHON, "-c", "input()"]);
    let mut child = warm.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains(" is warm after ")));
    let listed = || run(Command::new(COWSLIP).args(["start", "--list"])).stdout.contains(&name);
    // What comes is not looked at.
    child.stdin.as_mut().unwrap().write_all(&[b'x'; 1000]).unwrap();
    assert!(listed());
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success() && !listed());
}
