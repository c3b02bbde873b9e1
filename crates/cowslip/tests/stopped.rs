//! All threads of a program are stopped at any moment, and its memory is read from outside: no read waits for a stopped
//! thread, and each is right.

#![allow(unsafe_code)]

mod support;

use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use cowslip::units::{ByteCount, CHUNK_BYTES};
use cowslip::{Arena, freeze_all};
use cowslip_sys::process;
use support::{PATIENCE, Watchdog, pattern, scaled, skip};

const PROGRAM: &str = "COWSLIP_TEST_STOPPED";
const WORDS: usize = 8 * CHUNK_BYTES / 8;
/// Words that threads write lie this far apart; the others stay as they were.
const STRIDE: usize = 513;

/// Not a test: a program of two arenas that is frozen and thawed all the time, and waits to be killed.
#[test]
fn program() {
    if std::env::var_os(PROGRAM).is_none() {
        return;
    }
    // SAFETY: standard input is a socket that nothing else here uses.
    let mut socket = UnixStream::from(unsafe { OwnedFd::from_raw_fd(0) });
    let arenas = [(); 2].map(|()| Arena::new(ByteCount::mib(32)).unwrap());
    let mut words = arenas.each_ref().map(|arena| arena.slice::<u64>(WORDS).unwrap());
    for slice in &mut words {
        slice.iter_mut().enumerate().for_each(|(i, word)| *word = pattern(i));
    }
    let has_service = arenas.iter().all(|arena| arena.raw().start_service());
    let place = if has_service { words[1].range().start as u64 } else { 0 };
    socket.write_all(&place.to_le_bytes()).unwrap();
    loop {
        drop(freeze_all(&[&arenas[0], &arenas[1]]).unwrap());
        for slice in &mut words {
            slice.iter_mut().step_by(STRIDE).for_each(|word| *word = word.wrapping_add(1));
        }
        assert!(arenas.iter().all(|arena| arena.wait_live(PATIENCE)));
    }
}

struct Program {
    process: Child,
    /// The address of its words.
    start: usize,
}

impl Program {
    /// `None` if it has no service thread.
    fn start() -> Option<Self> {
        let (mut socket, theirs) = UnixStream::pair().unwrap();
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["program", "--exact", "--nocapture"])
            .env(PROGRAM, "1")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut start = [0; 8];
        socket.read_exact(&mut start).unwrap();
        let program = Self { process, start: u64::from_le_bytes(start) as usize };
        if program.start == 0 {
            skip("userfaultfd", "no service thread");
            return None;
        }
        Some(program)
    }

    fn pid(&self) -> i32 {
        self.process.id() as i32
    }

    fn threads(&self) -> Vec<i32> {
        let entries = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect()
    }

    /// Reads all of its words, and checks those that it does not write.
    fn check(&self) {
        let mut words = vec![0u64; WORDS];
        let ours = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: 8 * WORDS };
        let theirs = libc::iovec { iov_base: self.start as *mut _, iov_len: 8 * WORDS };
        // SAFETY: the vector has room for as many bytes.
        let read = unsafe { libc::process_vm_readv(self.pid(), &ours, 1, &theirs, 1, 0) };
        assert_eq!(read, 8 * WORDS as isize, "{}", std::io::Error::last_os_error());
        let is_right = |(i, word): (usize, &u64)| i % STRIDE == 0 || *word == pattern(i);
        assert!(words.iter().enumerate().all(is_right));
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits until a child, or a thread of one, has stopped.
fn wait_stopped(pid: i32) {
    let mut status = 0;
    // SAFETY: waitpid writes the status.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, libc::WUNTRACED | libc::__WALL) }, pid);
    assert!(libc::WIFSTOPPED(status), "{status:#x}");
}

#[test]
fn a_read_of_a_program_stopped_by_a_signal() {
    let _watchdog = Watchdog::start("a read of a stopped program");
    let Some(program) = Program::start() else { return };
    for _ in 0..scaled(400) {
        process::signal(program.pid(), libc::SIGSTOP).unwrap();
        wait_stopped(program.pid());
        program.check();
        process::signal(program.pid(), libc::SIGCONT).unwrap();
    }
}

#[test]
fn a_read_of_a_program_whose_threads_a_debugger_has_stopped() {
    let _watchdog = Watchdog::start("a read by a debugger");
    let Some(program) = Program::start() else { return };
    let trace = |request: libc::c_uint, thread: i32| {
        // SAFETY: these requests take no pointer.
        unsafe { libc::ptrace(request, thread, 0usize, 0usize) == 0 }
    };
    for _ in 0..scaled(400) {
        let threads = program.threads();
        for thread in &threads {
            if !trace(libc::PTRACE_SEIZE, *thread) {
                return skip("ptrace", "refused");
            }
            assert!(trace(libc::PTRACE_INTERRUPT, *thread));
            wait_stopped(*thread);
        }
        program.check();
        for thread in threads {
            assert!(trace(libc::PTRACE_DETACH, thread));
        }
    }
}
