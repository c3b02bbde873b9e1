//! Every command of `docs/guides`: the `sh` blocks of a page are one session of bash, in a folder of its own.
//!
//! Commands that change the machine are in blocks marked `console`; the tests of `cowslip setup` do that in a root of
//! their own. Python's page is run by Python's tests, and Rust's code in the page for stores by those of the `cowslip`
//! crate.

mod support;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{COWSLIP, Folder, Ran, run};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn text(page: &str) -> String {
    fs::read_to_string(root().join("docs/guides").join(page)).unwrap()
}

/// The blocks of a page in one language.
fn blocks(page: &str, language: &str) -> String {
    blocks_of(&text(page), page, language)
}

/// The blocks of a page's section in one language.
fn blocks_in(page: &str, section: &str, language: &str) -> String {
    let text = text(page);
    let (_, rest) = text.split_once(&format!("\n## {section}\n")).expect("the section is there");
    blocks_of(rest.split("\n## ").next().unwrap(), section, language)
}

fn blocks_of(text: &str, page: &str, language: &str) -> String {
    let fence = format!("```{language}\n");
    let after = text.split(fence.as_str()).skip(1);
    let blocks: Vec<&str> = after.map(|rest| rest.split_once("```").unwrap().0).collect();
    assert!(!blocks.is_empty(), "{page} has no block of {language}");
    blocks.join("\n")
}

fn is_missing(programs: &[&str]) -> bool {
    let is_there = |program: &&&str| {
        run(Command::new("sh").args(["-c", &format!("command -v {program}")])).status.success()
    };
    let missing = programs.iter().find(|program| !is_there(program));
    if let Some(program) = missing {
        println!("SKIPPED: {program} is not installed");
    }
    missing.is_some()
}

/// Runs a page's commands for a reader with these programs, and returns the folder. `None`, reported, if they are
/// missing.
fn follow(page: &str, programs: &[&str]) -> Option<(Folder, Ran)> {
    if is_missing(programs) {
        return None;
    }
    let folder = Folder::new(&format!("guide-{}", page.trim_end_matches(".md")));
    let ran = follow_in(&folder, page, &[]);
    Some((folder, ran))
}

fn json(folder: &Folder, name: &str) -> serde_json::Value {
    serde_json::from_str(&fs::read_to_string(folder.0.join(name)).unwrap()).unwrap()
}

/// Runs all commands of a page, as if copied into a shell. Their background jobs end with it.
fn follow_in(folder: &Folder, page: &str, environment: &[(&str, OsString)]) -> Ran {
    follow_blocks(folder, page, &blocks(page, "sh"), environment)
}

fn follow_blocks(
    folder: &Folder,
    page: &str,
    blocks: &str,
    environment: &[(&str, OsString)],
) -> Ran {
    let script = folder.0.join("guide.sh");
    let head = "set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n";
    fs::write(&script, format!("{head}{blocks}")).unwrap();
    let mut path = OsString::from(Path::new(COWSLIP).parent().unwrap());
    path.push(":");
    path.push(env::var_os("PATH").unwrap());
    let mut bash = Command::new("bash");
    bash.arg(&script).current_dir(&folder.0).env("PATH", path).env("REPOSITORY", root());
    bash.envs(environment.iter().map(|(name, value)| (name, value)));
    let ran = run(&mut bash);
    assert!(ran.status.success(), "{page}: {}\n{}\n{}", ran.status, ran.stdout, ran.stderr);
    ran
}

#[test]
fn redis_forks_faster() {
    let Some((folder, ran)) = follow("redis.md", &["redis-server", "redis-cli"]) else { return };
    let forks: Vec<u64> = ran
        .stdout
        .lines()
        .filter_map(|line| line.strip_prefix("latest_fork_usec:")?.trim().parse().ok())
        .collect();
    assert!(forks.len() == 2 && forks.iter().all(|&duration| duration > 0), "{}", ran.stdout);
    assert!(ran.stdout.contains("left the arena         nothing"), "{}", ran.stdout);
    json(&folder, "status.json");
}

#[test]
fn a_running_program_is_copied_taken_back_and_started_warm() {
    if cowslip_sys::process::effective_uid() != 0 {
        println!("SKIPPED: root: to enter the networks of copies");
        return;
    }
    let programs = ["redis-server", "redis-cli", "nsenter", "python3"];
    let Some((_folder, ran)) = follow("processes.md", &programs) else { return };
    let said: Vec<&str> = ran.stdout.lines().map(str::trim).collect();
    let numbers: Vec<&&str> = said.iter().filter(|line| line.parse::<u64>().is_ok()).collect();
    // The copy's keys, one of them its own; the program has no such key; none; all again; a root.
    assert_eq!(numbers, [&"100001", &"0", &"0", &"100000", &"12"], "{}", ran.stdout);
    assert!(said.iter().any(|line| line.starts_with("1.4142135")), "{}", ran.stdout);
    assert!(said.iter().any(|line| line.starts_with("branch") && line.ends_with("works")));
}

/// Runs a section of the page about checkpoints. The criu program is that of the tests.
fn follow_checkpoints(section: &str, programs: &[&str]) -> Option<Ran> {
    let criu = support::checkpoint::criu()?;
    if is_missing(programs) {
        return None;
    }
    let folder = Folder::new("guide-checkpoint");
    let found = run(Command::new("sh").args(["-c", "command -v \"$0\""]).arg(&criu)).stdout;
    symlink(found.trim(), folder.0.join("criu")).unwrap();
    let places = [Path::new(COWSLIP).parent().unwrap(), &folder.0];
    let path = env::var_os("PATH").unwrap();
    let path = places.into_iter().map(Path::to_owned).chain(env::split_paths(&path));
    let environment = [("PATH", env::join_paths(path).unwrap())];
    let blocks = blocks_in("checkpoint.md", section, "sh");
    Some(follow_blocks(&folder, "checkpoint.md", &blocks, &environment))
}

/// The lines of the output that begin with a word.
fn lines_of<'a>(ran: &'a Ran, word: &str) -> Vec<&'a str> {
    ran.stdout.lines().filter(|line| line.starts_with(word)).collect()
}

#[test]
fn a_redis_comes_back() {
    let Some(ran) = follow_checkpoints("A Redis", &["redis-server", "redis-cli"]) else { return };
    assert!(ran.stdout.lines().any(|line| line == "100000"), "{}", ran.stdout);
    assert!(ran.stdout.contains("not in the base"), "{}", ran.stdout);
}

#[test]
fn a_java_service_comes_back() {
    let Some(ran) = follow_checkpoints("A Java service", &["java", "curl"]) else { return };
    assert_eq!(lines_of(&ran, "answer"), ["answer 1", "answer 2"], "{}", ran.stdout);
}

#[test]
fn a_notebook_kernel_comes_back() {
    let imports = ["-c", "import ipykernel, jupyter_client"];
    let found = Command::new("python3").args(imports).stderr(std::process::Stdio::null()).status();
    if !found.is_ok_and(|found| found.success()) {
        println!("SKIPPED: ipykernel, jupyter_client: python3 has no such modules");
        return;
    }
    let Some(ran) = follow_checkpoints("A notebook kernel", &["python3"]) else { return };
    let rows = ["rows 1000", "rows 1001", "rows 0", "rows 1001"];
    assert_eq!(lines_of(&ran, "rows"), rows, "{}", ran.stdout);
}

#[test]
fn a_virtual_machine_is_kept_and_copied() {
    let Some((folder, ran)) = follow("vm.md", &["qemu-system-x86_64", "cc"]) else { return };
    assert!(ran.stdout.contains("of RAM in"), "{}", ran.stdout);
    assert!(ran.stdout.contains("2 copies run after"), "{}", ran.stdout);
    for console in ["again/0/serial0", "copies/0/serial0", "copies/1/serial0"] {
        let said = fs::read_to_string(folder.0.join(console)).unwrap();
        assert!(said.contains(" g\n") && !said.contains('B'), "{console}: {said}");
    }
}

#[test]
fn a_regression_is_found_and_explained() {
    let Some((folder, ran)) = follow("regressions.md", &["python3"]) else { return };
    let cause = json(&folder, "compare.json")["cause"].to_string();
    assert!(
        cause.contains("minor"),
        "the page says that minor faults rose: {cause}\n{}",
        ran.stdout
    );
    for page in ["compare.html", "bad.html", "history.html"] {
        assert!(
            fs::read_to_string(folder.0.join(page)).unwrap().contains("<!DOCTYPE html>"),
            "{page}"
        );
    }
}

#[test]
fn a_host_is_looked_at_and_promoted() {
    let Some((folder, ran)) = follow("fleet.md", &["python3"]) else { return };
    json(&folder, "doctor.json");
    assert!(ran.stdout.contains("COVERAGE"), "{}", ran.stdout);
    // The metrics that the page watches exist.
    let text =
        fs::read_to_string(root().join("crates/cowslip-promote/src/metrics/text.rs")).unwrap();
    let page = fs::read_to_string(root().join("docs/guides/fleet.md")).unwrap();
    let named: Vec<&str> = page
        .split("`cowslip_promote_")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once('`')?.0))
        .collect();
    assert!(named.len() >= 4, "{named:?}");
    for name in named {
        assert!(text.contains(&format!("\"{name}\"")), "no metric is called {name}");
    }
}

#[test]
fn the_store_in_c_is_there_again() {
    if is_missing(&["cc", "pkg-config"]) {
        return;
    }
    let folder = Folder::new("guide-store");
    let Some(installed) = install_c_library(&folder) else { return };
    let environment = [
        ("PKG_CONFIG_PATH", installed.join("pkgconfig").into_os_string()),
        ("LD_LIBRARY_PATH", installed.into_os_string()),
    ];
    let ran = follow_in(&folder, "store.md", &environment);
    assert!(ran.stdout.contains("hello\n42\n2\n"), "{}", ran.stdout);
}

/// Installs library, header and pkg-config's file like the package. `None`, reported as skipped, if it was not built.
fn install_c_library(folder: &Folder) -> Option<PathBuf> {
    let built = Path::new(COWSLIP).parent().unwrap();
    let names = ["libcowslip_c.so", "deps/libcowslip_c.so"].map(|name| built.join(name));
    let Some(library) = names.into_iter().find(|file| file.is_file()) else {
        println!("SKIPPED: libcowslip: cargo build --release -p cowslip-capi");
        return None;
    };
    let installed = folder.0.join("installed");
    fs::create_dir_all(installed.join("pkgconfig")).unwrap();
    for name in ["libcowslip.so", "libcowslip.so.0"] {
        symlink(&library, installed.join(name)).unwrap();
    }
    let capi = root().join("crates/cowslip-capi");
    let text = fs::read_to_string(capi.join("cowslip.pc.in")).unwrap();
    let text = text
        .lines()
        .map(|line| match line.split_once('=') {
            Some(("libdir", _)) => format!("libdir={}\n", installed.display()),
            Some(("includedir", _)) => format!("includedir={}\n", capi.join("include").display()),
            _ => format!("{line}\n"),
        })
        .collect::<String>();
    fs::write(installed.join("pkgconfig/cowslip.pc"), text).unwrap();
    Some(installed)
}

#[test]
fn afl_fuzzes_what_is_frozen() {
    if is_missing(&["afl-fuzz", "afl-cc", "qemu-system-x86_64"]) {
        return;
    }
    let folder = Folder::new("guide-fuzzing");
    // Settings with which afl-fuzz makes fewer demands on the machine.
    let environment = [
        "AFL_I_DONT_CARE_ABOUT_MISSING_CRASHES",
        "AFL_SKIP_CPUFREQ",
        "AFL_NO_UI",
        "AFL_NO_AFFINITY",
    ]
    .map(|name| (name, OsString::from("1")));
    let ran = follow_in(&folder, "fuzzing.md", &environment);
    assert!(ran.stdout.contains("the same edges"), "{}", ran.stdout);
}
