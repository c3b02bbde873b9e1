//! `cowslip trace report` and `diff` on real programs with known faults.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::{COWSLIP, Folder, Ran, compile, run};

fn cowslip(arguments: &[&str]) -> Ran {
    run(Command::new(COWSLIP).arg("trace").args(arguments))
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}\n{}", ran.stdout, ran.stderr))
}

/// A trace of `program` in `folder`; `None`, reported as skipped, where faults may not be recorded.
fn record(folder: &Folder, name: &str, program: &Path, options: &[&str]) -> Option<PathBuf> {
    let file = folder.0.join(name);
    let mut command = Command::new(COWSLIP);
    command.arg("trace").args(options).arg("-o").arg(&file).arg("--").arg(program);
    let ran = run(&mut command);
    match ran.status.code() {
        Some(0) => Some(file),
        Some(125) => {
            let expected = std::env::var("COWSLIP_EXPECT").unwrap_or_default();
            assert!(!expected.split(',').any(|name| name == "trace"), "{}", ran.stderr);
            println!("SKIPPED: cowslip trace: {}", ran.stderr);
            None
        }
        _ => panic!("{}", ran.stderr),
    }
}

/// A trace of a shell script.
fn record_shell(folder: &Folder, name: &str, script: &str) -> Option<PathBuf> {
    let shell = folder.0.join("script");
    fs::write(&shell, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&shell, fs::Permissions::from_mode(0o755)).unwrap();
    record(folder, name, &shell, &[])
}

/// The only mappings of this number of bytes.
fn of_size(report: &Value, bytes: u64) -> &Value {
    let all = report["mappings"].as_array().unwrap();
    let mut fitting = all.iter().filter(|mapping| mapping["identity"]["size_bytes"] == bytes);
    let found = fitting.next().unwrap_or_else(|| panic!("{report:#}"));
    assert!(fitting.next().is_none(), "{report:#}");
    found
}

#[test]
fn the_faults_of_a_known_program_are_of_the_known_kinds() {
    let folder = Folder::new("trace-report");
    let Some(program) = compile(&folder, "kinds") else { return };
    for options in [&["--stacks", "none"][..], &["--stacks", "none", "--detail", "access"]] {
        let Some(trace) = record(&folder, "kinds.trace", &program, options) else { return };
        let trace = trace.to_str().unwrap();
        let report = json(&cowslip(&["report", trace, "--json", "-"]));
        assert_eq!((&report["lost"], &report["forks"]), (&0.into(), &1.into()), "{report:#}");
        if !report["header"]["sources"].to_string().contains("munmap") {
            println!("SKIPPED: madvise is not seen here: {}", report["header"]["unseen"]);
            return;
        }
        let kinds = &of_size(&report, 8 << 20)["by_kind"];
        let expected =
            serde_json::json!({"first_touch": 2048, "refault": 1000, "cow_after_fork": 800});
        assert_eq!(*kinds, expected, "{options:?}");
        let sentences: Vec<&str> = report["patterns"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pattern| pattern["sentence"].as_str().unwrap())
            .collect();
        let has = |words: &str| sentences.iter().any(|sentence| sentence.contains(words));
        assert!(
            has("8 MiB anonymous maps, 3,048 faults, descending, 4 KiB apart"),
            "{sentences:?}"
        );
        assert!(has("1,000 faults on memory that madvise had given back"), "{sentences:?}");
        let text = cowslip(&["report", trace]).stdout;
        assert!(
            text.contains("copy-on-write after fork") && text.contains("1,000 faults on"),
            "{text}"
        );
        assert!(!text.contains('…'), "nothing is cut where no terminal reads: {text}");
    }
}

/// The kernel reports the whole stack each time that it grows.
#[test]
fn a_stack_that_grows_page_by_page_is_one_mapping() {
    const MIB: u64 = 1 << 20;
    let folder = Folder::new("trace-stack");
    let Some(program) = compile(&folder, "deep_stack") else { return };
    let program = program.display();
    for (depth, limit) in [(1600, "8192"), (5000, "65536")] {
        let script = format!("ulimit -s {limit} || exit 0\nexec {program} {depth}");
        let Some(trace) = record_shell(&folder, "stack.trace", &script) else { return };
        // A mapping for each page and each growth would not fit: it would take one and a half GB.
        let report = run(Command::new("sh")
            .args(["-c", "ulimit -v 150000; exec \"$0\" trace report \"$1\" --json -", COWSLIP])
            .arg(&trace));
        assert!(report.status.success(), "{}", report.stderr);
        let report = json(&report);
        let is_stack = |mapping: &&Value| mapping["identity"]["place"]["kind"] == "stack";
        let stacks: Vec<_> =
            report["mappings"].as_array().unwrap().iter().filter(is_stack).collect();
        let [stack] = stacks[..] else { panic!("{stacks:#?}") };
        if limit == "65536" && stack["faults"].as_u64() < Some(5000) {
            println!("SKIPPED: a stack of 64 MiB is not permitted here");
            return;
        }
        // The shell's and the program's.
        assert!(stack["mappings"].as_u64() <= Some(2), "{stack:#}");
        assert_eq!(stack["unmapped_bytes"], 0, "{stack:#}");
        let pages = depth * 4096;
        let bytes = stack["mapped_bytes"].as_u64().unwrap();
        assert!((pages..pages + 2 * MIB).contains(&bytes), "{bytes}");
        assert!(stack["faults"].as_u64() >= Some(depth), "{stack:#}");
        let churn = |pattern: &Value| {
            pattern["name"] == "churn" && pattern["identity"]["place"]["kind"] == "stack"
        };
        assert!(!report["patterns"].as_array().unwrap().iter().any(churn), "{report:#}");
    }
}

/// The advice about a fork in CPython, and its effect.
#[test]
fn a_garbage_collection_after_a_fork_is_told_with_advice_that_helps() {
    const SCRIPT: &str = "import gc, os, sys
data = [[i, str(i)] for i in range(200_000)]
if sys.argv[1] == 'yes':
    gc.freeze()
child = os.fork()
if child == 0:
    gc.collect()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
";
    let folder = Folder::new("trace-python");
    let python = Path::new("/usr/bin/python3");
    if !python.exists() {
        println!("SKIPPED: CPython: there is no {}", python.display());
        return;
    }
    let script = folder.0.join("script.py");
    fs::write(&script, SCRIPT).unwrap();
    let copies = ["no", "yes"].map(|is_frozen| {
        let shell = format!("exec {} {} {is_frozen}", python.display(), script.display());
        let trace = record_shell(&folder, "python.trace", &shell)?;
        let report = json(&cowslip(&["report", trace.to_str().unwrap(), "--json", "-"]));
        let patterns = report["patterns"].as_array().unwrap();
        let storm = patterns.iter().find(|pattern| pattern["name"] == "cow_storm");
        let advice =
            storm.and_then(|storm| storm["advice"].as_str()).unwrap_or_default().to_owned();
        Some((storm.and_then(|storm| storm["faults"].as_u64()).unwrap_or(0), advice))
    });
    let [Some((before, advice)), Some((after, _))] = copies else { return };
    assert!(before > 5_000 && advice.starts_with("gc.freeze()"), "{before} copies: {advice}");
    assert!(after < before / 4 * 3, "{before} copies, and {after} with the advice");
}

#[test]
fn two_traces_of_one_program_are_the_same_and_of_two_programs_are_not() {
    let folder = Folder::new("trace-diff");
    let Some(program) = compile(&folder, "kinds") else { return };
    let traces: Option<Vec<PathBuf>> =
        ["a.trace", "b.trace"].iter().map(|name| record(&folder, name, &program, &[])).collect();
    let Some(traces) = traces else { return };
    let other = record(&folder, "c.trace", Path::new("/bin/true"), &[]).unwrap();
    let [a, b] = [0, 1].map(|index: usize| traces[index].to_str().unwrap());
    let same = cowslip(&["diff", a, b]);
    assert_eq!(same.status.code(), Some(0), "{}\n{}", same.stdout, same.stderr);
    assert!(same.stdout.contains("the faults are the same"), "{}", same.stdout);
    let differing = cowslip(&["diff", a, other.to_str().unwrap(), "--by", "run", "--json", "-"]);
    assert_eq!(differing.status.code(), Some(1), "{}", differing.stderr);
    let diff = json(&differing);
    let first = &diff["diff"]["groups"][0];
    assert_eq!((&first["size_bytes"], &first["sides"][1]), (&(8 << 20).into(), &Value::Null));
    assert!(first["sides"][0]["faults"].as_u64().unwrap() >= 3848, "{first:#}");
}

#[test]
fn what_is_no_trace_is_said_to_be_none() {
    let folder = Folder::new("trace-bad");
    let bad = folder.0.join("bad.trace");
    fs::write(&bad, "no trace").unwrap();
    let bad = bad.to_str().unwrap();
    for arguments in [&["report", bad][..], &["diff", bad, bad]] {
        let ran = cowslip(arguments);
        assert_eq!(ran.status.code(), Some(6), "{}", ran.stderr);
        assert!(ran.stderr.contains("bad.trace"), "{}", ran.stderr);
    }
    let ran = cowslip(&["diff", "/nowhere/a", "/nowhere/b"]);
    assert_eq!(
        ran.status.code(),
        Some(2),
        "trouble must not look like a difference: {}",
        ran.stderr
    );
}
