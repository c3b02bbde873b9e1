//! Programs that cannot be copied whole: each lack is named, and those that would do harm are refused.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use cowslip_process::look;
use cowslip_sys::error::ErrorKind;
use support::python;

#[test]
fn memory_that_is_shared_since_the_look_is_refused() {
    const SCRIPT: &str = "
import mmap, os, sys
for _ in range(2):
    print('ready', flush=True)
    sys.stdin.readline()
    file = os.memfd_create('shared')
    os.truncate(file, 1 << 20)
    shared = mmap.mmap(file, 1 << 20)
";
    let Some(mut command) = python(SCRIPT) else { return };
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut input = child.stdin.take().unwrap();
    output.read_line(&mut String::new()).unwrap();
    let plan = look(child.id().cast_signed()).unwrap();
    writeln!(input).unwrap();
    output.read_line(&mut String::new()).unwrap();
    let error = plan.hold().unwrap_err();
    assert!(error.to_string().contains("shared memory"), "{error}");
    drop(input);
    assert!(child.wait().unwrap().success());
}

/// The end of a holder is a call on the program's behalf, by code that another image does not have there.
#[test]
fn what_a_copy_would_lack_is_named_and_refused() {
    const SCRIPT: &str = "
import ctypes, fcntl, mmap, os, struct, sys, tempfile
shared = mmap.mmap(-1, 65 << 20)
libc = ctypes.CDLL(None)
watch = libc.inotify_init()
CLONE_NEWPID, CLONE_NEWTIME = 0x20000000, 0x80
is_apart, has_time = (libc.unshare(kind) == 0 for kind in (CLONE_NEWPID, CLONE_NEWTIME))
file = tempfile.TemporaryFile()
fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack('hhqqi', fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
IO_SETUP = 206
assert libc.syscall(IO_SETUP, 1, ctypes.byref(ctypes.c_long(0))) == 0
ends = os.pipe()
MEMFD_SECRET, libc.mmap.argtypes = 447, [ctypes.c_long] * 6
secret = libc.syscall(MEMFD_SECRET, 0)
has_secret = secret >= 0 and not os.truncate(secret, 4096) and libc.mmap(0, 4096, 3, mmap.MAP_SHARED, secret, 0) != -1
print(is_apart, has_time, has_secret, flush=True)
sys.stdin.read()
";
    let Some(mut command) = python(SCRIPT) else { return };
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let plan = look(child.id().cast_signed()).unwrap();
    let said: Vec<_> =
        plan.lacks().iter().map(|lack| (lack.is_fatal(), lack.to_string())).collect();
    let mut expected = vec![
        (true, "shared memory at"),
        (true, "anon_inode:inotify: a copy has none"),
        (true, "a ring at"),
        (false, "locks of files"),
        (false, "pipe:["),
    ];
    let of_kernel = [
        "a PID namespace for its children",
        "a time namespace for its children",
        "the kernel shows it to no other process",
    ];
    for (has, part) in line.split_ascii_whitespace().zip(of_kernel) {
        match has {
            "True" => expected.push((true, part)),
            _ => println!("SKIPPED: {part}: the kernel has none"),
        }
    }
    for (is_fatal, part) in expected {
        let is_said = said.iter().any(|(fatal, text)| *fatal == is_fatal && text.contains(part));
        assert!(is_said, "{part:?} in {said:?}");
    }
    let first = said.iter().find(|(is_fatal, _)| *is_fatal).unwrap();
    let error = plan.hold().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains(&first.1), "{error}");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn processes_that_cannot_be_held_are_left_alone() {
    assert_eq!(look(std::process::id().cast_signed()).unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!(look(i32::MAX).unwrap_err().kind(), ErrorKind::Vanished);
    let mut stopped = Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
    let pid = stopped.id().cast_signed();
    let deadline = Instant::now() + Duration::from_secs(60);
    while look(pid).is_err() {
        assert!(Instant::now() < deadline, "it loads its libraries");
    }
    cowslip_sys::process::stop_group(pid, true).unwrap();
    let mut plan = look(pid).unwrap();
    while plan.lacks().iter().all(|lack| !lack.is_fatal()) {
        plan = look(pid).unwrap();
    }
    assert!(plan.hold().unwrap_err().to_string().contains("does not run"));
    cowslip_sys::process::end(pid, true).unwrap();
    stopped.wait().unwrap();
}
