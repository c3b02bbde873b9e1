//! Programs that are held go on as if nothing had happened, and their holders keep the instant.

mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use cowslip_process::{Copy, CopyOptions, Holder, Lack, Mark, PrivateFolders, look};
use cowslip_sys::error::ErrorKind;
use cowslip_sys::scheduling::{Processors, Scheduling};
use cowslip_sys::target::Target;
use cowslip_sys::units::VirtRange;
use cowslip_sys::{AsFd, OwnedFd};
use support::python;

const ROLE: &str = "COWSLIP_HOLD_ROLE";
const THREADS: usize = 6;

/// Each thread counts in the first place, and then in the second: at every instant these are equal or differ by one.
static COUNTS: [[AtomicU64; 2]; THREADS] = [const { [const { AtomicU64::new(0) }; 2] }; THREADS];
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// A program of several threads, which a test runs in a process of its own. It says where its counts are, and, once its
/// standard input ends, that each thread's two counts are equal.
struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    counts: VirtRange,
}

impl Program {
    fn start() -> Self {
        let mut child = this_test("counting_program", "count").spawn().expect("it starts");
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        let address = loop {
            line.clear();
            assert!(output.read_line(&mut line).unwrap() > 0, "it says where its counts are");
            if let Some((_, address)) = line.split_once("counts at ") {
                break address.trim().parse().expect("an address");
            }
        };
        Self { child, input, output, counts: VirtRange::new(address, size_of_val(&COUNTS)) }
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    fn counts(&self, pid: i32) -> Vec<u64> {
        let bytes = Target::open(pid).unwrap().read_memory(self.counts).unwrap();
        bytes.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect()
    }

    fn hold(&self) -> Holder {
        look(self.pid()).unwrap().hold().unwrap()
    }

    /// Waits until each thread has counted since now.
    fn wait_counted(&self) {
        let before = self.counts(self.pid());
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.counts(self.pid()).iter().zip(&before).any(|(now, before)| now <= before) {
            assert!(Instant::now() < deadline, "all threads go on");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn children(&self) -> String {
        let pid = self.pid();
        std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap()
    }

    /// Ends it, and returns what it said.
    fn end(mut self) -> String {
        drop(self.input.take());
        let mut said = String::new();
        self.output.read_to_string(&mut said).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {said}");
        said
    }
}

/// A test of this file, alone in a process of its own, which then plays a role.
fn this_test(name: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--nocapture"]).env(ROLE, role);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

#[test]
fn counting_program() {
    if role().as_deref() != Some("count") {
        return;
    }
    let count = |i: usize| {
        while !IS_OVER.load(SeqCst) {
            COUNTS[i][0].fetch_add(1, SeqCst);
            COUNTS[i][1].fetch_add(1, SeqCst);
            // Some are in a call when they are stopped.
            match i % 3 {
                0 => std::thread::sleep(Duration::from_micros(50)),
                1 => std::thread::yield_now(),
                _ => {}
            }
        }
    };
    std::thread::scope(|scope| {
        (0..THREADS).for_each(|i| drop(scope.spawn(move || count(i))));
        println!("counts at {}", (&raw const COUNTS).addr());
        std::io::stdout().flush().unwrap();
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        IS_OVER.store(true, SeqCst);
    });
    let are_equal = COUNTS.iter().all(|[one, other]| one.load(SeqCst) == other.load(SeqCst));
    println!("equal: {are_equal}");
}

#[test]
fn a_holder_keeps_the_instant_and_the_program_goes_on() {
    let program = Program::start();
    for _ in 0..20 {
        program.wait_counted();
        let before = program.counts(program.pid());
        let holder = program.hold();
        let held = program.counts(holder.pid());
        assert!(held.iter().zip(&before).all(|(held, before)| held >= before), "{held:?}");
        assert!(held.chunks(2).all(|pair| pair[0] - pair[1] < 2), "{held:?}");
        assert!(holder.threads().len() > THREADS);
        let states = holder.descriptors();
        assert!(states.iter().any(|state| state.number == 0 && state.field("pos").is_some()));
        program.wait_counted();
        assert_eq!(program.counts(holder.pid()), held, "the holder does not run");
    }
    assert_eq!(program.children(), "", "no child stays");
    assert!(program.end().contains("equal: true"));
}

#[test]
fn a_program_that_stays_stopped_goes_on_with_its_holders_end_or_ends() {
    let program = Program::start();
    let hold = |program: &Program| look(program.pid()).unwrap().stay_stopped().hold().unwrap();
    for _ in 0..5 {
        program.wait_counted();
        let holder = hold(&program);
        let held = program.counts(holder.pid());
        assert_eq!(program.counts(program.pid()), held, "it stands still since the instant");
        drop(holder);
        program.wait_counted();
        assert_eq!(program.children(), "", "no child stays");
    }
    hold(&program).end_program().unwrap();
    // This process has waited for it, to trace it.
    assert!(Target::open(program.pid()).is_err(), "it has ended");
}

/// A copy of the instant, and its standard input and output.
fn copy(holder: &mut Holder) -> (Copy, PipeWriter, PipeReader) {
    let ((input, ours), (theirs, output)) = (pipe().unwrap(), pipe().unwrap());
    let (input, theirs) = (OwnedFd::from(input), OwnedFd::from(theirs));
    let output = OwnedFd::from(output);
    let errors = std::io::stderr();
    let streams = [input.as_fd(), output.as_fd(), errors.as_fd()];
    let private = &PrivateFolders::default();
    let options = CopyOptions { streams, folder: None, private, has_own_network: false, job: None };
    let copy = holder.branch(&options).unwrap();
    (copy, ours, PipeReader::from(theirs))
}

#[test]
fn copies_count_on_with_all_threads_and_end_each_for_itself() {
    let program = Program::start();
    program.wait_counted();
    let mut holder = program.hold();
    let held = program.counts(holder.pid());
    let copies: Vec<_> = (0..3).map(|_| copy(&mut holder)).collect();
    drop(holder);
    for (mut copy, input, mut output) in copies {
        let deadline = Instant::now() + Duration::from_secs(60);
        while program.counts(copy.pid()).iter().zip(&held).any(|(now, held)| now <= held) {
            assert!(Instant::now() < deadline, "all threads go on");
        }
        // Its main thread waits for the end of its input.
        drop(input);
        let mut said = String::new();
        output.read_to_string(&mut said).unwrap();
        assert!(said.contains("equal: true"), "{said}");
        assert_eq!(copy.status().unwrap(), 0, "{said}");
    }
    program.wait_counted();
    assert_eq!(program.children(), "", "no child stays");
    assert!(program.end().contains("equal: true"));
}

/// One thread is nice and bound to a processor, the other is not.
#[test]
fn threads_of_a_copy_have_their_own_priorities() {
    const SCRIPT: &str = "
import os, sys, threading
def work():
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 7)
    os.sched_setaffinity(threading.get_native_id(), {min(os.sched_getaffinity(0))})
    print('ready', flush=True)
    threading.Event().wait()
threading.Thread(target=work, daemon=True).start()
sys.stdin.read()
";
    let Some(mut command) = python(SCRIPT) else { return };
    let mut child = command.spawn().unwrap();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    let of_threads = |pid: i32| {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let mut all: Vec<i32> = tasks
            .map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap())
            .collect();
        all.sort_unstable();
        let of_thread = |thread: i32| {
            let scheduling = Scheduling::from_thread(thread).unwrap();
            (format!("{scheduling:?}"), Processors::from_thread(thread).unwrap())
        };
        all.into_iter().map(of_thread).collect::<Vec<_>>()
    };
    let pid = child.id().cast_signed();
    let program = of_threads(pid);
    assert!(program.len() == 2 && program[0].0 != program[1].0, "{program:?}");
    let mut holder = look(pid).unwrap().hold().unwrap();
    let (copy, _input, _output) = copy(&mut holder);
    assert_eq!(of_threads(copy.pid()), program);
    drop((copy, holder));
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

/// The state of random numbers since glibc 2.41 (`MAP_DROPPABLE`, Linux 6.11) is empty in a copy, as its code expects.
#[test]
fn memory_that_the_kernel_may_drop_is_no_obstacle() {
    const SCRIPT: &str = "
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
MAP_DROPPABLE, MAP_ANONYMOUS = 8, 32
memory = libc.mmap(None, 4096, 3, MAP_DROPPABLE | MAP_ANONYMOUS, -1, 0)
print(memory or 0 if memory != ctypes.c_void_p(-1).value else 0, flush=True)
sys.stdin.read()
print('over', flush=True)
";
    let Some(mut command) = python(SCRIPT) else { return };
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if line.trim() == "0" {
        println!("SKIPPED: droppable memory: Linux 6.11 has it");
    } else {
        let mut holder = look(child.id().cast_signed()).unwrap().hold().unwrap();
        let (mut copy, input, mut output) = copy(&mut holder);
        drop((holder, input));
        line.clear();
        output.read_to_string(&mut line).unwrap();
        assert_eq!((line.trim(), copy.status().unwrap()), ("over", 0));
    }
    drop(child.stdin.take());
    // Its output is gone.
    child.wait().unwrap();
}

#[test]
fn timers_go_on_in_copies() {
    const SCRIPT: &str = "
import ctypes, signal, sys
libc = ctypes.CDLL(None)
alarms, ticks = [0], [0]
def alarm(*_): alarms[0] += 1
def tick(*_): ticks[0] += 1
signal.signal(signal.SIGALRM, alarm)
signal.signal(signal.SIGUSR1, tick)
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
event = (ctypes.c_int * 16)(7, 0, signal.SIGUSR1)
numbers = [ctypes.c_void_p() for _ in range(3)]
assert not any([libc.timer_create(1, event, ctypes.byref(number)) for number in numbers])
time = (ctypes.c_long * 4)(0, 30_000_000, 0, 30_000_000)
assert not libc.timer_delete(numbers[0]) and not libc.timer_settime(numbers[2], 0, time, None)
print('ready', flush=True)
sys.stdin.readline()
before = alarms[0], ticks[0]
while alarms[0] == before[0] or ticks[0] == before[1]: signal.pause()
print(*signal.getitimer(signal.ITIMER_REAL)[1:], end=' ')
for number in numbers:
    print(libc.timer_gettime(number, time), time[1], end=' ')
print(flush=True)
# Without their handlers, at the interpreter's end, signals would end it.
signal.setitimer(signal.ITIMER_REAL, 0)
libc.timer_delete(numbers[2])
";
    let Some(mut command) = python(SCRIPT) else { return };
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut String::new()).unwrap();
    let mut holder = look(child.id().cast_signed()).unwrap().hold().unwrap();
    assert_eq!(holder.timers().interval[0][..2], [0, 20_000]);
    let posix = &holder.timers().posix[1];
    assert_eq!((posix.value, &posix.time[..2]), (7, &[0, 30_000_000][..]));
    // The first was deleted, the next is not set.
    let timers = "0.02 -1 30000000 0 0 0 30000000";
    let (mut copy, mut input, mut copy_output) = copy(&mut holder);
    drop(holder);
    writeln!(input).unwrap();
    let mut said = String::new();
    copy_output.read_to_string(&mut said).unwrap();
    assert_eq!((said.trim(), copy.status().unwrap()), (timers, 0));
    writeln!(child.stdin.take().unwrap()).unwrap();
    said.clear();
    output.read_to_string(&mut said).unwrap();
    assert_eq!(said.trim(), timers);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_copy_ends_when_it_is_dropped() {
    let program = Program::start();
    let mut holder = program.hold();
    let (copy, _input, mut output) = copy(&mut holder);
    drop(copy);
    output.read_to_string(&mut String::new()).unwrap();
    // It has the program's output open.
    drop(holder);
    assert!(program.end().contains("equal: true"));
}

#[test]
fn a_program_is_taken_back_with_all_threads() {
    let program = Program::start();
    program.wait_counted();
    let mark = look(program.pid()).unwrap().mark().unwrap();
    // This thread sleeps between: it takes a second, so that the counts are read long before they are as high again.
    let count = |pid: i32| program.counts(pid)[0];
    let marked = count(mark.holder().pid());
    for _ in 0..3 {
        let enough = marked + 10_000;
        let deadline = Instant::now() + Duration::from_secs(60);
        while count(program.pid()) < enough {
            assert!(Instant::now() < deadline, "all threads go on");
            std::thread::sleep(Duration::from_millis(1));
        }
        mark.roll_back(false).unwrap();
        let now = count(program.pid());
        assert!((marked..enough).contains(&now), "{now}, not since {marked}");
        program.wait_counted();
    }
    drop(mark);
    assert!(program.end().contains("equal: true"));
}

#[test]
fn holders_of_several_instants_live_side_by_side() {
    let program = Program::start();
    let mut holders = Vec::new();
    for _ in 0..4 {
        program.wait_counted();
        let holder = program.hold();
        holders.push((program.counts(holder.pid()), holder));
    }
    for (held, holder) in &holders {
        assert_eq!(&program.counts(holder.pid()), held);
    }
    assert!(holders.is_sorted_by(|one, next| one.0[0] < next.0[0]));
    drop(holders);
    assert_eq!(program.children(), "");
    assert!(program.end().contains("equal: true"));
}

#[test]
fn holding_program() {
    let Some(pid) = role().and_then(|role| role.strip_prefix("hold ")?.parse().ok()) else {
        return;
    };
    println!("ready");
    loop {
        look(pid).unwrap().hold().unwrap();
    }
}

/// The kernel lets all threads go when their tracer is killed, wherever they are: also in a call on the program's behalf.
#[test]
fn the_program_goes_on_when_its_holders_process_is_killed_at_any_moment() {
    let program = Program::start();
    for round in 0..60_u64 {
        let role = format!("hold {}", program.pid());
        let mut holding =
            this_test("holding_program", &role).stderr(Stdio::null()).spawn().unwrap();
        let mut output = BufReader::new(holding.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("ready") {
            line.clear();
            assert!(output.read_line(&mut line).unwrap() > 0);
        }
        std::thread::sleep(Duration::from_micros(round * 7919 % 40_000));
        holding.kill().unwrap();
        holding.wait().unwrap();
        program.wait_counted();
    }
    // The next one cleans up, once the last child has come to its end.
    let deadline = Instant::now() + Duration::from_secs(60);
    while !program.children().is_empty() {
        assert!(Instant::now() < deadline, "no child stays: {}", program.children());
        drop(program.hold());
    }
    assert!(program.end().contains("equal: true"));
}

#[test]
fn no_signal_and_no_child_of_the_program_is_missed() {
    const SCRIPT: &str = "
import os, signal, subprocess, sys, threading, time
# Python may run a handler once for two signals, but writes a byte for each.
came, comes = os.pipe()
os.set_blocking(comes, False)
signal.set_wakeup_fd(comes)
signal.signal(signal.SIGALRM, lambda *_: None)
signal.signal(signal.SIGCHLD, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
print('ready', flush=True)
threads = [threading.Thread(target=lambda: [time.sleep(0.0005) for _ in range(1000)]) for _ in range(4)]
[thread.start() for thread in threads]
codes = [subprocess.call(['/bin/sh', '-c', 'exit 7']) for _ in range(200)]
[thread.join() for thread in threads]
signal.setitimer(signal.ITIMER_REAL, 0)
signals = os.read(came, 1 << 16)
ends, alarms = [signals.count(signal) for signal in (signal.SIGCHLD, signal.SIGALRM)]
print(set(codes), len(codes), ends > 190 or ends, alarms > 100 or alarms, flush=True)
sys.stdin.read()
";
    let Some(mut command) = python(SCRIPT) else { return };
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let (done, is_done) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut said = String::new();
        output.read_line(&mut said).unwrap();
        done.send(()).unwrap();
        said
    });
    let mut holds = 0;
    while is_done.try_recv().is_err() {
        drop(look(child.id().cast_signed()).unwrap().hold().unwrap());
        holds += 1;
    }
    let said = reader.join().unwrap();
    assert_eq!(said.trim(), "{7} 200 True True", "after {holds} holds");
    assert!(holds > 2, "the program ended after {holds} holds");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

/// Memory with `MADV_DONTFORK`, before and after the look, is in the holder, and stays kept from other children.
#[test]
fn a_holder_has_memory_that_the_program_keeps_from_its_children() {
    const SCRIPT: &str = "
import ctypes, mmap, sys
MADV_DONTFORK = 10
for byte in (b'a', b'b'):
    memory = mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(MADV_DONTFORK)
    memory.write(byte * (1 << 20))
    print(ctypes.addressof(ctypes.c_char.from_buffer(memory)), flush=True)
    sys.stdin.readline()
    globals()[byte] = memory
";
    let Some(mut command) = python(SCRIPT) else { return };
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut input = child.stdin.take().unwrap();
    let pid = child.id().cast_signed();
    let mut next = || {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        VirtRange::new(line.trim().parse().unwrap(), 1 << 20)
    };
    let first = next();
    let plan = look(pid).unwrap();
    writeln!(input).unwrap();
    let second = next();
    for plan in [plan, look(pid).unwrap()] {
        let holder = plan.hold().unwrap();
        let memory = Target::open(holder.pid()).unwrap();
        for (place, byte) in [(first, b'a'), (second, b'b')] {
            let bytes = memory.read_memory(place).unwrap();
            assert!(bytes.iter().all(|other| *other == byte), "{place}");
            assert!(holder.kept().iter().any(|kept| kept.contains(place.start)));
        }
    }
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    assert!(smaps.lines().any(|line| line.starts_with("VmFlags:") && line.contains(" dc")));
    drop(input);
    assert!(child.wait().unwrap().success());
}

/// A page with `MADV_DONTDUMP` is empty in a holder that forgets secrets; its neighbour and the program keep theirs.
#[test]
fn secrets_are_forgotten_by_the_holder_alone() {
    ["MAP_PRIVATE", "MAP_SHARED"].iter().for_each(|sharing| forgets_secrets(sharing));
}

fn forgets_secrets(sharing: &str) {
    const SCRIPT: &str = "
import ctypes, mmap, sys
MADV_DONTDUMP = 16
memory = mmap.mmap(-1, 8192, mmap.SHARING | mmap.MAP_ANONYMOUS)
memory.write(b'a' * 8192)
memory.madvise(MADV_DONTDUMP, 0, 4096)
print(ctypes.addressof(ctypes.c_char.from_buffer(memory)), flush=True)
sys.stdin.readline()
print(memory[:8192] == b'a' * 8192, flush=True)
";
    let Some(mut command) = python(&SCRIPT.replace("SHARING", sharing)) else { return };
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let both = VirtRange::new(line.trim().parse().unwrap(), 8192);
    let plan = look(child.id().cast_signed()).unwrap();
    let is_named = |lack: &Lack| lack.is_secret() && lack.is_of_checkpoint();
    assert!(plan.lacks().iter().any(is_named), "{:?}", plan.lacks());
    let mut holder = plan.hold().unwrap();
    let content = |holder: &Holder| Target::open(holder.pid()).unwrap().read_memory(both).unwrap();
    assert!(content(&holder).iter().all(|byte| *byte == b'a'));
    holder.forget_secrets().unwrap();
    let (secret, other) = (&content(&holder)[..4096], &content(&holder)[4096..]);
    assert!(secret.iter().all(|byte| *byte == 0) && other.iter().all(|byte| *byte == b'a'));
    holder.lend().unwrap();
    assert_eq!(holder.forget_secrets().unwrap_err().kind(), ErrorKind::Busy);
    drop(holder);
    writeln!(child.stdin.take().unwrap()).unwrap();
    line.clear();
    output.read_line(&mut line).unwrap();
    assert_eq!(line.trim(), "True");
    assert!(child.wait().unwrap().success());
}

/// A holder has a connection to this test closed, the program keeps it, and a pair of its own stays one. The holder's set of
/// files has them, too.
#[test]
fn connections_are_closed_in_the_holder_alone() {
    const SCRIPT: &str = "
import os, select, socket, sys
pair = socket.socketpair()
outside = socket.socket(fileno=os.dup(0))
events = select.epoll()
for end in outside, pair[0]:
    events.register(end, select.EPOLLIN)
print(outside.fileno(), pair[0].fileno(), events.fileno(), flush=True)
assert events.poll() == [(outside.fileno(), select.EPOLLIN)]
outside.recv(1)
outside.sendall(b'answer')
";
    let Some(mut command) = python(SCRIPT) else { return };
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let mut child = command.stdin(OwnedFd::from(theirs)).spawn().unwrap();
    drop(command);
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let numbers: Vec<i32> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let pid = child.id().cast_signed();
    let mut holder = look(pid).unwrap().hold().unwrap();
    holder.close_connections().unwrap();
    let is_as_before = |number: i32| {
        let [one, other] = [pid, holder.pid()]
            .map(|process| std::fs::read_link(format!("/proc/{process}/fd/{number}")).unwrap());
        one == other
    };
    assert_eq!([0, numbers[0], numbers[1]].map(is_as_before), [false, false, true]);
    // The number and the file of each.
    let set = |process: i32| {
        let path = format!("/proc/{process}/fdinfo/{}", numbers[2]);
        let text = std::fs::read_to_string(path).unwrap();
        let files = text.lines().filter_map(|line| line.strip_prefix("tfd:")?.split_once(" pos:"));
        let number = |of: &str| of.split_whitespace().next().unwrap().parse().unwrap();
        files.map(|(of, file)| (number(of), file.to_owned())).collect::<BTreeMap<i32, _>>()
    };
    let (now, before) = (set(holder.pid()), set(pid));
    assert!(now.keys().eq(before.keys()), "{now:?}, {before:?}");
    assert_ne!(now[&numbers[0]], before[&numbers[0]]);
    assert_eq!(now[&numbers[1]], before[&numbers[1]]);
    let held = Target::open(holder.pid()).unwrap().descriptor(0).unwrap();
    assert_eq!(UnixStream::from(held).read(&mut [0]).unwrap(), 0);
    drop(holder);
    ours.write_all(b"?").unwrap();
    let mut answer = String::new();
    ours.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "answer");
    assert!(child.wait().unwrap().success());
}

#[test]
fn signals_that_wait_do_so_in_copies() {
    const SCRIPT: &str = "
import os, signal, sys, threading
waiting = {signal.SIGUSR1, signal.SIGUSR2}
signal.pthread_sigmask(signal.SIG_BLOCK, waiting)
os.kill(os.getpid(), signal.SIGUSR1)
signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)
print('ready', flush=True)
for line in sys.stdin:
    infos = [signal.sigtimedwait(waiting, 1) for _ in waiting]
    right = all(info.si_pid == os.getpid() for info in infos)
    print(sorted(info.si_signo for info in infos), right, signal.sigpending(), flush=True)
";
    let Some(mut command) = python(SCRIPT) else { return };
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut input = child.stdin.take().unwrap();
    output.read_line(&mut String::new()).unwrap();
    let mut holder = look(child.id().cast_signed()).unwrap().hold().unwrap();
    let said = |input: &mut dyn Write, output: &mut dyn BufRead| {
        let mut line = String::new();
        writeln!(input, "say").unwrap();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "[10, 12] True set()\n");
    };
    for _ in 0..2 {
        let (_copy, mut input, output) = copy(&mut holder);
        said(&mut input, &mut BufReader::new(output));
    }
    said(&mut input, &mut output);
    drop((holder, input));
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_timer_for_a_moment_is_one_in_a_copy() {
    const SCRIPT: &str = "
import ctypes, sys, time
libc = ctypes.CDLL(None)
timer = libc.timerfd_create(1, 0)
when = (ctypes.c_long * 4)(0, 0, int(time.clock_gettime(1)) + 1000, 0)
assert libc.timerfd_settime(timer, 1, when, None) == 0
print('ready', flush=True)
for line in sys.stdin:
    text = open(f'/proc/self/fdinfo/{timer}').read()
    fields = dict(line.split(':', 1) for line in text.splitlines())
    left = int(fields['it_value'].strip(' (').split(',')[0])
    print(int(fields['settime flags'], 8), 900 < left <= 1000, flush=True)
";
    let Some(mut command) = python(SCRIPT) else { return };
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut String::new()).unwrap();
    let mut holder = look(child.id().cast_signed()).unwrap().hold().unwrap();
    let (_copy, mut input, output) = copy(&mut holder);
    writeln!(input, "say").unwrap();
    let mut said = String::new();
    BufReader::new(output).read_line(&mut said).unwrap();
    assert_eq!(said, "1 True\n");
    drop(holder);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn copies_have_shared_memory_of_their_own() {
    const SCRIPT: &str = "
import ctypes, mmap, os, sys, tempfile
shared = mmap.mmap(-1, 3 << 20)
# Without a descriptor, unlike those of mmap.mmap.
map_file = ctypes.CDLL(None).mmap
map_file.restype, map_file.argtypes = ctypes.c_void_p, [ctypes.c_long] * 6
with tempfile.TemporaryFile() as file:
    file.truncate(1 << 16)
    place = map_file(0, 1 << 16, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file.fileno(), 0)
deleted = (ctypes.c_char * (1 << 16)).from_address(place)
shared[0:5] = shared[1 << 20:(1 << 20) + 5] = deleted[0:5] = b'first'
print('ready', flush=True)
for line in sys.stdin:
    before = shared[0:5], deleted[0:5], shared[1 << 20:(1 << 20) + 5], shared[2 << 20:(2 << 20) + 5]
    shared[0:5] = deleted[0:5] = line[:5].encode()
    child = os.fork()
    if child == 0:
        shared[1 << 20:(1 << 20) + 5] = b'child'
        os._exit(0)
    os.waitpid(child, 0)
    print(before, shared[1 << 20:(1 << 20) + 5], flush=True)
";
    let Some(mut command) = python(SCRIPT) else { return };
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut input = child.stdin.take().unwrap();
    let line = |output: &mut dyn BufRead| {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    };
    assert_eq!(line(&mut output), "ready");
    let of_instant = r"(b'first', b'first', b'first', b'\x00\x00\x00\x00\x00') b'child'";
    let mark = {
        let mut holder = look(child.id().cast_signed()).unwrap().hold().unwrap();
        // The program's memory of later is in no copy.
        writeln!(input, "later").unwrap();
        assert_eq!(line(&mut output), of_instant);
        for _ in 0..2 {
            let (copy, mut input, output) = copy(&mut holder);
            let mut output = BufReader::new(output);
            writeln!(input, "other").unwrap();
            assert_eq!(line(&mut output), of_instant);
            drop(copy);
        }
        Mark::new(holder).unwrap()
    };
    for _ in 0..2 {
        mark.roll_back(false).unwrap();
        writeln!(input, "again").unwrap();
        assert_eq!(line(&mut output), of_instant);
    }
    drop(input);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_program_that_executes_another_survives_its_holder() {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "echo first; read x; exec /bin/sh -c 'echo second; read x; echo third'"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "first");
    let holder = look(child.id().cast_signed()).unwrap().hold().unwrap();
    writeln!(input).unwrap();
    assert_eq!(lines.next().unwrap(), "second");
    drop(holder);
    writeln!(input).unwrap();
    assert_eq!(lines.next().unwrap(), "third");
    assert!(child.wait().unwrap().success());
}
