//! The text of a program: where the kernel makes huge pages of it, and where it does not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Folder, run};
use crate::target::{MIB, Program, promote};

/// Where any kernel that collapses shared memory makes huge pages of text.
const TMPFS: &str = "/dev/shm";

/// A folder in a tmpfs, removed at the end.
struct InMemory(PathBuf);

impl InMemory {
    fn new() -> Self {
        let folder = Path::new(TMPFS).join(format!("cowslip-text-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Compiles the program with text at addresses that suit its file's huge pages; `None` without a compiler.
fn compiled(folder: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/text.c");
    let program = folder.join("text");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wl,-z,max-page-size=0x200000", "-o"]).arg(&program).arg(source);
    match cc.status() {
        Ok(status) => assert!(status.success(), "cc text.c: {status}"),
        Err(error) => {
            println!("SKIPPED: cc: {error}");
            return None;
        }
    }
    Some(program)
}

fn huge_mib(target: &Program) -> u64 {
    (target.sum("ShmemPmdMapped:") + target.sum("FilePmdMapped:")) / MIB
}

/// A program that has executed all of its text; `None` where its files may not be executed.
fn started(program: &Path) -> Option<Program> {
    if run(&mut Command::new(program)).status.code() != Some(0) {
        println!("SKIPPED: exec: {} cannot be executed", program.display());
        return None;
    }
    let mut target = Program::start(&mut Command::new(program));
    assert_eq!(target.tell("walk"), "walked");
    Some(target)
}

const OPTIONS: [&str; 3] = ["--once", "--stall-budget", "100"];

#[test]
fn text_becomes_huge_only_where_that_is_asked_for() {
    let folder = InMemory::new();
    let Some(program) = compiled(&folder.0) else { return };
    let Some(mut target) = started(&program) else { return };
    promote(target.pid(), &OPTIONS);
    assert_eq!(huge_mib(&target), 0, "it was not asked for");
    let ran = promote(target.pid(), &[&OPTIONS[..], &["--files"]].concat());
    if !ran.stderr.contains(&format!("huge pages of text on {TMPFS}: available")) {
        return println!("SKIPPED: shmem_collapse: {}", ran.stderr);
    }
    assert!((4..=6).contains(&huge_mib(&target)), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.status.success() && ran.stdout.contains(" of text are huge"), "{}", ran.stdout);
    assert_eq!(target.tell("walk"), "walked", "the same instructions");
}

/// The answer for a file system on a disk has to agree with the outcome.
#[test]
fn text_on_a_disk_becomes_huge_where_the_probe_says_so() {
    let folder = Folder::new("promote-text");
    let Some(program) = compiled(&folder.0) else { return };
    // The file's pages can only become huge once they are on the disk.
    assert!(Command::new("sync").arg(&program).status().unwrap().success());
    let Some(mut target) = started(&program) else { return };
    // The kernel makes some itself where a file system has large folios (ext4 from Linux 6.16 on).
    let before = huge_mib(&target);
    let ran = promote(target.pid(), &[&OPTIONS[..], &["--files"]].concat());
    let told: Vec<_> =
        ran.stderr.lines().filter(|line| line.contains("huge pages of text on")).collect();
    let is_available = told.iter().any(|line| line.ends_with(": available"));
    println!("{told:?}: {before} MiB huge, then {}", huge_mib(&target));
    if told.len() == 1 && before < 4 {
        assert_eq!(huge_mib(&target) > before, is_available, "{}{}", ran.stdout, ran.stderr);
    }
    assert_eq!(target.tell("walk"), "walked", "the same instructions");
}
