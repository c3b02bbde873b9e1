//! `cowslip trace diff` for pairs of commands that differ by a word: the first line has the kernel's counts
//! (`getrusage(2)`), and the cause where the traces show it.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::{COWSLIP, Folder, compile, run};

/// The faults that a program counted itself.
#[derive(Clone, Copy, Debug)]
struct Counted {
    /// Faults of the part that the word changes.
    during: f64,
    /// All of them.
    total: f64,
}

/// A trace of a command, and its program's counts; `None`, reported as skipped, where faults may not be recorded.
fn record(folder: &Folder, name: &str, command: &[&str]) -> Option<(PathBuf, Counted)> {
    let file = folder.0.join(name);
    let mut cowslip = Command::new(COWSLIP);
    cowslip.arg("trace").arg("-o").arg(&file).arg("--").args(command).current_dir(&folder.0);
    let ran = run(&mut cowslip);
    match ran.status.code() {
        Some(0) => {}
        Some(125) => {
            let expected = std::env::var("COWSLIP_EXPECT").unwrap_or_default();
            assert!(!expected.split(',').any(|name| name == "trace"), "{}", ran.stderr);
            println!("SKIPPED: cowslip trace: {}", ran.stderr);
            return None;
        }
        _ => panic!("{command:?}: {}", ran.stderr),
    }
    let numbers: Vec<f64> =
        ran.stdout.split_whitespace().map(|number| number.parse().unwrap()).collect();
    let [during, total] = numbers[..] else { panic!("{command:?}: {}", ran.stdout) };
    Some((file, Counted { during, total }))
}

/// The numbers of `first → second faults` in a sentence.
fn change(sentence: &str) -> Option<[f64; 2]> {
    let number = |word: &str| word.replace(',', "").parse::<f64>().ok();
    let words: Vec<&str> = sentence.split_whitespace().collect();
    words.windows(4).find_map(|words| match words {
        [first, "→", second, faults] if faults.starts_with("faults") => {
            Some([number(first)?, number(second)?])
        }
        _ => None,
    })
}

/// Compares two commands; `cause` begins the first line where calls are seen. Up to `other` counted faults do not
/// belong to it.
fn compare(
    folder: &Folder,
    name: &str,
    [first, second]: [&[&str]; 2],
    cause: &str,
    other: f64,
) -> Option<()> {
    let (first, first_counted) = record(folder, &format!("{name}.first"), first)?;
    let (second, second_counted) = record(folder, &format!("{name}.second"), second)?;
    let mut command = Command::new(COWSLIP);
    command.args(["trace", "diff"]).args([&first, &second]).args(["--json", "-"]);
    let ran = run(&mut command);
    assert_eq!(ran.status.code(), Some(1), "{name}: {}\n{}", ran.stdout, ran.stderr);
    let json: Value = serde_json::from_str(&ran.stdout).unwrap();
    let diff = &json["diff"];
    assert_eq!(diff["basis"], "per_run", "{name}");
    // The trace begins with the program, the kernel's count with the process; the program counts before it ends.
    let is_near = |told: f64, counted: f64| (told - counted).abs() <= other + counted / 200.0;
    let lost = [0, 1].map(|side| diff["sides"][side]["lost"].as_u64().unwrap());
    if lost != [0, 0] {
        println!("SKIPPED: {name}: the rings that are permitted here are too small: {lost:?} lost");
        return Some(());
    }
    for (side, counted) in [first_counted, second_counted].iter().enumerate() {
        let faults = diff["sides"][side]["faults"].as_f64().unwrap();
        assert!(is_near(faults, counted.total), "{name}: {faults} faults of {counted:?}");
    }
    let sentence = diff["explanations"][0].as_str().unwrap_or_else(|| panic!("{name}: {diff:#}"));
    println!("{name}: {sentence}");
    let Some(told) = change(sentence) else { panic!("{name}: no counts in {sentence:?}") };
    let during = [first_counted.during, second_counted.during];
    let sources = json["headers"][0]["sources"].to_string();
    if sources.contains("munmap") {
        assert!(sentence.starts_with(cause), "{name}: {sentence:?} is not {cause:?}");
        let are_near = told.iter().zip(during).all(|(told, counted)| is_near(*told, counted));
        assert!(are_near, "{name}: {sentence:?} of {during:?}");
    } else {
        println!("SKIPPED: {name}: calls are not seen here: {}", json["headers"][0]["unseen"]);
        let (told, counted) = (told[1] - told[0], during[1] - during[0]);
        assert!(is_near(told, counted), "{name}: {sentence:?} of {during:?}");
    }
    Some(())
}

#[test]
fn commands_that_differ_by_a_word_are_compared_by_their_counts() {
    let folder = Folder::new("trace-pairs");
    let Some(program) = compile(&folder, "pairs") else { return };
    let program = program.to_str().unwrap();
    let thp = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    let is_asked = thp.is_ok_and(|thp| thp.contains("[madvise]"));
    for (name, cause) in [
        ("buffers", "anonymous maps of up to 1 MiB are mapped anew, 1 → 64 times"),
        ("shared-buffers", "shared maps of up to 1 MiB are mapped anew, 1 → 64 times"),
        ("madvise", "memory that madvise gave back is touched again"),
        ("huge", "huge pages: 8 calls → 0 calls of madvise(MADV_HUGEPAGE)"),
        ("fork", "copy-on-write after fork"),
        ("stack", "the stack grows"),
        ("heap", "the heap is given back and taken again"),
        ("threads", "memory that madvise gave back is touched again, most of it in thread stack"),
        ("memfd", "/memfd:pairs"),
        ("more", "anonymous maps of up to 32 MiB: 2,048 → 8,192 faults"),
    ] {
        if name == "huge" && !is_asked {
            println!("SKIPPED: huge pages are not for those that ask for them here");
            continue;
        }
        let commands = [&[program, name, "one"][..], &[program, name, "other"]];
        if compare(&folder, name, commands, cause, 150.0).is_none() {
            return;
        }
    }
}

/// The Python behind a shell's `python3`, as a program of its own.
fn python() -> Option<String> {
    let ran = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
    match ran {
        Ok(ran) if ran.status.success() => {
            Some(String::from_utf8(ran.stdout).unwrap().trim().to_owned())
        }
        _ => {
            println!("SKIPPED: python3 is not there");
            None
        }
    }
}

/// Counts faults. Ends at once, because the interpreter's work at its end is not counted.
const COUNT: &str = "
import os, resource
def faults():
    all = [resource.getrusage(it) for it in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(it.ru_minflt + it.ru_majflt for it in all)
def end():
    print(faults() - before, faults(), flush=True)
    os._exit(0)
";

/// `docs/guides/regressions.md` as it is, with a count at its program's end.
#[test]
fn the_guides_own_regression_is_told_with_its_counts() {
    let folder = Folder::new("trace-guide");
    let Some(python) = python() else { return };
    let work = "
import hashlib
before = faults()
total = hashlib.sha256()
for number in range(3000):
    block = bytearray(300_000)
    block[number] = 1
    total.update(block[:4096])
end()
";
    let write = |name: &str, text: &str| fs::write(folder.0.join(name), text).unwrap();
    write("work.py", &format!("{COUNT}{work}"));
    write("good", &format!("exec {python} work.py\n"));
    write("bad", &format!("MALLOC_MMAP_THRESHOLD_=65536 exec {python} work.py\n"));
    let cause = "anonymous maps of up to 512 KiB are mapped anew";
    compare(&folder, "guide", [&["sh", "good"], &["sh", "bad"]], cause, 150.0);
}

/// Children of a big heap, with its reference counts frozen and without.
#[test]
fn what_children_copy_is_told_with_its_counts() {
    let folder = Folder::new("trace-freeze");
    let Some(python) = python() else { return };
    let script = "
import gc, sys
objects = [[] for _ in range(400_000)]
if sys.argv[1] == 'freeze':
    gc.freeze()
before = faults()
for _ in range(4):
    if os.fork() == 0:
        gc.collect()
        os._exit(0)
    os.wait()
end()
";
    let path: &Path = &folder.0.join("cowfork.py");
    fs::write(path, format!("{COUNT}{script}")).unwrap();
    let path = path.to_str().unwrap();
    let commands = [&[&python, path, "freeze"][..], &[&python, path, "no"]];
    compare(&folder, "freeze", commands, "copy-on-write after fork", 600.0);
}
