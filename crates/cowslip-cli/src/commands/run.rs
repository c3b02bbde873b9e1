//! `cowslip run`: starts a program with the preload library.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::args::{BackingArg, MallocArg, RunArgs};
use crate::commands::{elf, linked};
use crate::exit::{Answer, Failure, NO, UNSUPPORTED, USAGE};

const LIBRARY: &str = "libcowslip_preload.so";
pub(crate) const MALLOC: &str = "libcowslip_malloc.so";

pub(crate) fn run(args: RunArgs) -> Answer {
    let memory = cowslip::host::memory_and_swap();
    if let Some(capacity) = args.capacity.filter(|&capacity| capacity > memory) {
        return Err(Failure::new(
            USAGE,
            format!("--capacity {capacity} is more than the {memory} of memory and swap here"),
        ));
    }
    let name = &args.program[0];
    let program = find(name).ok_or_else(|| {
        Failure::new(NO, format!("cannot run {}: no such program", name.display()))
    })?;
    let kind = elf::kind(&program);
    if let Some(why) = why_unhelped(&program, kind) {
        let text = format!("{}: {why}", program.display());
        if args.strict {
            return Err(Failure::new(UNSUPPORTED, text));
        }
        eprintln!("cowslip: {text}; it runs unchanged");
    }
    if kind == elf::Kind::Musl {
        // Its loader would refuse to start it with a library for glibc.
        let error = Command::new(&program).arg0(name).args(&args.program[1..]).exec();
        return Err(Failure::new(NO, format!("cannot run {}: {error}", program.display())));
    }
    let mut libraries = vec![library()?];
    let bundled = match args.malloc {
        MallocArg::Keep => false,
        MallocArg::Bundled => true,
        MallocArg::Auto => linked::own_allocator(&program).is_none(),
    };
    if bundled {
        libraries.push(libraries[0].with_file_name(MALLOC));
    }
    let error = command(&args, &program, &libraries).exec();
    Err(Failure::new(NO, format!("cannot run {}: {error}", program.display())))
}

fn command(args: &RunArgs, program: &Path, libraries: &[PathBuf]) -> Command {
    let others = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let preloads = libraries.iter().map(|library| library.as_os_str());
    let preloads = preloads.chain(Some(others.as_os_str()).filter(|others| !others.is_empty()));
    let preload = preloads.collect::<Vec<_>>().join(OsStr::new(":"));
    let mut command = Command::new(program);
    command
        .arg0(&args.program[0])
        .args(&args.program[1..])
        .env("LD_PRELOAD", preload)
        .env("COWSLIP_OTHER_PRELOADS", others)
        .env("COWSLIP_THRESHOLD", args.threshold.0.to_string())
        .env("COWSLIP_BACKING", if args.backing == BackingArg::Thp { "thp" } else { "base" });
    if let Some(capacity) = args.capacity {
        command.env("COWSLIP_CAPACITY", capacity.0.to_string());
    }
    if args.no_userfaultfd {
        command.env("COWSLIP_USERFAULTFD", "0");
    }
    if args.respect_thp_disable {
        command.env("COWSLIP_RESPECT_THP_DISABLE", "1");
    }
    if let Some(percent) = args.child_share {
        command.env("COWSLIP_CHILD_SHARE", percent.to_string());
    }
    if let Some(size) = args.child_memory {
        command.env("COWSLIP_CHILD_MEMORY", size.0.to_string());
    }
    if args.follow_exec {
        command.env("COWSLIP_FOLLOW_EXEC", "1");
    }
    for (name, file) in [("COWSLIP_REPORT", &args.report), ("COWSLIP_LOG", &args.log)] {
        if let Some(file) = file {
            let is_stderr = name == "COWSLIP_LOG" && file.as_os_str() == "-";
            // The program may change its directory before it writes there.
            let file = if is_stderr { file.clone() } else { absolute(file) };
            command.env(name, file);
        }
    }
    command
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The preload library: beside this program, in `../lib/cowslip`, or where `COWSLIP_LIBRARY` says.
pub(crate) fn library() -> Result<PathBuf, Failure> {
    if let Some(path) = std::env::var_os("COWSLIP_LIBRARY") {
        return Ok(absolute(Path::new(&path)));
    }
    let here = std::env::current_exe().ok();
    let folder = here.as_deref().and_then(Path::parent).unwrap_or(Path::new("."));
    let places = [folder.join(LIBRARY), folder.join("../lib/cowslip").join(LIBRARY)];
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| {
        Failure::new(
            NO,
            format!(
                "cannot find {LIBRARY} (looked at {} and {}); build it with `cargo build --release` \
                 or set COWSLIP_LIBRARY",
                places[0].display(),
                places[1].display()
            ),
        )
    })
}

/// The file that `name` runs, as `execvp(3)` finds it.
pub(super) fn find(name: &OsStr) -> Option<PathBuf> {
    let is_program = |path: &Path| {
        path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    if name.as_encoded_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return is_program(&path).then_some(path);
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| is_program(path))
}

/// Why the preload library cannot help this program, if it cannot.
fn why_unhelped(program: &Path, kind: elf::Kind) -> Option<&'static str> {
    let mode = program.metadata().ok()?.permissions().mode();
    if mode & 0o6000 != 0 {
        return Some("it is setuid or setgid, and the system preloads nothing into such programs");
    }
    match kind {
        elf::Kind::Dynamic => None,
        elf::Kind::Go => Some(
            "it is a Go program, whose memory and forks come from system calls of its own that no \
             library sees",
        ),
        elf::Kind::Musl => Some("it is linked with musl, and the library to preload is for glibc"),
        elf::Kind::Static => {
            Some("it is statically linked, and nothing can be preloaded into it (use the library)")
        }
        elf::Kind::Foreign => Some("it is for another kind of machine than Cowslip was built for"),
        elf::Kind::Script => Some(
            "it is a script: only its interpreter is helped, not the programs it starts; name the \
             program itself",
        ),
        elf::Kind::Other => Some("it is no ELF program"),
    }
}
