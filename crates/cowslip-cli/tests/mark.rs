//! `cowslip mark` and `cowslip rollback`: a running program is taken back in place.

mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use cowslip_sys::Errno;
use serde_json::Value;
use support::process::redis_is_there;
use support::python::{OTHER_USER, PYTHON, Program};
use support::redis::Server;
use support::working::Working;
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
    if line == 'forget\n':
        more.clear()
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
        # Those of `cowslip run` have high numbers.
        'count': number, 'descriptors': sum(int(fd) < 400 for fd in os.listdir('/proc/self/fd')),
    }), flush=True)
"#;

/// The program as it is, and under `cowslip run`. Empty without Python.
fn programs() -> impl Iterator<Item = (Program, bool)> {
    let start = |under_run: bool| {
        let starter: &[&str] =
            if under_run { &[COWSLIP, "run", "--", PYTHON, "-c"] } else { &[PYTHON, "-c"] };
        Some((Program::start_by(starter, PROGRAM, None)?, under_run))
    };
    [false, true].into_iter().filter_map(start)
}

/// The number of threads, but for those of `cowslip run`.
fn threads(program: &Program) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", program.child.id())).unwrap();
    let name = |task: std::path::PathBuf| std::fs::read_to_string(task.join("comm")).unwrap();
    tasks.filter(|task| name(task.as_ref().unwrap().path()) != "cowslip\n").count()
}

/// Its answer to a line, and the sum of its threads' counts.
fn ask(program: &mut Program, line: &str) -> (Value, u64) {
    let mut answer = program.ask(line);
    let added = answer.as_object_mut().unwrap().remove("added").unwrap();
    (answer, added.as_u64().unwrap())
}

fn cowslip(command: &str, program: &Program, options: &[&str]) -> Ran {
    run(Command::new(COWSLIP).args([command, &program.pid()]).args(options))
}

/// Waits until its threads have counted on.
fn wait_counted(program: &mut Program, to: u64) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (_, added) = ask(program, "say");
        if added >= to {
            return added;
        }
        assert!(Instant::now() < deadline, "never: {to}");
    }
}

fn good(ran: &Ran) {
    assert!(ran.status.success(), "{}", ran.stderr);
}

#[test]
fn a_program_is_promoted_before_it_is_marked() {
    let Some(mut program) = Program::start(PROGRAM, None) else { return };
    let (before, _) = ask(&mut program, "change");
    let ran = cowslip("mark", &program, &["--promote"]);
    good(&ran);
    assert!(ran.stderr.contains("promoting process "), "{}", ran.stderr);
    let is_said = ran.stderr.contains(" is huge, ") || ran.stderr.contains("not promoted: ");
    assert!(is_said && ran.stdout.contains("5 threads"), "{}", ran.stderr);
    ask(&mut program, "change");
    good(&cowslip("rollback", &program, &[]));
    assert_eq!(ask(&mut program, "say").0, before);
}

#[test]
fn a_program_is_taken_back_again_and_again() {
    for (mut program, is_under_run) in programs() {
        let (before, added) = ask(&mut program, "change");
        let ran = cowslip("mark", &program, &[]);
        good(&ran);
        assert!(ran.stdout.contains("5 threads"), "{}", ran.stdout);
        for _ in 0..5 {
            for _ in 0..3 {
                let (changed, _) = ask(&mut program, "change");
                assert_ne!(changed, before);
            }
            let later = wait_counted(&mut program, added + 4_000);
            let ran = cowslip("rollback", &program, &["--json"]);
            good(&ran);
            let done: Value = serde_json::from_str(&ran.stdout).unwrap();
            // Arenas go back without a copy.
            assert!(is_under_run || done["bytes"].as_u64().unwrap() >= 2 << 20, "{done}");
            let (after, added) = ask(&mut program, "say");
            assert_eq!(after, before);
            assert!(added < later, "its threads are as then, too");
        }
        good(&cowslip("mark", &program, &["--drop"]));
        let ran = cowslip("rollback", &program, &[]);
        assert_eq!(ran.status.code(), Some(1), "{}", ran.stderr);
        assert!(ran.stderr.contains("there is no mark"), "{}", ran.stderr);
        assert_eq!(ask(&mut program, "say").0, before);
    }
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
    for (mut program, _) in programs() {
        let (before, _) = ask(&mut program, "say");
        good(&cowslip("mark", &program, &[]));
        assert_eq!(threads(&program), 5);
        for is_last in [false, false, true] {
            ask(&mut program, "thread");
            ask(&mut program, "change");
            ask(&mut program, "thread");
            assert_eq!(threads(&program), 7);
            // They end in a program that a signal has stopped, too.
            let signal = |name: &str| Command::new("kill").args([name, &program.pid()]).status();
            assert!(!is_last || signal("-STOP").unwrap().success());
            good(&cowslip("rollback", &program, &[]));
            assert!(!is_last || signal("-CONT").unwrap().success());
            // Each time anew, at once.
            good(&cowslip("mark", &program, &["--drop"]));
            good(&cowslip("mark", &program, &[]));
            assert_eq!((threads(&program), ask(&mut program, "say").0), (5, before.clone()));
        }
    }
}

#[test]
fn memory_that_is_unmapped_since_is_mapped_again() {
    for (mut program, is_under_run) in programs() {
        let (before, _) = ask(&mut program, "change");
        good(&cowslip("mark", &program, &[]));
        let statm = format!("/proc/{}/statm", program.child.id());
        let pages = || -> u64 {
            std::fs::read_to_string(&statm).unwrap().split(' ').next().unwrap().parse().unwrap()
        };
        let mapped = pages();
        for _ in 0..3 {
            ask(&mut program, "forget");
            let is_unmapped = pages() < mapped - (32 << 20) / 4096;
            // An arena keeps its addresses.
            assert!(is_under_run || is_unmapped, "the largest of its arrays is unmapped");
            good(&cowslip("rollback", &program, &[]));
            assert_eq!(ask(&mut program, "say").0, before);
        }
    }
}

#[test]
fn threads_that_have_ended_are_started_by_force_only() {
    for (mut program, _) in programs() {
        let (before, _) = ask(&mut program, "thread");
        good(&cowslip("mark", &program, &[]));
        let ran = cowslip("mark", &program, &[]);
        assert!(ran.stderr.contains("marked already"), "{}", ran.stderr);
        ask(&mut program, "change");
        let (changed, _) = ask(&mut program, "end");
        let ran = cowslip("rollback", &program, &[]);
        assert_eq!(ran.status.code(), Some(3), "{}", ran.stderr);
        assert!(ran.stderr.contains("threads have ended since"), "{}", ran.stderr);
        assert_eq!(ask(&mut program, "say").0, changed);
        for _ in 0..3 {
            good(&cowslip("rollback", &program, &["--force"]));
            // The thread waits again, and can be told again to end.
            assert_eq!((threads(&program), ask(&mut program, "say").0), (6, before.clone()));
            ask(&mut program, "end");
            assert_eq!(threads(&program), 5);
        }
        let pid = program.child.id().to_string();
        let listed = || run(Command::new(COWSLIP).args(["mark", "--list"])).stdout;
        assert!(listed().lines().any(|line| line == pid));
        drop(program);
        let deadline = Instant::now() + PATIENCE;
        while listed().lines().any(|line| line == pid) {
            assert!(Instant::now() < deadline, "never: the mark ends with its program");
        }
    }
}

/// A process of another user that listens at an abstract name.
fn foreign_listener(name: &str) -> Option<Program> {
    let code = format!(
        "import socket, sys\n\
         listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
         listener.bind('\\0{name}'); listener.listen()\n\
         print('ready', flush=True); sys.stdin.read()"
    );
    Program::start(&code, Some(OTHER_USER))
}

#[test]
fn a_name_that_another_user_took_is_not_believed() {
    let pid = std::process::id().to_string();
    let Some(listener) = foreign_listener(&format!("cowslip-mark-{pid}")) else { return };
    let ran = run(Command::new(COWSLIP).args(["rollback", &pid]));
    assert_eq!(ran.status.code(), Some(4), "{}", ran.stderr);
    assert!(ran.stderr.contains("user 65534 has taken the name"), "{}", ran.stderr);
    let ran = run(Command::new(COWSLIP).args(["mark", &pid]));
    assert!(ran.stderr.contains("another user has taken the name"), "{}", ran.stderr);
    drop(listener);
    let name = format!("taken-{pid}");
    let Some(_listener) = foreign_listener(&format!("cowslip-warm-0-{name}")) else { return };
    let ran = run(Command::new(COWSLIP).args(["start", &name]));
    assert!(ran.stderr.contains("user 65534 has taken the name"), "{}", ran.stderr);
}

#[test]
fn redis_forgets_what_came_after_the_mark() {
    if !redis_is_there() {
        return;
    }
    for under_run in [false, true] {
        let server = match under_run {
            true => Server::under_cowslip("mark-redis", &[]),
            false => Server::stock("mark-redis", &[]),
        };
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
}

/// Threads of the program are anywhere in the library of `cowslip run` when it is marked, and when it is taken back.
#[test]
fn threads_at_work_in_the_library_are_taken_back() {
    let Some(mut working) = Working::start() else { return };
    let pid = working.pid();
    for _ in 0..3 {
        good(&run(Command::new(COWSLIP).args(["mark", &pid])));
        for _ in 0..2 {
            working.go_on();
            good(&run(Command::new(COWSLIP).args(["rollback", &pid])));
            working.go_on();
        }
        good(&run(Command::new(COWSLIP).args(["mark", &pid, "--drop"])));
    }
    working.end();
}

/// A program that a signal stops, before it is taken back or on the way, is taken back and stays stopped.
#[test]
fn a_program_that_a_signal_stops_is_taken_back() {
    const CODE: &str = "import json, sys\n\
        memory, count = bytearray(128 << 20), 0\n\
        print('ready', flush=True)\n\
        for line in sys.stdin:\n    \
            if line == 'change\\n':\n        \
                count += 1\n        \
                memory[:] = bytes([count]) * len(memory)\n    \
            print(json.dumps([count, memory.count(count)]), flush=True)";
    let starter = [COWSLIP, "run", "--", PYTHON, "-c"];
    let Some(mut program) = Program::start_by(&starter, CODE, None) else { return };
    let pid = program.pid();
    let signal = |name: &str| {
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    };
    let before = program.ask("change");
    good(&cowslip("mark", &program, &[]));
    for round in 0..16 {
        assert_ne!(program.ask("change"), before);
        if round == 0 {
            signal("-STOP");
        }
        let rollback = Command::new(COWSLIP).args(["rollback", &pid]).spawn().unwrap();
        let began = Instant::now();
        // Another moment in each round.
        while began.elapsed() < Duration::from_millis(4 * round) {
            std::thread::yield_now();
        }
        signal("-STOP");
        assert!(rollback.wait_with_output().unwrap().status.success(), "round {round}");
        let status = || std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        while !status().contains("\nState:\tT (stopped)") {
            assert!(began.elapsed() < PATIENCE, "never: it stops");
        }
        signal("-CONT");
        assert_eq!(program.ask("say"), before);
    }
}

/// A thread is at a branch point if it was at one at the mark.
#[test]
fn branch_points_are_as_at_the_mark() {
    const CODE: &str = "import ctypes, json, sys, threading\n\
        library = ctypes.CDLL(None, use_errno=True)\n\
        def point(timeout):\n    \
            library.cowslip_branch_point(None, timeout)\n    \
            return ctypes.get_errno()\n\
        def wait():\n    \
            point(-1)\n    \
            threading.Event().wait()\n\
        print('ready', flush=True)\n\
        for line in sys.stdin:\n    \
            if line == 'wait\\n': threading.Thread(target=wait, daemon=True).start()\n    \
            print(json.dumps(point(0)), flush=True)";
    let starter = [COWSLIP, "run", "--", PYTHON, "-c"];
    let Some(mut program) = Program::start_by(&starter, CODE, None) else { return };
    let (free, taken) = (Errno::AGAIN.raw_os_error(), Errno::BUSY.raw_os_error());
    let until = |program: &mut Program, answer: i32| {
        let deadline = Instant::now() + PATIENCE;
        while program.ask("say") != answer {
            assert!(Instant::now() < deadline, "never: {answer}");
        }
    };
    assert_eq!(program.ask("say"), free);
    good(&cowslip("mark", &program, &[]));
    for _ in 0..2 {
        program.ask("wait");
        until(&mut program, taken);
        good(&cowslip("rollback", &program, &[]));
        assert_eq!(program.ask("say"), free);
    }
    good(&cowslip("mark", &program, &["--drop"]));
    program.ask("wait");
    until(&mut program, taken);
    good(&cowslip("mark", &program, &[]));
    for _ in 0..2 {
        good(&cowslip("branch", &program, &["--release"]));
        until(&mut program, free);
        good(&cowslip("rollback", &program, &[]));
        assert_eq!(program.ask("say"), taken);
    }
}

/// A process that was forked, with a heap of two mappings, memory without access, and a guard.
#[test]
fn memory_of_all_kinds_is_that_of_the_mark() {
    const CODE: &str = r#"
import ctypes, json, mmap, os, sys
data = os.open(sys.argv[1] + '/data', os.O_CREAT | os.O_RDWR)
if os.fork():
    os.wait()
    sys.exit()
libc = ctypes.CDLL(None)
libc.sbrk.restype = libc.mmap.restype = ctypes.c_void_p
libc.sbrk.argtypes = [ctypes.c_long]
size = ctypes.c_size_t(1 << 20)
closed = ctypes.c_void_p(libc.mmap(None, size, 0, 0x22, -1, ctypes.c_long(0)))
guarded = mmap.mmap(-1, 16384, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
guarded.write(b'g' * 16384)
MADV_GUARD_INSTALL = 102
place = ctypes.addressof(ctypes.c_char.from_buffer(guarded)) + 4096
libc.madvise(ctypes.c_void_p(place), ctypes.c_size_t(4096), MADV_GUARD_INSTALL)
print('ready', flush=True)
for line in sys.stdin:
    if line.strip() == 'change':
        libc.mprotect(closed, size, 3)
        ctypes.memset(closed, 7, 1 << 20)
        ctypes.memset(libc.sbrk(1 << 20), 7, 1 << 20)
        guarded[:4096] = b'c' * 4096
    if line.strip() == 'replace':
        os.close(data)
        os.rename(sys.argv[1] + '/data', sys.argv[1] + '/old')
        assert os.open(sys.argv[1] + '/data', os.O_CREAT | os.O_RDWR) == data
    before = libc.sbrk(0)
    ctypes.memset(libc.sbrk(1 << 16), 1, 1 << 16)
    libc.sbrk(-(1 << 16))
    libc.mprotect(closed, size, 3)
    zeroes = ctypes.string_at(closed, 1 << 20).count(0)
    libc.mprotect(closed, size, 0)
    print(json.dumps([before, guarded[:4096].decode(), zeroes, os.getpid()]), flush=True)
"#;
    let Some(mut program) = Program::start_by(&[PYTHON, "-c"], CODE, None) else { return };
    let before = program.ask("say");
    let pid = before[3].to_string();
    let cowslip = |command: &str| run(Command::new(COWSLIP).args([command, &pid]));
    good(&cowslip("mark"));
    for _ in 0..3 {
        assert_ne!(program.ask("change"), before);
        good(&cowslip("rollback"));
        assert_eq!(program.ask("say"), before);
    }
    // Another file has the name, and the number.
    let changed = program.ask("replace");
    let ran = cowslip("rollback");
    assert_eq!(ran.status.code(), Some(3), "{}", ran.stderr);
    assert!(ran.stderr.contains("another file's now"), "{}", ran.stderr);
    assert_eq!(program.ask("say"), changed);
}

#[test]
fn memory_that_is_not_its_arenas_is_named() {
    // PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED
    for change in [
        "libc.mlock(place, 4096) == 0 and libc.munlock(place, 4096) == 0",
        "libc.mmap(place, ctypes.c_size_t(4096), 7, 0x32, -1, ctypes.c_long(0)) == place.value",
    ] {
        let code = format!(
            "import ctypes, json, sys\n\
            memory, libc = bytearray(64 << 20), ctypes.CDLL(None)\n\
            libc.mmap.restype = ctypes.c_void_p\n\
            start = ctypes.addressof(ctypes.c_char.from_buffer(memory))\n\
            place = ctypes.c_void_p(start + (1 << 20) & -4096)\n\
            assert {change}\n\
            print('ready', flush=True)\n\
            for line in sys.stdin: print(json.dumps(line.strip()), flush=True)"
        );
        let starter = [COWSLIP, "run", "--", PYTHON, "-c"];
        let Some(mut program) = Program::start_by(&starter, &code, None) else { return };
        let ran = cowslip("mark", &program, &[]);
        assert_eq!(ran.status.code(), Some(3), "{change}: {}", ran.stderr);
        assert!(ran.stderr.contains("mlock(2)"), "{change}: {}", ran.stderr);
        assert_eq!(program.ask("go on"), "go on");
    }
}
