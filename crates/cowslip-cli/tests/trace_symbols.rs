//! `cowslip trace` names functions: of libraries with installed debug symbols, and of code that a program generates
//! while it runs.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support::{COWSLIP, Folder, Ran, compile, run};

fn cowslip(arguments: &[&str]) -> Ran {
    run(Command::new(COWSLIP).arg("trace").args(arguments))
}

/// Records a command; `None`, reported as skipped, where that is not possible.
fn record(folder: &Folder, command: &[&str]) -> Option<String> {
    record_with(folder, &[], command)
}

fn record_with(folder: &Folder, options: &[&str], command: &[&str]) -> Option<String> {
    let file = folder.0.join("trace");
    let file = file.to_str().unwrap();
    let stacks = ["-o", file, "--stacks", "faults"];
    let ran = cowslip(&[&stacks, options, &["--"], command].concat());
    match ran.status.code() {
        Some(0) => Some(file.to_owned()),
        Some(125) => {
            let expected = std::env::var("COWSLIP_EXPECT").unwrap_or_default();
            assert!(!expected.split(',').any(|name| name == "trace"), "{}", ran.stderr);
            println!("SKIPPED: cowslip trace: {}", ran.stderr);
            None
        }
        _ => panic!("{command:?}: {}", ran.stderr),
    }
}

fn report(trace: &str) -> Value {
    let ran = cowslip(&["report", trace, "--json", "-"]);
    serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}\n{}", ran.stdout, ran.stderr))
}

/// The maps that the programs of a trace left.
struct Maps(BTreeSet<u64>);

impl Drop for Maps {
    fn drop(&mut self) {
        for pid in &self.0 {
            let _ = fs::remove_file(format!("/tmp/perf-{pid}.map"));
        }
    }
}

#[test]
fn functions_of_a_just_in_time_compiler_have_their_names() {
    let is_there =
        Command::new("node").arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        println!("SKIPPED: node is not there");
        return;
    }
    let folder = Folder::new("trace-node");
    let script = folder.0.join("n.js");
    let code = "
function fillCache(pages) {
    for (let at = 0; at < pages.length; at += 4096) pages[at] = 1;
    return pages;
}
let kept = [];
for (let turn = 0; turn < 64; turn++) kept.push(fillCache(new Uint8Array(2 << 20)));
";
    fs::write(&script, code).unwrap();
    let options = ["--perf-basic-prof", "--interpreted-frames-native-stack"];
    let command = [&["node"], &options[..], &[script.to_str().unwrap()]].concat();
    let Some(trace) = record(&folder, &command) else { return };
    let all = report(&trace);
    let threads = all["threads"].as_array().unwrap();
    let _maps = Maps(threads.iter().filter_map(|thread| thread["pid"].as_u64()).collect());
    let faults = |row: &Value| row["faults"].as_u64().unwrap();
    let of_it =
        |row: &&Value| row["functions"][0].as_str().is_some_and(|name| name.contains("fillCache"));
    // The interpreter takes some of them, before the function is compiled.
    let told: u64 = all["who"].as_array().unwrap().iter().filter(of_it).map(faults).sum();
    assert!(told > 64 * 512 / 2, "{told} of {}: {:#}", all["faults"], all["who"]);
    let text = cowslip(&["report", &trace]).stdout;
    assert!(text.contains("fillCache"), "{text}");
}

/// Debian's `libc6-dbg` has compressed debug information.
#[test]
fn functions_of_the_library_for_c_have_their_names() {
    let has_debug = Path::new("/usr/lib/debug/.build-id").is_dir();
    println!("debug information of libraries is {}", if has_debug { "there" } else { "not there" });
    let folder = Folder::new("trace-libc");
    let Some(trace) = record(&folder, &["/bin/sh", "-c", "ls / > /dev/null"]) else { return };
    let all = report(&trace);
    let innermost =
        all["who"].as_array().unwrap().iter().flat_map(|row| row["functions"].as_array());
    let names: BTreeSet<&str> = innermost.filter_map(|names| names[0].as_str()).collect();
    let of_libc = |name: &&&str| name.starts_with("libc.so.6+") || name.starts_with("ld-linux");
    let unnamed = names.iter().filter(of_libc).count();
    assert!(unnamed * 4 < names.len(), "{unnamed} of {}: {names:?}", names.len());
}

/// The program and the library for C have no frame pointers; its functions call each other in a known way.
#[test]
fn callers_are_found_by_unwind_tables_where_there_are_no_frame_pointers() {
    if !cfg!(target_arch = "x86_64") {
        println!("SKIPPED: unwind tables: x86-64 only");
        return;
    }
    let folder = Folder::new("trace-unwind");
    let Some(program) = compile(&folder, "nested") else { return };
    let command = [program.to_str().unwrap()];
    let Some(trace) = record_with(&folder, &["--unwind", "dwarf"], &command) else { return };
    let all = report(&trace);
    let rows = all["who"].as_array().unwrap();
    let row = rows.iter().find(|row| row["functions"][0] == "inner");
    let row = row.unwrap_or_else(|| panic!("{rows:#?}"));
    assert_eq!(row["faults"], 2000);
    let functions: Vec<_> = row["functions"].as_array().unwrap().iter().take(4).collect();
    assert_eq!(functions, ["inner", "middle", "outer", "main"]);
    // The call that mapped the memory, in a library without frame pointers.
    let mappings = all["mappings"].as_array().unwrap();
    let memory = mappings.iter().find(|mapping| mapping["by_kind"]["first_touch"] == 2000).unwrap();
    let mapped_by = memory["identity"]["mapped_by"].as_array().unwrap();
    if all["header"]["sources"].to_string().contains("sys_enter_mmap") {
        assert!(mapped_by.len() > 4, "up to the start of the program: {memory:#}");
    }
    assert_eq!(all["lost"], 0);
}
