//! Programs on glibc's malloc under `cowslip run`: their heap is in the arena, and forks keep it apart.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const COWSLIP: &str = env!("CARGO_BIN_EXE_cowslip");

/// A heap of some 100 MB, changed on both sides of several forks. Dies if a side sees the other's.
const FORKING: &str = r#"
    my @values = map { "value $_ " x 50 } 0 .. 99_999;
    for my $round (1 .. 5) {
        my $child = fork;
        die "fork: $!" unless defined $child;
        if (!$child) {
            my $right = $values[$round - 1] eq ($round > 1 ? "of the parent" : "value 0 " x 50)
                && $values[99_999] eq "value 99999 " x 50;
            $_ = "of the child" for @values;
            exit($right ? 0 : 1);
        }
        $values[$round] = "of the parent";
        waitpid($child, 0);
        die "the child of round $round saw wrong values" if $?;
    }
    die "the parent sees its children's values" if grep { $_ eq "of the child" } @values;
"#;

fn perl(options: &[&str], script: &str) -> (Output, Option<serde_json::Value>) {
    let report = std::env::temp_dir().join(format!(
        "cowslip-run-{}-{:?}.json",
        std::process::id(),
        std::thread::current().id()
    ));
    let mut command = Command::new(COWSLIP);
    command.arg("run").args(options).arg("--report").arg(&report);
    let output = command.args(["--", "/usr/bin/perl", "-e", script]).output().unwrap();
    let text = std::fs::read_to_string(&report).ok();
    let _ = std::fs::remove_file(&report);
    (output, text.map(|text| serde_json::from_str(&text).unwrap()))
}

fn perl_is_there() -> bool {
    let is_there = Path::new("/usr/bin/perl").exists();
    if !is_there {
        println!("SKIPPED: no perl here, which every Debian has");
    }
    is_there
}

#[test]
fn the_heap_of_a_program_on_glibc_malloc_is_in_the_arena() {
    if !perl_is_there() {
        return;
    }
    let (output, report) = perl(&[], FORKING);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = report.expect("a report at exit");
    assert!(report["forks"].as_u64() >= Some(5), "{report}");
    assert!(report["freezes"].as_u64() >= Some(1), "{report}");
    assert!(report["used_bytes"].as_u64() >= Some(30 << 20), "{report}");
}

#[test]
fn a_malloc_that_is_to_be_kept_is() {
    if !perl_is_there() {
        return;
    }
    let (output, report) = perl(&["--malloc", "keep"], FORKING);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let used = report.expect("a report")["used_bytes"].as_u64().unwrap_or(0);
    assert!(used < 8 << 20, "glibc's heap cannot be in an arena: {used} bytes");
}

/// Every function that glibc's malloc has, in a program that checks them.
#[test]
fn the_bundled_malloc_has_the_whole_family() {
    if Command::new("cc").arg("--version").output().is_err() {
        println!("SKIPPED: no C compiler here");
        return;
    }
    let folder = std::env::temp_dir().join(format!("cowslip-malloc-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, program): (PathBuf, PathBuf) = (folder.join("family.c"), folder.join("family"));
    std::fs::write(&source, include_str!("family.c")).unwrap();
    let mut compile = Command::new("cc");
    compile.args(["-O1", "-fno-builtin", "-pthread", "-o"]).args([&program, &source]);
    assert!(compile.status().unwrap().success());
    for malloc in ["auto", "keep"] {
        let run =
            Command::new(COWSLIP).args(["run", "--malloc", malloc, "--"]).arg(&program).output();
        let run = run.unwrap();
        let said = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "--malloc {malloc}: {:?}: {said}", run.status);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
