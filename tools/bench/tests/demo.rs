//! The demo, small: every save is exact, the picture and the page are whole, and nothing is left behind.

mod support;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::BENCH;
use support::process::{Folder, redis_is_there, run};

const PATIENCE: Duration = Duration::from_secs(60);
const SMALL: [&str; 6] = ["--size", "16M", "--saves", "1", "--clients", "8"];

/// Runs the demo with a temporary directory of its own, to see if anything is left in it.
fn demo(folder: &Folder, options: &[&str]) -> Command {
    let mut command = Command::new(BENCH);
    command.arg("demo").args(options);
    command.env("TMPDIR", &folder.0);
    command
}

/// Files in the directory besides the requested ones.
fn left_behind(folder: &Folder, wanted: &[&str]) -> Vec<String> {
    let names = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    names.filter(|name| !wanted.contains(&name.as_str())).collect()
}

/// Processes that were started in the directory, or with a file in it.
fn processes(folder: &Path) -> Vec<String> {
    let name = folder.to_string_lossy().into_owned();
    let pids = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let words = pids.filter_map(|path| fs::read_to_string(path.join("cmdline")).ok());
    words.filter(|words| words.contains(&name) && words.contains("redis-server")).collect()
}

#[test]
fn every_save_is_exact_and_the_picture_shows_all_three() {
    if !redis_is_there() {
        return;
    }
    let folder = Folder::new("demo");
    let at = |name: &str| folder.0.join(name).display().to_string();
    let (json, html, svg) = (at("demo.json"), at("demo.html"), at("demo.svg"));
    let files = ["--json", &json, "--html", &html, "--svg", &svg];
    let ran = run(demo(&folder, &SMALL).args(files));
    assert_eq!(ran.status.code(), Some(0), "{}\n{}", ran.stdout, ran.stderr);
    assert_eq!(left_behind(&folder, &["demo.json", "demo.html", "demo.svg"]), [""; 0]);

    let report: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let ratios = report["ratios"].as_array().unwrap();
    assert!(ratios.iter().any(|ratio| ratio["name"] == "lost_or_wrong" && ratio["value"] == 0.0));
    let mut measured = 0;
    for server in ["stock-4k", "stock-thp", "cowslip"] {
        let of = |metric: &str| {
            rows.iter().find(|row| row["system"] == server && row["metric"] == metric).unwrap()
        };
        if let Some(why) = of("fork")["skipped"].as_str() {
            println!("SKIPPED: {server}: {why}");
            continue;
        }
        measured += 1;
        assert_eq!(of("verified_saves")["value"], 1.0, "{server}");
        for phase in ["before", "during", "after"] {
            let cpu_ns = of(&format!("server_cpu_a_write_{phase}_save"))["value"].as_f64().unwrap();
            assert!(cpu_ns > 100.0, "{server} {phase}: {cpu_ns} ns");
        }
        assert!(of("held_up_by_bgsave")["value"].as_f64().unwrap() > 0.0);
    }
    let (picture, page) = (fs::read_to_string(svg).unwrap(), fs::read_to_string(html).unwrap());
    assert_eq!(picture.matches("class=\"area\"").count(), measured);
    assert!(picture.starts_with("<svg") && picture.contains("prefers-color-scheme: dark"));
    assert!(page.contains(&picture) && !page.contains("https:") && !page.contains("NaN"));
    for said in ["Requests under way at BGSAVE took up to", "A save took", "every key compared"] {
        assert!(ran.stdout.contains(said) && page.contains(said), "{said}: {}", ran.stdout);
    }
}

#[test]
fn ctrl_c_in_the_middle_ends_every_server_and_leaves_nothing() {
    if !redis_is_there() {
        return;
    }
    let folder = Folder::new("demo-interrupted");
    // Large enough to be still at work.
    let mut command = demo(&folder, &["--size", "128M", "--saves", "50", "--json", "-"]);
    let child =
        command.stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0).spawn().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while processes(&folder.0).is_empty() {
        assert!(Instant::now() < deadline, "no server came");
        std::thread::yield_now();
    }
    // Like a terminal: to the whole group.
    let group = format!("-{}", child.id());
    Command::new("kill").args(["-INT", "--", &group]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["notes"].to_string().contains("interrupted"), "{}", report["notes"]);
    assert_eq!(processes(&folder.0), [""; 0]);
    assert_eq!(left_behind(&folder, &[]), [""; 0]);
}

#[test]
fn what_it_cannot_do_is_said_with_the_code_of_a_wrong_request() {
    let folder = Folder::new("demo-refused");
    for (options, said) in [
        (&["--redis-server", "/nowhere/redis-server"][..], "apt-get install redis-server"),
        (&["--saves", "0"], "1..=100"),
        (&["--size", "900G"], "MiB"),
        (&["--fool"], "--fool"),
    ] {
        if said == "MiB" && !redis_is_there() {
            continue;
        }
        let ran = run(&mut demo(&folder, options));
        assert_eq!(ran.status.code(), Some(2), "{options:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(said), "{options:?}: {}", ran.stderr);
        assert_eq!(left_behind(&folder, &[]), [""; 0]);
    }
}
