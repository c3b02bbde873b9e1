//! The programs that can be branched, found by their sockets.
//!
//! The kernel lists listening sockets (`/proc/net/unix`), wherever a program's runtime directory is, and the listening
//! process (`SO_PEERCRED`), so that no file in a directory has to be trusted.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use cowslip::raw::branch::{DIRECTORY, parse_file_name};
use cowslip_sys::{AsFd, Errno, OwnedFd, packets, process};

use crate::exit::{DENIED, FAILED, Failure, NO, USAGE, VANISHED};

/// A program at the other end of a connection.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) pid: i32,
    pub(super) name: Option<String>,
    pub(super) connection: OwnedFd,
    /// The user who listens.
    uid: u32,
}

/// A socket that a process listens at.
struct Found {
    path: PathBuf,
    pid: i32,
    name: Option<String>,
}

/// The sockets in the network namespace of a process.
fn found(process: &str) -> Vec<Found> {
    /// Flags of listening sockets, and the type of those that keep packets apart.
    const FLAGS: &str = "00010000";
    const TYPE: &str = "0005";
    const PATH: usize = 7;
    let table = fs::read(format!("/proc/{process}/net/unix")).unwrap_or_default();
    let text = String::from_utf8_lossy(&table);
    let of_line = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let listens = fields.get(3) == Some(&FLAGS) && fields.get(4) == Some(&TYPE);
        let path = line.split_once(fields.get(PATH).filter(|_| listens)?);
        let path = path.map(|(before, _)| {
            PathBuf::from(OsStr::from_bytes(&line.as_bytes()[before.len()..]))
        })?;
        let directory = path.parent()?.file_name()?.to_str()?;
        let (pid, name) = parse_file_name(path.file_name()?.to_str()?)?;
        let name = name.map(str::to_owned);
        directory.starts_with(DIRECTORY).then(|| Found { pid, name, path: path.clone() })
    };
    text.lines().filter_map(of_line).collect()
}

const ROOT: u32 = 0;

/// Connects, to the process that is asked for if one is. Another user's may be asked for by root alone: it is told the
/// copies' environment, and gets the command's streams.
fn connect(found: &Found, wanted: Option<i32>) -> Result<Target, Errno> {
    // The program may have another root than this command.
    let elsewhere =
        wanted.map(|pid| PathBuf::from(format!("/proc/{pid}/root{}", found.path.display())));
    let mut answer = Err(Errno::NOENT);
    for path in [Some(found.path.clone()), elsewhere].into_iter().flatten() {
        answer = connect_at(&path, found, wanted);
        if answer.is_ok() {
            break;
        }
    }
    answer
}

fn connect_at(path: &Path, found: &Found, wanted: Option<i32>) -> Result<Target, Errno> {
    let connection = packets::connect(path)?;
    let packets::Peer { pid, uid } = packets::peer(connection.as_fd())?;
    if pid == 0 || wanted.is_some_and(|wanted| wanted != pid) {
        return Err(Errno::NOENT);
    }
    if ![uid, ROOT].contains(&process::effective_uid()) {
        return Err(Errno::PERM);
    }
    Ok(Target { pid, name: found.name.clone(), connection, uid })
}

/// Finds the one program that `text` names, once it has a branch point: a program that was just started may still be on
/// its way there.
pub(super) fn find(text: &str, timeout: Duration) -> Result<Target, Failure> {
    const POLL: Duration = Duration::from_millis(10);
    const PATIENCE: Duration = Duration::from_secs(1);
    let began = Instant::now();
    let mut is_told = false;
    loop {
        let (found, may_come) = match text.parse() {
            Ok(pid) if pid > 0 => (by_pid(pid)?, is_under_cowslip(pid)),
            _ => (by_name(text)?, true),
        };
        if let Some(target) = found {
            return Ok(target);
        }
        if !may_come || began.elapsed() >= timeout {
            return Err(not_found(text));
        }
        if !is_told && began.elapsed() >= PATIENCE {
            errln!("cowslip: waiting for the branch point of {text}; --list says which there are");
            is_told = true;
        }
        thread::sleep(POLL.min(timeout.saturating_sub(began.elapsed())));
    }
}

fn not_found(text: &str) -> Failure {
    let why = match text.parse::<i32>() {
        Ok(pid) => format!(
            "process {pid} has no branch point: it has not called cowslip_branch_point() yet, or was not started with \
             `cowslip run`; --running copies it as it is"
        ),
        Err(_) => format!(
            "no program has a branch point named {text}; `cowslip branch --list` says which there are"
        ),
    };
    Failure::new(NO, why)
}

/// The process that `text` names, if it is to be copied as it runs: on request, or without Cowslip's library.
pub(super) fn as_it_runs(text: &str, is_asked_for: bool) -> Result<Option<i32>, Failure> {
    let pid = text.parse().ok().filter(|pid| *pid > 0);
    let pid = pid.filter(|pid| is_asked_for || !is_under_cowslip(*pid));
    // One that may not be looked into can have a branch point.
    pid.map_or(Ok(None), |pid| {
        let is_meant = is_asked_for || by_pid(pid)?.is_none();
        Ok(is_meant.then_some(pid))
    })
}

/// Returns true if it was started with `cowslip run`, or is still that command, as far as it may be looked into.
pub(in crate::commands) fn is_under_cowslip(pid: i32) -> bool {
    const POLL: Duration = Duration::from_millis(2);
    let began = Instant::now();
    while !has_library(pid) {
        // A program that was started just now maps the library soon.
        if began.elapsed() >= patience(pid) {
            return false;
        }
        thread::sleep(POLL);
    }
    true
}

/// The time in which a program can be expected to map the library.
fn patience(pid: i32) -> Duration {
    /// The kernel is making its stack, or it has no environment.
    const STARTING: Duration = Duration::from_millis(200);
    /// The library is in `LD_PRELOAD`, and the machine may be busy. One for another architecture is never mapped.
    const PRELOADED: Duration = Duration::from_secs(5);
    const NAME: &[u8] = b"/libcowslip_preload";
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let mut variables = environment.split(|&byte| byte == 0);
    let is_preloaded = variables.any(|variable| {
        variable.starts_with(b"LD_PRELOAD=")
            && variable.windows(NAME.len()).any(|part| part == NAME)
    });
    match is_preloaded {
        true if loads_libraries(pid) => PRELOADED,
        false if environment.is_empty() => STARTING,
        true | false => Duration::ZERO,
    }
}

/// Returns false for a static program, and for one with more rights than its user has, whose loader ignores `LD_PRELOAD`:
/// getauxval(3).
fn loads_libraries(pid: i32) -> bool {
    const AT_BASE: u64 = 7;
    const AT_SECURE: u64 = 23;
    let vector = fs::read(format!("/proc/{pid}/auxv")).unwrap_or_default();
    let (words, _) = vector.as_chunks::<8>();
    let (pairs, _) = words.as_chunks::<2>();
    let value = |key| {
        let pair = pairs.iter().find(|[found, _]| u64::from_ne_bytes(*found) == key);
        pair.map_or(0, |[_, value]| u64::from_ne_bytes(*value))
    };
    value(AT_BASE) != 0 && value(AT_SECURE) == 0
}

fn has_library(pid: i32) -> bool {
    // A kernel thread and an ended process map nothing.
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let is_of_cowslip = |line: &[u8]| {
        let name = line.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        name.starts_with(b"libcowslip") || name == b"cowslip"
    };
    maps.split(|&byte| byte == b'\n').any(is_of_cowslip)
}

fn by_pid(pid: i32) -> Result<Option<Target>, Failure> {
    let Ok(process) = fs::metadata(format!("/proc/{pid}")) else {
        return Err(Failure::new(VANISHED, format!("there is no process {pid}")));
    };
    let its_own = number_in_namespace(pid);
    let mut errno = Errno::NOENT;
    for found in found(&pid.to_string()).iter().filter(|found| found.pid == its_own) {
        match connect(found, Some(pid)) {
            Ok(target) => return Ok(Some(target)),
            Err(why) => errno = why,
        }
    }
    match errno {
        Errno::NOENT | Errno::CONNREFUSED => Ok(None),
        Errno::ACCESS | Errno::PERM => Err(Failure::new(
            DENIED,
            format!(
                "not permitted to branch process {pid}: it is of user {}; run as that user or as root",
                process.uid()
            ),
        )),
        errno => Err(unreachable(&format!("process {pid}"), errno)),
    }
}

/// The process' number in its own namespace.
fn number_in_namespace(pid: i32) -> i32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    line.and_then(|line| line.split_whitespace().last()?.parse().ok()).unwrap_or(pid)
}

/// This user's program of that name. Every user may give any name.
fn by_name(name: &str) -> Result<Option<Target>, Failure> {
    let of_name = found("self").into_iter().filter(|found| found.name.as_deref() == Some(name));
    let own = |target: Target| match target.uid == process::effective_uid() {
        true => Ok(target),
        false => Err(Errno::PERM),
    };
    let answers: Vec<_> = of_name.map(|found| connect(&found, None).and_then(own)).collect();
    let is_denied = answers.iter().any(|answer| matches!(answer, Err(Errno::ACCESS | Errno::PERM)));
    let is_full = answers.iter().any(|answer| matches!(answer, Err(Errno::AGAIN)));
    let targets: Vec<Target> = answers.into_iter().flatten().collect();
    if targets.len() > 1 {
        let pids: Vec<_> = targets.iter().map(|target| target.pid.to_string()).collect();
        let pids = pids.join(", ");
        return Err(Failure::new(
            USAGE,
            format!("{name} is the name of several: {pids}; say which"),
        ));
    }
    match targets.into_iter().next() {
        None if is_full => Err(unreachable(name, Errno::AGAIN)),
        None if is_denied => Err(Failure::new(
            DENIED,
            format!(
                "not permitted to branch {name}: it is another user's; run as that user, or as root with its process id"
            ),
        )),
        target => Ok(target),
    }
}

fn unreachable(what: &str, errno: Errno) -> Failure {
    let why = match errno {
        Errno::AGAIN => "too many wait for it already".to_owned(),
        errno => std::io::Error::from(errno).to_string(),
    };
    Failure::new(FAILED, format!("cannot reach {what}: {why}"))
}

/// All programs that this user may branch.
pub(super) fn all() -> Vec<Target> {
    let mut all: Vec<_> =
        found("self").iter().filter_map(|found| connect(found, None).ok()).collect();
    all.sort_by_key(|target| target.pid);
    all
}
