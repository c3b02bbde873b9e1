//! The live table.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::service::{daemon_of, until};
use crate::support::{COWSLIP, Ran, run};
use crate::target::{MIB, Program, place};

fn top(options: &[&str]) -> Ran {
    run(Command::new(COWSLIP).args(["promote", "top"]).args(options))
}

#[test]
fn top_shows_what_a_daemon_did_and_without_one_what_there_is() {
    let Some((_folder, program)) = place("promote-top") else { return };
    let mut target = Program::start(&mut Command::new(program));
    target.tell("map 8");
    target.fill(0..6, 512);
    target.fill(6..8, 100);
    let pid = target.pid().to_string();
    let of = |options: &[&str]| -> Value {
        let ran = top(&[options, &["--json", "-"]].concat());
        let all: Value = serde_json::from_str(&ran.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", ran.stdout, ran.stderr));
        assert_eq!(all["processes"].as_array().unwrap().len(), 1, "{all:#}");
        all["processes"][0].clone()
    };
    let looked_at = of(&["--pid", &pid]);
    assert_eq!((&looked_at["pid"], &looked_at["name"]), (&target.pid().into(), &"promoted".into()));
    assert_eq!((looked_at["promotions_total"].as_f64(), target.huge_mib()), (Some(0.0), 0));
    assert!(looked_at["resident_bytes"].as_f64().unwrap() >= (6 * 2 * MIB) as f64);
    assert!(looked_at["regions_by_reason"]["full"].as_f64().unwrap() >= 6.0, "{looked_at:#}");

    let (daemon, address) = daemon_of(target.pid(), &[]);
    until("6 regions are huge", || target.huge_mib() == 12);
    until("the daemon has looked again", || {
        of(&["--metrics", &address])["huge_bytes"] == (12 * MIB) as f64
    });
    let told = of(&["--metrics", &address]);
    assert_eq!(told["promotions_total"], 6.0);
    assert!(told["stall_seconds_total"].as_f64().unwrap() > 0.0);
    let table = top(&["--metrics", &address]);
    assert!(table.status.success(), "{}", table.stderr);
    let row = table.stdout.lines().find(|line| line.contains(&pid)).unwrap();
    assert!(row.contains("12 MiB") && row.contains("below_threshold"), "{}", table.stdout);
    assert!(!table.stdout.contains('\x1b'), "no terminal here: {}", table.stdout);
    assert_eq!(daemon.end(), Some(0));
    let gone = top(&["--metrics", &address, "--once"]);
    assert_eq!(gone.status.code(), Some(5), "{}", gone.stderr);
    assert_eq!(target.tell("check"), "0");
}

#[test]
fn top_on_a_terminal_obeys_its_keys_and_gives_the_terminal_back() {
    if Command::new("script").arg("--version").output().is_err() {
        println!("SKIPPED: script: it makes the terminal");
        return;
    }
    let pid = std::process::id();
    let line = format!("stty -g; {COWSLIP} promote top --interval 1 --pid {pid}; stty -g");
    let mut command = Command::new("timeout");
    command.args(["60", "script", "-qec", &line, "/dev/null"]).env("TERM", "xterm");
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut keys = child.stdin.take().unwrap();
    let mut screen = child.stdout.take().unwrap();
    let mut seen = String::new();
    let mut see = |wanted: &str, seen: &mut String| {
        while !seen.contains(wanted) {
            let mut part = [0; 4096];
            let read = screen.read(&mut part).unwrap();
            assert!(read > 0, "never {wanted:?}: {seen}");
            seen.push_str(&String::from_utf8_lossy(&part[..read]));
        }
    };
    see("process by rss", &mut seen);
    keys.write_all(b"s").unwrap();
    see("process by huge", &mut seen);
    keys.write_all(b"p").unwrap();
    see("paused", &mut seen);
    keys.write_all(b"q").unwrap();
    see("\x1b[?1049l", &mut seen);
    assert!(child.wait().unwrap().success());
    screen.read_to_string(&mut seen).unwrap();
    let (before, after) = (seen.lines().next().unwrap(), seen.lines().last().unwrap());
    assert!(after.ends_with(before) && before.contains(':'), "{before} and {after}");
}
