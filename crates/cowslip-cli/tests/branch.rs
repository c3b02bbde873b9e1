#![allow(unsafe_code)]
//! `cowslip branch`: copies of a warm program, their content and their inputs, and how they end.

mod support;

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cowslip::raw::branch::{Request, VERSION};
use cowslip::{Arena, Place, units::ByteCount};
use cowslip_sys::{AsFd, Errno, packets, socket};
use serde_json::Value;
use support::process::copy_program;
use support::{COWSLIP, Folder, Ran, compile, run};

const PATIENCE: Duration = Duration::from_secs(60);
const NOBODY: u32 = 65534;

/// A program that is ready to be branched; it is killed with this value.
struct Warm {
    child: Child,
    output: BufReader<ChildStdout>,
    folder: Folder,
}

impl Warm {
    /// Starts `tests/programs/branching.c`; `None`, reported as skipped, without a compiler.
    fn start(options: &[&str], arguments: &[&str]) -> Option<Self> {
        let folder = Folder::new("branch");
        let program = compile(&folder, "branching")?;
        let mut command = Command::new(COWSLIP);
        command.args(["run", "--quiet", "--log"]).arg(folder.0.join("log")).args(options);
        command.arg("--").arg(program).args(arguments);
        command.env("XDG_RUNTIME_DIR", &folder.0).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut warm = Self { child, output, folder };
        assert!(warm.line().ends_with("ready"));
        Some(warm)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap()
    }

    fn branch(&self, arguments: &[&str]) -> Ran {
        run(Command::new(COWSLIP).args(["branch", &self.pid()]).args(arguments))
    }

    /// Starts a branch with a copy that prints a line and goes on.
    fn branch_and_hear(&self, arguments: &[&str]) -> (Child, BufReader<ChildStdout>) {
        let mut command = Command::new(COWSLIP);
        command.args(["branch", &self.pid()]).args(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut heard = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        heard.read_line(&mut line).unwrap();
        assert!(line.starts_with("copy "), "{line}");
        (child, heard)
    }

    /// Releases the program, and returns the rest of its output.
    fn release(mut self) -> String {
        let told = self.branch(&["--release"]);
        assert!(told.status.success(), "{}", told.stderr);
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
        rest
    }

    fn sockets(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.file("cowslip-branch")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Warm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The digest of the program's state, like `fill` and `digest` of branching.c.
fn digest(mib: u64, added: u64) -> String {
    let words = (mib << 20) / 8;
    let word = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let plus = |i: u64| if i.is_multiple_of(512) { added } else { 0 };
    let sum = (0..words).fold(0u64, |sum, i| {
        sum.wrapping_add(word(i).wrapping_add(plus(i)).wrapping_mul(2 * i + 1))
    });
    format!("{sum:016x}")
}

/// Waits for another process.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

fn is_there(pid: &Value) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// The processes that a command supervises, found by the program's environment in them.
fn copies_of(warm: &Warm) -> Vec<u32> {
    let marker = format!("XDG_RUNTIME_DIR={}", warm.folder.0.display());
    let is_copy = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        *pid != warm.child.id() && String::from_utf8_lossy(&environment).contains(&marker)
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_copy).filter(|pid| is_there(&Value::from(*pid))).collect()
}

#[test]
fn each_copy_has_the_state_its_streams_and_its_number() {
    for options in [&[][..], &["--without-userfaultfd"], &["--arena-after", "1T"]] {
        let Some(warm) = Warm::start(options, &["content", "24"]) else { return };
        fs::write(warm.file("in1"), "for the second\n").unwrap();
        for number in ["0", "2"] {
            fs::write(warm.file(&format!("in{number}")), "").unwrap();
        }
        let pattern = |name: &str| warm.file(name).to_str().unwrap().to_owned();
        let branched = warm.branch(&[
            "-n",
            "3",
            "-e",
            "COLOUR=red=1",
            "--input",
            &pattern("in%i"),
            "--output",
            &pattern("out%i"),
            "--error",
            &pattern("errors"),
            "--json",
            "-",
        ]);
        assert_eq!(
            (branched.status.code(), branched.stderr.as_str()),
            (Some(0), ""),
            "{options:?}"
        );
        let whole: Value = serde_json::from_str(&branched.stdout).unwrap();
        assert!(whole["all_running_ns"].as_u64() > Some(0), "{whole}");
        for copy in 0..3 {
            let heard = warm.read(&format!("out{copy}"));
            let (before, after) = (digest(24, 0), digest(24, copy + 1));
            let read = if copy == 1 { "read: for the second\n" } else { "" };
            let wanted = format!(
                "copy {copy}: COWSLIP_BRANCH={copy} of 3, argument -, COLOUR=red=1\nbefore {before} after {after}\n{read}"
            );
            assert_eq!(heard, wanted, "{options:?}");
            let about = &whole["copies"][copy as usize];
            assert_eq!((&about["exit_code"], &about["signal"]), (&Value::from(0), &Value::Null));
        }
        let errors = warm.read("errors");
        assert!((0..3).all(|copy| errors.contains(&format!("errors of {copy}"))), "{errors}");
        let seeds: HashSet<_> =
            errors.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
        let is_seed =
            |seed: &&str| seed.len() == 64 && seed.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(seeds.len() == 3 && seeds.iter().all(is_seed), "{errors}");
        if options.is_empty() {
            let log = warm.read("log");
            assert!(log.contains("frozen in"), "the copies are the kernel's alone: {log}");
        }
        let wanted = format!("Operation canceled, 0, digest {}\n", digest(24, 0));
        assert_eq!(warm.release(), wanted, "the program has changed: {options:?}");
    }
}

/// Not a test: a Rust program that is branched.
#[test]
fn hooked() {
    if std::env::var_os(HOOKED).is_none() {
        return;
    }
    let arena = Arena::new(ByteCount::mib(4)).unwrap();
    let words = arena.slice::<u64>(512).unwrap();
    let template = arena.freeze().unwrap().into_template().unwrap();
    let mut clone = template.map(Place::Anywhere).unwrap();
    let place = words.range();
    clone.on_renewal(move |clone, identity| clone.values_mut::<u64>(place)[0] = identity.number());
    let clone = Arc::new(Mutex::new(clone));
    let theirs = Arc::clone(&clone);
    cowslip::on_branch(move |_| theirs.lock().unwrap().after_fork().unwrap());
    println!("\nready");
    // SAFETY: a copy needs only the memory of this thread, and ends here.
    let copy = unsafe { cowslip::branch_point(Some("hooked"), None) }.unwrap();
    if let Some(copy) = copy {
        let number = clone.lock().unwrap().values::<u64>(place)[0];
        println!("\ncopy {} {:?} {number}", copy.index, copy.seed);
        std::io::stdout().flush().unwrap();
        cowslip_sys::process::exit_now(0);
    }
}

const HOOKED: &str = "COWSLIP_TEST_HOOKED";

#[test]
fn copies_of_a_rust_program_have_a_seed_and_new_clones_each() {
    let folder = Folder::new("branch-hooked");
    let mut command = Command::new(COWSLIP);
    command.args(["run", "--quiet", "--"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "hooked", "--nocapture"]).env(HOOKED, "1");
    command.env("XDG_RUNTIME_DIR", &folder.0).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let mut warm = Warm { child, output, folder };
    while warm.line() != "ready" {}
    let branched = warm.branch(&["-n", "3"]);
    assert_eq!((branched.status.code(), branched.stderr.as_str()), (Some(0), ""));
    let copies = branched.stdout.lines().filter_map(|line| line.strip_prefix("copy "));
    let (seeds, numbers): (HashSet<_>, HashSet<_>) = copies
        .map(|line| (line.split(['[', ']']).nth(1), line.rsplit_once("] ").map(|(_, rest)| rest)))
        .unzip();
    assert_eq!((seeds.len(), numbers.len()), (3, 3), "{}", branched.stdout);
    warm.release();
}

#[test]
fn each_argument_has_its_copies_and_the_highest_exit_code_counts() {
    let Some(warm) = Warm::start(&[], &["obey"]) else { return };
    let branched = warm.branch(&["-n", "2", "exit 3", "exit 7"]);
    assert_eq!((branched.status.code(), branched.stderr.as_str()), (Some(7), ""));
    for (copy, code) in [(0, 3), (1, 3), (2, 7), (3, 7)] {
        let line =
            format!("copy {copy}: COWSLIP_BRANCH={copy} of 4, argument exit {code}, COLOUR=-\n");
        assert!(branched.stdout.contains(&line), "{}", branched.stdout);
    }
    let killed = warm.branch(&["exit 3", "abort"]);
    assert_eq!(killed.status.code(), Some(128 + 6));
    // Nothing of another copy's is passed to this one.
    let plain = warm.branch(&["exit 0"]);
    assert_eq!(plain.stdout, "copy 0: COWSLIP_BRANCH=0 of 1, argument exit 0, COLOUR=-\n");
}

#[test]
fn a_single_copy_reads_and_writes_where_the_command_does_and_repeats_nothing() {
    // Output in the program's buffers is not repeated.
    let Some(mut warm) = Warm::start(&[], &["content", "1", "echo"]) else { return };
    let mut command = Command::new(COWSLIP);
    let mut child = command
        .args(["branch", "echo"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"one\ntwo\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let told = format!("before {} after {}\nread: one\nread: two\n", digest(1, 0), digest(1, 1));
    assert!(said.starts_with("copy 0: ") && said.ends_with(&told), "{said}");
    assert!(String::from_utf8(output.stderr).unwrap().starts_with("errors of 0, seed "));
    let held_back = "held back Operation canceled";
    assert!(warm.branch(&["--release"]).status.success());
    assert!(warm.line().starts_with(held_back), "it has said it once");
}

#[test]
fn all_copies_of_a_busy_program_are_of_one_instant() {
    let Some(warm) = Warm::start(&[], &["instant", "32"]) else { return };
    for _ in 0..5 {
        let branched = warm.branch(&["-n", "6"]);
        let lines: Vec<&str> = branched.stdout.lines().collect();
        assert_eq!((branched.status.code(), lines.len()), (Some(0), 6), "{}", branched.stderr);
        assert!(lines.iter().all(|line| *line == lines[0]), "of several instants: {lines:?}");
        let counters: Vec<u64> = lines[0].split(' ').map(|word| word.parse().unwrap()).collect();
        assert!(counters[0] == counters[1] || counters[0] == counters[1] + 1, "{counters:?}");
    }
}

#[test]
fn a_program_that_never_waits_is_branched_when_it_looks() {
    let Some(warm) = Warm::start(&[], &["steps"]) else { return };
    let step = |ran: Ran| -> u64 {
        assert_eq!(ran.status.code(), Some(0), "{}", ran.stderr);
        ran.stdout.trim().strip_prefix("step ").unwrap().parse().unwrap()
    };
    let first = step(warm.branch(&[]));
    let second = step(run(Command::new(COWSLIP).args(["branch", "steps"])));
    assert!(second > first, "the program went on: {first}, {second}");
    assert_eq!(warm.release(), "");
}

#[test]
fn a_program_with_a_loop_of_events_is_woken() {
    let Some(warm) = Warm::start(&[], &["loop", "4"]) else { return };
    for _ in 0..2 {
        let branched = warm.branch(&[]);
        assert!(
            branched.stdout.contains(&format!("before {}", digest(4, 0))),
            "{}",
            branched.stdout
        );
    }
    let listed = run(Command::new(COWSLIP).args(["branch", "--list"])).stdout;
    let line = listed.lines().find(|line| line.contains(&warm.pid())).expect("a line of it");
    assert!(line.contains("loop") && line.contains("branching"), "{line}");
    assert_eq!(warm.release(), "");
}

#[test]
fn a_signal_goes_to_the_copies_and_a_handler_of_the_program_ends_its_call() {
    let Some(mut warm) = Warm::start(&[], &["signal"]) else { return };
    for (name, number) in [("-INT", 2), ("-TERM", 15)] {
        let (mut command, _heard) = warm.branch_and_hear(&["-n", "1", "wait"]);
        signal(command.id(), name);
        assert_eq!(command.wait().unwrap().code(), Some(128 + number));
    }
    // A signal to the program: the call returns like poll(2).
    signal(warm.child.id(), "-USR1");
    assert!(warm.line().starts_with("Interrupted system call, 1, "));
}

#[test]
fn copies_end_when_the_command_is_killed() {
    let Some(warm) = Warm::start(&[], &["obey"]) else { return };
    let (mut command, _heard) = warm.branch_and_hear(&["-n", "3", "wait"]);
    until("three copies and who answers for them", || copies_of(&warm).len() == 4);
    signal(command.id(), "-KILL");
    assert_eq!(command.wait().unwrap().signal(), Some(9));
    until("no copies", || copies_of(&warm).is_empty());
    assert_eq!(
        warm.branch(&["exit 0"]).status.code(),
        Some(0),
        "the program can be branched still"
    );
}

#[test]
fn copies_live_on_when_the_program_is_killed() {
    for options in [&[][..], &["--without-userfaultfd"]] {
        let Some(mut warm) = Warm::start(options, &["obey", "24"]) else { return };
        let (mut command, mut heard) = warm.branch_and_hear(&["digest"]);
        warm.child.kill().unwrap();
        warm.child.wait().unwrap();
        command.stdin.take().unwrap().write_all(b"\n").unwrap();
        let mut rest = String::new();
        heard.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, format!("digest {}\n", digest(24, 0)), "{options:?}");
        assert!(command.wait().unwrap().success());
        // Its leftover socket is ignored, and removed by the next program.
        let refused = warm.branch(&[]);
        assert_eq!(refused.status.code(), Some(125));
        assert_eq!(refused.stderr, format!("cowslip: there is no process {}\n", warm.pid()));
    }
}

#[test]
fn a_socket_that_was_left_behind_goes_and_one_goes_with_its_program() {
    let Some(mut killed) = Warm::start(&[], &["content", "1"]) else { return };
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    let left = killed.sockets();
    assert_eq!(left.len(), 1);
    let mut command = Command::new(COWSLIP);
    command.args(["run", "--quiet", "--"]).arg(killed.file("branching")).args(["content", "1"]);
    command.env("XDG_RUNTIME_DIR", &killed.folder.0).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut String::new()).unwrap();
    let now = killed.sockets();
    assert!(now.len() == 1 && now != left, "{now:?}");
    let pid = child.id().to_string();
    assert!(run(Command::new(COWSLIP).args(["branch", &pid, "--release"])).status.success());
    assert!(child.wait().unwrap().success());
    assert!(killed.sockets().is_empty());
}

/// Its socket gets messages of all kinds at random, except the one that lets it go on.
#[test]
fn a_program_is_as_it_was_after_messages_that_are_none() {
    let Some(warm) = Warm::start(&[], &["content", "1"]) else { return };
    let sockets = warm.sockets();
    let null = fs::File::options().read(true).write(true).open("/dev/null").unwrap();
    let branch = |version, copies| Request::Branch { version, copies }.to_bytes();
    let others = [Request::Variable(b"A=1"), Request::Copy(Some(b"1")), Request::Signal(9)];
    let mut messages = others.map(Request::to_bytes).to_vec();
    messages.extend([branch(VERSION, 2), branch(VERSION, u32::MAX), branch(VERSION + 1, 1)]);
    let mut random = fastrand::Rng::with_seed(7);
    let connect = || loop {
        match packets::connect(&sockets[0]) {
            Err(Errno::AGAIN) => std::thread::yield_now(),
            connected => break connected.unwrap(),
        }
    };
    for _ in 0..200 {
        let connection = connect();
        for first in [true, false, false, false] {
            let mut message = messages[random.usize(if first { 3..6 } else { 0..6 })].clone();
            if random.u8(..3) == 0 {
                let at = random.usize(..message.len());
                message[at] = random.u8(..);
                message.truncate(random.usize(at..=message.len()));
            }
            if message.first() == Some(&b'R') {
                continue;
            }
            let files = vec![null.as_fd(); random.usize(..5)];
            // It may have heard enough.
            let _ = socket::send(connection.as_fd(), &message, &files);
        }
    }
    let ran = warm.branch(&["--timeout", "60", "-n", "2"]);
    assert!(ran.status.success(), "{}", ran.stderr);
    until("all copies have ended", || copies_of(&warm).is_empty());
    warm.release();
}

/// The limit of processes is reached half-way: the copies made so far are ended, and nothing is printed.
#[test]
fn all_copies_are_there_or_none() {
    if !is_root() {
        println!("SKIPPED: root: a limit of processes holds for a user who is nobody else");
        return;
    }
    if !others_reach_the_command() {
        println!("SKIPPED: other users: they cannot reach {COWSLIP}");
        return;
    }
    let folder = shared_folder();
    let Some(program) = compile(&folder, "branching") else { return };
    let user = NOBODY - 7;
    let mut command = Command::new("prlimit");
    command.args(["--nproc=8", "setpriv", &format!("--reuid={user}"), "--clear-groups"]);
    command.args([COWSLIP, "run", "--quiet", "--without-userfaultfd", "--backing", "base", "--"]);
    command.arg(program).args(["obey", "1"]);
    command.env("XDG_RUNTIME_DIR", "/nonexistent").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let pid = child.id().to_string();
    let branched = run(Command::new(COWSLIP).args(["branch", &pid, "-n", "20", "exit 0"]));
    assert_eq!((branched.status.code(), branched.stdout.as_str()), (Some(125), ""));
    assert!(branched.stderr.contains("too many processes"), "{}", branched.stderr);
    assert!(branched.stderr.contains("were made, and are ended"), "{}", branched.stderr);
    until("room for some", || {
        run(Command::new(COWSLIP).args(["branch", &pid, "-n", "3", "exit 0"])).status.success()
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let _ = fs::remove_dir_all(format!("/tmp/cowslip-branch-{user}"));
}

#[test]
fn another_user_is_refused() {
    if !is_root() {
        println!("SKIPPED: root: to be another user");
        return;
    }
    let Some(warm) = Warm::start(&[], &["content", "1", "mine"]) else { return };
    let copied = shared_folder();
    let cowslip = copied.0.join("cowslip");
    copy_program(COWSLIP, &cowslip);
    for target in [warm.pid(), "mine".to_owned()] {
        let mut command = Command::new(&cowslip);
        command.args(["branch", &target]).uid(NOBODY).gid(NOBODY).current_dir("/");
        let refused = run(&mut command);
        assert_eq!(refused.status.code(), Some(125));
        assert!(refused.stderr.contains("not permitted to branch"), "{}", refused.stderr);
    }
    let released = run(Command::new(&cowslip)
        .args(["branch", &warm.pid(), "--release"])
        .uid(NOBODY)
        .gid(NOBODY));
    assert_eq!(released.status.code(), Some(4), "{}", released.stderr);
    assert_eq!(warm.branch(&[]).status.code(), Some(0));
}

#[test]
fn what_maps_nothing_is_not_waited_for() {
    let mut ended = Command::new("true").spawn().unwrap();
    let stat = format!("/proc/{}/stat", ended.id());
    let deadline = Instant::now() + PATIENCE;
    while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
        assert!(Instant::now() < deadline, "it ends");
        std::thread::yield_now();
    }
    let began = Instant::now();
    let pid = ended.id().to_string();
    let ran = run(Command::new(COWSLIP).args(["branch", &pid, "--timeout", "3600"]));
    assert_eq!(ran.status.code(), Some(125));
    assert!(ran.stderr.contains("it has ended, or is a thread of the kernel"), "{}", ran.stderr);
    assert!(began.elapsed() < PATIENCE);
    ended.wait().unwrap();
}

#[test]
fn what_cannot_be_branched_is_said() {
    let branch = |arguments: &[&str]| {
        let ran = run(Command::new(COWSLIP).arg("branch").args(arguments));
        (ran.status.code(), ran.stderr)
    };
    let mut sleeping = Command::new(COWSLIP).args(["run", "--", "sleep", "60"]).spawn().unwrap();
    let sleeping_pid = sleeping.id().to_string();
    let (code, said) = branch(&[&sleeping_pid, "--timeout", "0.05"]);
    sleeping.kill().unwrap();
    sleeping.wait().unwrap();
    assert_eq!(code, Some(125), "{said}");
    assert!(
        said.contains("has no branch point: it has not called cowslip_branch_point() yet"),
        "{said}"
    );
    let (code, said) = branch(&["no-such-name", "--timeout", "0.05"]);
    assert_eq!(code, Some(125));
    assert!(said.contains("no program has a branch point named no-such-name"), "{said}");
    assert_eq!(branch(&["no-such-name", "--timeout", "0.05", "--release"]).0, Some(1));
    assert_eq!(branch(&["2147483647", "--release"]).0, Some(5));
    assert_eq!(branch(&[]).0, Some(2));
    let Some(warm) = Warm::start(&[], &["content", "1"]) else { return };
    // A stopped program does not reach its branch point.
    signal(warm.child.id(), "-STOP");
    let late = warm.branch(&["--timeout", "0.05"]);
    signal(warm.child.id(), "-CONT");
    assert_eq!(late.status.code(), Some(125));
    assert!(late.stderr.contains("is not at its branch point"), "{}", late.stderr);
    let missing = warm.branch(&["--input", "/nonexistent/file"]);
    assert_eq!(missing.status.code(), Some(125));
    assert!(missing.stderr.contains("open /nonexistent/file: "), "{}", missing.stderr);
    let mixed = warm.branch(&["--json", "-"]);
    assert!(mixed.stderr.contains("say --output FILE too"), "{}", mixed.stderr);
    assert_eq!(warm.branch(&[]).status.code(), Some(0), "it can be branched still");
}

#[test]
fn a_program_that_comes_later_is_waited_for() {
    let name = format!("late-{}", std::process::id());
    let mut command = Command::new(COWSLIP);
    command.args(["branch", &name, "--timeout", "60"]).stdin(Stdio::null());
    let mut command = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(command.stderr.take().unwrap());
    let mut said = String::new();
    errors.read_line(&mut said).unwrap();
    assert!(said.contains(&format!("waiting for the branch point of {name}")), "{said}");
    let warm = Warm::start(&[], &["late", "1", &name]);
    if warm.is_none() {
        let _ = command.kill();
    }
    let status = command.wait().unwrap();
    assert!(warm.is_none() || status.success(), "{status}");
}

#[test]
fn commands_at_once_all_get_their_copies() {
    let Some(warm) = Warm::start(&[], &["obey", "16"]) else { return };
    let ask = |code: i32| {
        let code = format!("exit {code}");
        let mut command = Command::new(COWSLIP);
        command.args(["branch", &warm.pid(), "-n", "3", &code]).stdout(Stdio::null());
        command.spawn().unwrap()
    };
    let asked: Vec<(i32, Child)> = (10..20).map(|code| (code, ask(code))).collect();
    for (code, mut command) in asked {
        assert_eq!(command.wait().unwrap().code(), Some(code));
    }
}

#[test]
fn a_copy_is_branched_by_its_process_id() {
    let Some(warm) = Warm::start(&[], &["obey", "16"]) else { return };
    let (mut outer, mut heard) = warm.branch_and_hear(&["again"]);
    let mut line = String::new();
    heard.read_line(&mut line).unwrap();
    let copy = line.trim().strip_prefix("pid ").unwrap().to_owned();
    let inner = run(Command::new(COWSLIP).args(["branch", &copy, "-n", "2"]));
    let mut lines: Vec<&str> = inner.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["inner 0 of 2, argument -", "inner 1 of 2, argument -"], "{}", inner.stderr);
    // The name is the program's; the copy gave itself none.
    assert_eq!(
        run(Command::new(COWSLIP).args(["branch", "inner", "--timeout", "0.05"])).status.code(),
        Some(125)
    );
    assert!(run(Command::new(COWSLIP).args(["branch", &copy, "--release"])).status.success());
    let mut rest = String::new();
    heard.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "inner -1 of 1, argument again\n");
    assert!(outer.wait().unwrap().success());
}

#[test]
fn a_program_that_filters_its_calls_is_not_branched() {
    let folder = Folder::new("branch-filtered");
    let Some(program) = compile(&folder, "branching") else { return };
    let mut command = Command::new(COWSLIP);
    command.args(["run", "--quiet", "--"]).arg(&program).args(["filtered", "8"]);
    let ran = run(command.env("XDG_RUNTIME_DIR", &folder.0));
    assert_eq!(ran.stdout, "1 -1 Operation not permitted\n");
    let left = fs::read_dir(folder.0.join("cowslip-branch")).unwrap().count();
    assert_eq!(left, 0, "its socket is taken away before the filter is there");
}

#[test]
fn without_cowslip_the_program_goes_on_at_once() {
    let folder = Folder::new("branch-natively");
    let Some(program) = compile(&folder, "branching") else { return };
    let native = run(Command::new(&program).args(["natively", "1"]));
    assert_eq!(native.stdout, "-1 Function not implemented\n");
    let mut off = Command::new(COWSLIP);
    off.args(["run", "--quiet", "--"]).arg(&program).args(["natively", "1"]).env("COWSLIP", "off");
    assert_eq!(run(&mut off).stdout, "-1 Function not implemented\n");
}

fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    status.lines().any(|line| line.starts_with("Uid:\t0\t"))
}

/// A folder that every user may enter.
fn shared_folder() -> Folder {
    let folder = Folder::new("branch-shared");
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

fn others_reach_the_command() -> bool {
    let may_enter =
        |path: &Path| fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o001 != 0);
    Path::new(COWSLIP).ancestors().all(may_enter)
}
