//! Libraries that stand between a program and its malloc, or watch the dynamic linker: heap profilers and tracers.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{COWSLIP, Folder, run};

/// A heap that the bundled malloc serves, told by its content.
const SCRIPT: &str = "my @texts = map { 'text ' x $_ } 0 .. 2_500; print length(join '', @texts)";
const ANSWER: &str = "15631250";

/// Programs with small heaps and one with a large one.
const PROGRAMS: [(&[&str], &str); 2] =
    [(&["/usr/bin/perl", "-e", "print 7"], "7"), (&["/usr/bin/perl", "-e", SCRIPT], ANSWER)];

/// A shell's command that puts a library first.
const LAUNCHER: &str = r#"export "$0=$1${LD_PRELOAD:+:$LD_PRELOAD}"; shift; exec "$@""#;

/// Compiles a library of `tests/programs`; `None`, reported as skipped, without a compiler.
fn library(folder: &Folder, name: &str, definitions: &[&str]) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
    let library = folder.0.join(format!("{name}{}.so", definitions.concat()));
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-fno-builtin", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]);
    match cc.arg(&library).args(definitions).arg(source).status() {
        Ok(status) => assert!(status.success(), "cc {name}.c: {status}"),
        Err(error) => {
            println!("SKIPPED: cc: {error}");
            return None;
        }
    }
    Some(library)
}

/// Runs each program with `variable` set to the library: by the user, before Cowslip's libraries are loaded, and by a
/// launcher that puts it first. Each time its output must be right, and its messages have `wanted`.
fn check(variable: &str, library: &Path, wanted: &str) {
    if !Path::new(PROGRAMS[0].0[0]).exists() {
        return println!("SKIPPED: no perl here, which every Debian has");
    }
    const AUDITOR: &str = r#"export "$0=$1"; shift; exec "$@""#;
    let launcher = if variable == "LD_PRELOAD" { LAUNCHER } else { AUDITOR };
    for (program, answer) in PROGRAMS {
        for options in [&[][..], &["--malloc", "keep"], &["--follow-exec"]] {
            let mut given = Command::new(COWSLIP);
            given.arg("run").args(options).arg("--").args(program).env(variable, library);
            let mut launched = Command::new(COWSLIP);
            launched.arg("run").args(options).args(["--", "/bin/sh", "-c", launcher, variable]);
            launched.arg(library).args(program);
            for command in [&mut given, &mut launched] {
                let ran = run(command);
                let what =
                    format!("{variable}={}, {command:?}: {:?}", library.display(), ran.status);
                assert_eq!(ran.stdout, answer, "{what} {}", ran.stderr);
                assert!(
                    ran.status.success() && ran.stderr.contains(wanted),
                    "{what} {}",
                    ran.stderr
                );
            }
        }
    }
}

#[test]
fn an_interposer_of_malloc_sees_the_calls_in_either_order() {
    let folder = Folder::new("interposers");
    for definitions in [&[][..], &["-DSOME"], &["-DONE"], &["-DDIRECT"]] {
        let Some(library) = library(&folder, "interposer", definitions) else { return };
        check("LD_PRELOAD", &library, "interposed: yes");
    }
}

/// Debian's Python is such a program. The dynamic linker finds `malloc` in it, where there is none.
#[test]
fn a_program_at_a_fixed_place_has_the_bundled_malloc_unless_another_stands_first() {
    let folder = Folder::new("interposers-fixed");
    let Some(library) = library(&folder, "interposer", &[]) else { return };
    let program = folder.0.join("allocates");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/allocates.c");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-no-pie", "-fno-pie", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    assert!(cc.arg(source).status().unwrap().success());
    let cowslip = || {
        let mut command = Command::new(COWSLIP);
        command.args(["run", "--"]);
        command
    };
    let (mut alone, mut given, mut launched) = (cowslip(), cowslip(), cowslip());
    given.env("LD_PRELOAD", &library);
    launched.args(["/bin/sh", "-c", LAUNCHER, "LD_PRELOAD"]).arg(&library);
    for (command, is_alone) in [(&mut alone, true), (&mut given, false), (&mut launched, false)] {
        let ran = run(command.arg(&program));
        assert!(ran.status.success(), "{command:?}: {:?} {}", ran.status, ran.stderr);
        assert_eq!(ran.stderr.contains("jemalloc"), is_alone, "{command:?}: {}", ran.stderr);
        let is_interposed = ran.stderr.contains("interposed: yes");
        assert_eq!(is_interposed, !is_alone, "{command:?}: {}", ran.stderr);
    }
}

#[test]
fn two_interposers_of_malloc_both_see_the_calls() {
    let folder = Folder::new("interposers-two");
    let Some(whole) = library(&folder, "interposer", &[]) else { return };
    let Some(some) = library(&folder, "interposer", &["-DSOME"]) else { return };
    let both = [&whole, &some].map(|library| library.to_str().unwrap()).join(":");
    check("LD_PRELOAD", Path::new(&both), "interposed: yes\ninterposed: yes");
}

#[test]
fn the_memory_profiler_of_libc_works() {
    let folders = ["/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let places = folders.map(|folder| Path::new(folder).join("libmemusage.so"));
    let Some(library) = places.iter().find(|place| place.is_file()) else {
        return println!("SKIPPED: memusage: no libmemusage.so here (libc-devtools)");
    };
    check("LD_PRELOAD", library, "Memory usage summary");
}

/// Their static thread-local storage leaves no room for that of the bundled malloc.
#[test]
fn a_program_whose_linking_is_audited_runs() {
    let folder = Folder::new("interposers-audit");
    let Some(library) = library(&folder, "auditing", &[]) else { return };
    check("LD_AUDIT", &library, "");
}
