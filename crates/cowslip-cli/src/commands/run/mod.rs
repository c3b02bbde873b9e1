//! `cowslip run`: starts a program with the preload library.

mod args;
mod libraries;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use cowslip::host;
use cowslip::units::ByteCount;
use cowslip_sys::Errno;
use cowslip_sys::atomic_file::{Target, append_in_place};
use cowslip_sys::executable::{self, Kind};
use cowslip_sys::process::MemoryLimit;
use cowslip_sys::started_with;

use crate::exit::{self, CANNOT_RUN, CommandResult, Failure, NOT_FOUND, UNSUPPORTED, USAGE};
pub(super) use args::Args;
use args::{BackingArg, MallocArg};
pub(super) use libraries::libraries;

pub(super) fn run(args: Args) -> CommandResult {
    let memory = host::memory_and_swap();
    if let Some(capacity) = args.capacity.filter(|&capacity| capacity > memory) {
        return Err(Failure::new(
            USAGE,
            format!("--capacity {capacity} is more than the {memory} of memory and swap here"),
        ));
    }
    check_writable("--log", args.log.as_deref())?;
    check_writable("--report", args.report.as_deref())?;
    let name = &args.program[0];
    let path = std::env::var_os("PATH");
    let program =
        executable::find(name, path.as_deref()).map_err(|errno| cannot_run(name, errno))?;
    let obstacle = why_unhelped(&program).map(str::to_owned).or_else(|| why_no_better_off(&args));
    let limit = limit_without_arena(args.capacity.unwrap_or(memory));
    let mut command = Command::new(&program);
    command.arg0(args.argv0.as_ref().unwrap_or(name)).args(&args.program[1..]);
    match obstacle {
        Some(why) if args.strict => {
            return Err(Failure::new(UNSUPPORTED, format!("{}: {why}", program.display())));
        }
        Some(why) if args.quiet => drop(why),
        Some(why) => errln!("cowslip: {} runs as without Cowslip: {why}", program.display()),
        None => {
            let why = |limit: MemoryLimit| format!("{} is set; {}", limit.name(), limit.remedy());
            match limit {
                Some(limit) if args.strict => {
                    let message = format!("{}: {}", program.display(), why(limit));
                    return Err(Failure::new(UNSUPPORTED, message));
                }
                // The program, or one that it starts, may lift it. A limit of files is for other
                // reasons, and the log has a word of it.
                Some(limit) if !args.quiet && limit != MemoryLimit::FileSize => {
                    errln!("cowslip: {} gets no arena: {}", program.display(), why(limit));
                }
                _ => {}
            }
            prepare(&mut command, &args)?;
        }
    }
    started_with::give_back(&mut command);
    let errno = Errno::from_io_error(&command.exec()).unwrap_or(Errno::NOEXEC);
    Err(cannot_run(name, errno))
}

/// Checks this before the program runs: afterwards an error could not be reported.
fn check_writable(option: &str, file: Option<&Path>) -> Result<(), Failure> {
    let Some(file) = file.filter(|file| !is_stderr(option, file)) else { return Ok(()) };
    let failed = |error| exit::io(format_args!("{option} {}", file.display()))(error);
    Target::find(file).map_err(failed)?;
    let is_there = file.exists();
    append_in_place(file).map_err(failed)?;
    if !is_there {
        // It is created when there is something to write.
        let _ = std::fs::remove_file(file);
    }
    Ok(())
}

/// Fails like `env(1)`.
fn cannot_run(name: &OsStr, errno: Errno) -> Failure {
    let (code, why) = match errno {
        Errno::NOENT => (NOT_FOUND, "there is no such program".to_owned()),
        Errno::ACCESS if Path::new(name).is_dir() => (CANNOT_RUN, "it is a folder".to_owned()),
        Errno::ACCESS => (CANNOT_RUN, "it is not executable".to_owned()),
        errno => (CANNOT_RUN, std::io::Error::from(errno).to_string()),
    };
    Failure::new(code, format!("cannot run {}: {why}", name.display()))
}

fn prepare(command: &mut Command, args: &Args) -> Result<(), Failure> {
    let [cowslip, malloc] = libraries()?;
    let mut libraries = vec![cowslip];
    // Auditing libraries leave too little room for its thread-local storage (`rtld-audit(7)`).
    let is_audited = std::env::var_os("LD_AUDIT").is_some_and(|audits| !audits.is_empty());
    if args.malloc == MallocArg::Bundled && !is_audited {
        libraries.push(malloc);
    }
    // The loader knows no quotes (`ld.so(8)`).
    let is_torn =
        |path: &&PathBuf| path.as_os_str().as_bytes().iter().any(|byte| b" :".contains(byte));
    if let Some(path) = libraries.iter().find(is_torn) {
        let why = "LD_PRELOAD cannot name it, with a space or a colon: install Cowslip elsewhere";
        return Err(Failure::new(UNSUPPORTED, format!("{}: {why}", path.display())));
    }
    let ours =
        libraries.iter().map(|path| path.as_os_str()).collect::<Vec<_>>().join(OsStr::new(":"));
    let mut preload = ours.clone();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    command
        .env("LD_PRELOAD", preload)
        .env("COWSLIP_LIBRARIES", ours)
        .env("COWSLIP_THRESHOLD", args.threshold.0.to_string())
        .env("COWSLIP_ARENA_AFTER", args.arena_after.0.to_string())
        .env("COWSLIP_BACKING", if args.backing == BackingArg::Thp { "thp" } else { "base" });
    if let Some(capacity) = args.capacity {
        command.env("COWSLIP_CAPACITY", capacity.0.to_string());
    }
    if let Some(percent) = args.child_share {
        command.env("COWSLIP_CHILD_SHARE", percent.to_string());
    }
    if let Some(size) = args.child_memory {
        command.env("COWSLIP_CHILD_MEMORY", size.0.to_string());
    }
    for (name, is_set) in [
        ("COWSLIP_PLAIN", args.without_userfaultfd),
        ("COWSLIP_RESPECT_THP_DISABLE", args.respect_thp_disable),
        ("COWSLIP_FOLLOW_EXEC", args.follow_exec),
        ("COWSLIP_GUEST_MEMORY", args.guest_memory),
    ] {
        if is_set {
            command.env(name, "1");
        }
    }
    for (option, name, file) in
        [("--report", "COWSLIP_REPORT", &args.report), ("--log", "COWSLIP_LOG", &args.log)]
    {
        if let Some(file) = file {
            // The program may change its directory before it writes to the file.
            let file = if is_stderr(option, file) { file.clone() } else { absolute(file) };
            command.env(name, file);
        }
    }
    Ok(())
}

fn is_stderr(option: &str, file: &Path) -> bool {
    option == "--log" && file.as_os_str() == "-"
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The reason why the preload library cannot help this program, if there is one.
fn why_unhelped(program: &Path) -> Option<&'static str> {
    if !Path::new("/proc/self/maps").exists() {
        return Some("there is no /proc here, by which memory is watched");
    }
    match executable::kind_that_runs(program) {
        Kind::Dynamic => None,
        Kind::Go => Some(
            "it is a Go program, whose memory and forks come from system calls of its own that no \
             library sees",
        ),
        Kind::Musl => Some("it is linked with musl, and the library to preload is for glibc"),
        Kind::Sanitized => Some(
            "it is built with a sanitizer, whose library is to be the first that is loaded and \
             keeps the memory itself",
        ),
        Kind::Privileged => {
            Some("it is setuid or setgid, and the system preloads nothing into such programs")
        }
        Kind::Static => {
            Some("it is statically linked, and nothing can be preloaded into it (use the library)")
        }
        Kind::Foreign => Some("it is for another kind of machine than Cowslip was built for"),
        Kind::Script | Kind::Other => Some("it is no ELF program"),
    }
}

/// The limit under which a program gets no arena, if there is one.
fn limit_without_arena(capacity: ByteCount) -> Option<MemoryLimit> {
    let rules_out = |limit: &MemoryLimit| {
        let now = limit.current();
        now.is_some_and(|now| *limit != MemoryLimit::FileSize || now <= capacity)
    };
    MemoryLimit::ALL.into_iter().find(rules_out)
}

/// The reason why the program would gain nothing by an arena, unless that was asked for.
fn why_no_better_off(args: &Args) -> Option<String> {
    let thaw = if args.without_userfaultfd { None } else { host::thaw_obstacle() };
    let wants_huge = args.backing == BackingArg::Thp;
    let obstacle = thaw.or_else(|| host::huge_pages_obstacle().filter(|_| wants_huge))?;
    let fix = obstacle
        .fix
        .map(|command| format!("; {}", crate::commands::advice(&command)))
        .unwrap_or_default();
    Some(format!("it may not have {}{fix}", obstacle.what))
}
