//! Shows where the processes of a group hang.
#![allow(unsafe_code)]

use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::program::Program;
use crate::shared::Shared;

const LONGEST_STOP: Duration = Duration::from_secs(1);

/// Every thread of the group: its state, the kernel function in which it waits, and its call.
pub(crate) fn describe(group: i32, program: &Program, shared: &Shared) -> String {
    let mut text = String::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if field(&format!("/proc/{pid}/stat"), 2) != Some(group.to_string()) {
            continue;
        }
        for task in fs::read_dir(entry.path().join("task")).into_iter().flatten().flatten() {
            let of = |file: &str| {
                let text = fs::read_to_string(task.path().join(file)).unwrap_or_default();
                text.split('\n').next().unwrap_or_default().to_owned()
            };
            let tid: u32 = task.file_name().to_string_lossy().parse().unwrap_or(0);
            let state = field(&task.path().join("stat").to_string_lossy(), 0).unwrap_or_default();
            let (name, wchan, call) = (of("comm"), of("wchan"), of("syscall"));
            let spent = |index| field(&task.path().join("stat").to_string_lossy(), index);
            let (user, system) = (spent(11).unwrap_or_default(), spent(12).unwrap_or_default());
            let call = if call == "running" { stopped(tid as i32).unwrap_or(call) } else { call };
            let _ = write!(text, "  {pid}/{tid} {name} {state} {wchan} syscall {call}");
            let _ = write!(text, " ticks {user} user {system} system");
            for (process, thread, index, _) in shared.places().iter().filter(|place| place.3 == tid)
            {
                let call = program.thread(*process, *thread).get(*index);
                let call = call.map_or("its end".to_owned(), ToString::to_string);
                let _ = write!(text, " (process {process} thread {thread}: {call})");
            }
            text.push('\n');
            let _ = writeln!(text, "    {}", places(pid, &call));
        }
    }
    text
}

/// The stack pointer and the program counter of a running thread, in the form in which `proc_pid_syscall(5)`
/// ends for a waiting one. The thread is stopped for that (`PTRACE_INTERRUPT`), and continues.
fn stopped(tid: i32) -> Option<String> {
    let ask = |request, data: *mut libc::c_void| {
        // SAFETY: a thread of a program that this process started, and a place for its registers if they are
        // requested.
        unsafe { libc::ptrace(request, tid, core::ptr::null_mut::<libc::c_void>(), data) == 0 }
    };
    let nothing = core::ptr::null_mut();
    if !ask(libc::PTRACE_SEIZE, nothing) {
        return None;
    }
    let mut registers = core::mem::MaybeUninit::<libc::user_regs_struct>::zeroed();
    // A thread that is busy in the kernel does not stop.
    let until = Instant::now() + LONGEST_STOP;
    let has_stopped = || {
        // SAFETY: the pointer is null, so no status is written.
        unsafe { libc::waitpid(tid, core::ptr::null_mut(), libc::__WALL | libc::WNOHANG) == tid }
    };
    let stops = || {
        while !has_stopped() {
            if Instant::now() > until {
                return false;
            }
            std::thread::yield_now();
        }
        true
    };
    let is_known = ask(libc::PTRACE_INTERRUPT, nothing)
        && stops()
        && ask(libc::PTRACE_GETREGS, registers.as_mut_ptr().cast());
    ask(libc::PTRACE_DETACH, nothing);
    // SAFETY: the structure consists of integers, which were zeroes before.
    let registers = unsafe { registers.assume_init() };
    is_known.then(|| format!("running 0x0 0x0 {:#x} {:#x}", registers.rsp, registers.rip))
}

/// A mapping of `proc_pid_maps(5)`.
struct Mapping {
    range: Range<u64>,
    is_code: bool,
    offset: u64,
    file: String,
}

impl Mapping {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let is_code = fields.next()?.contains('x');
        let offset = hex(fields.next()?)?;
        let name = fields.nth(2).unwrap_or("anonymous");
        let file = name.rsplit('/').next().unwrap_or(name).to_owned();
        Some(Self { range: hex(start)?..hex(end)?, is_code, offset, file })
    }
}

/// The callers, from the numbers of `proc_pid_syscall(5)`: the object at the first argument, and the code
/// addresses in the program counter and on the stack, the nearest first.
fn places(pid: i32, call: &str) -> String {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let maps: Vec<Mapping> = maps.lines().filter_map(Mapping::parse).collect();
    let of = |address: u64| maps.iter().find(|mapping| mapping.range.contains(&address));
    let said = |address: u64| {
        of(address).map(|mapping| {
            format!("{}+{:#x}", mapping.file, address - mapping.range.start + mapping.offset)
        })
    };
    let number = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
    let words: Vec<u64> = call.split_whitespace().filter_map(number).collect();
    let &[_, first, .., stack, counter] = &words[..] else { return "no call".to_owned() };
    let mut content = [0; 8192];
    let memory = fs::File::open(format!("/proc/{pid}/mem"));
    let read = memory.and_then(|memory| memory.read_at(&mut content, stack)).unwrap_or(0);
    let on_stack =
        content[..read].chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    let is_code = |address: &u64| of(*address).is_some_and(|mapping| mapping.is_code);
    let callers = [counter].into_iter().chain(on_stack).filter(is_code).filter_map(said);
    let callers = callers.take(24).collect::<Vec<_>>().join(" < ");
    format!("on {}, by {callers}", said(first).unwrap_or_default())
}

/// A field of `proc_pid_stat(5)` after the name: 0 is the state, 2 the process group.
fn field(path: &str, index: usize) -> Option<String> {
    let stat = fs::read_to_string(path).ok()?;
    Some(stat.rsplit(')').next()?.split_whitespace().nth(index)?.to_owned())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_thread_that_runs_is_told_with_its_place() {
        let mut running = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let pid = running.id() as i32;
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let said = std::iter::repeat_with(|| places(pid, &stopped(pid).unwrap_or_default()));
        let mut said = said.take_while(|_| std::time::Instant::now() < deadline);
        let is_told = said.any(|said| said.contains(", by ") && said.contains("sh+"));
        running.kill().unwrap();
        running.wait().unwrap();
        assert!(is_told);
    }

    #[test]
    fn a_call_is_told_with_its_callers() {
        let mut waiting = Command::new("sleep").arg("100").spawn().unwrap();
        let pid = waiting.id() as i32;
        let is_asleep = || {
            let call = fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
            let said = places(pid, &call);
            (said.contains("libc.so") && said.contains("sleep+")).then_some(said)
        };
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let said = std::iter::repeat_with(|| {
            std::thread::yield_now();
            is_asleep()
        });
        let said = said.take_while(|_| std::time::Instant::now() < deadline).flatten().next();
        waiting.kill().unwrap();
        waiting.wait().unwrap();
        assert!(said.is_some());
    }
}
