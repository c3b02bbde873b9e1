//! Freed memory of the bundled malloc goes back where glibc's would, and glibc's words for its malloc mean something.

mod support;

use std::process::Command;

use support::{COWSLIP, Folder, Ran, compile, run};

/// Runs the program, with a variable in its environment; `None` without a compiler.
fn heap(what: &str, variable: Option<(&str, &str)>) -> Option<Ran> {
    let folder = Folder::new("heap");
    let program = compile(&folder, "heap")?;
    let mut command = Command::new(COWSLIP);
    let ran = run(command.args(["run", "--"]).arg(program).arg(what).envs(variable));
    assert!(ran.status.success(), "{what}: {:?} {}", ran.status, ran.stderr);
    Some(ran)
}

#[test]
fn memory_is_returned_when_the_program_asks_for_it() {
    let Some(ran) = heap("trim", None) else { return };
    assert!(ran.stdout.starts_with("1 returned\n1 1\n"), "{}", ran.stdout);
}

#[test]
fn a_low_threshold_has_memory_returned_at_once() {
    let threshold = ("MALLOC_TRIM_THRESHOLD_", "65536");
    let tunable = ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=65536");
    for (what, variable, answer) in [
        ("", Some(threshold), "returned\n"),
        ("", Some(tunable), "returned\n"),
        ("mallopt", None, "1 returned\n"),
    ] {
        let Some(ran) = heap(what, variable) else { return };
        assert!(ran.stdout.starts_with(answer), "{what} {variable:?}: {}", ran.stdout);
    }
}

#[test]
fn the_most_arenas_are_respected() {
    for (most, arenas) in [("1", 1), ("2", 2), ("100", 4)] {
        let Some(ran) = heap("", Some(("MALLOC_ARENA_MAX", most))) else { return };
        assert_eq!(ran.stdout.matches("<heap nr=").count(), arenas, "{most}: {}", ran.stdout);
        assert!(ran.stderr.contains("in use bytes"), "{}", ran.stderr);
    }
}

/// Once with threads that were there before the arena, once with the main thread alone. No thread allocates any more.
#[test]
fn memory_is_returned_while_the_program_rests() {
    for what in ["threads", "rests"] {
        let Some(ran) = heap(what, None) else { return };
        if ran.stderr.contains("runs as without Cowslip") {
            return println!("SKIPPED: userfaultfd: {}", ran.stderr.trim_end());
        }
        assert_eq!(ran.stdout, "returned\n", "{what}: {}", ran.stderr);
    }
}
