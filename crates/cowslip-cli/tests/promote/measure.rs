//! The measured gain. The program's counter tells the gain: it depends on its huge pages, and not on the machine.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::service::{Daemon, daemon_of, scrape, until};
use crate::support::{COWSLIP, Folder, run};
use crate::target::{Program, place};

/// A program with 64 MiB of dense memory that works: its units for a turn on base pages and on huge ones.
fn serving(name: &str, units: &str) -> Option<(Folder, Program)> {
    let (folder, program) = place(name)?;
    let mut target = Program::start(Command::new(program).current_dir(&folder.0));
    target.tell("map 32");
    target.fill(0..32, 512);
    target.tell(&format!("serve {units}"));
    until("it works", || fs::read(folder.0.join("units")).is_ok_and(|bytes| bytes.len() > 20));
    Some((folder, target))
}

fn measure(pid: u32, unit: &str) -> Command {
    let mut command = Command::new(COWSLIP);
    command.args(["promote", "measure", &pid.to_string(), "--period", "100"]);
    command.args(["--stall-budget", "100", "--json", "-"]);
    if !unit.is_empty() {
        command.args(["--unit", unit]);
    }
    command
}

fn measured(pid: u32, unit: &str) -> (Value, Option<i32>, String) {
    let ran = run(&mut measure(pid, unit));
    let json = serde_json::from_str(&ran.stdout).unwrap_or(Value::Null);
    (json["measured"].clone(), ran.status.code(), ran.stderr)
}

fn units_of(folder: &Folder) -> String {
    folder.0.join("units").to_str().unwrap().to_owned()
}

/// Serves the number in a file as a metric, in chunks, until the test ends.
fn exporter(file: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut request = [0; 512];
            let _ = client.read(&mut request);
            let text = format!("units_total{{a=\"b\"}} {}", fs::read_to_string(&file).unwrap());
            let (size, end) = (text.len(), "0\r\n\r\n");
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            let _ = client.write_all(format!("{head}{size:x}\r\n{text}\r\n{end}").as_bytes());
        }
    });
    format!("http://{address}/metrics#units_total")
}

#[test]
fn a_gain_is_found_by_each_kind_of_unit_and_all_memory_becomes_huge() {
    for kind in ["number", "lines", "metric"] {
        let Some((folder, mut target)) = serving("measure-gain", "3 4") else { return };
        let unit = match kind {
            "number" => units_of(&folder),
            "lines" => format!("lines:{}", folder.0.join("log").display()),
            _ => exporter(units_of(&folder).into()),
        };
        let (measured, code, said) = measured(target.pid(), &unit);
        assert_eq!(
            (&measured["verdict"], code),
            (&"gain".into(), Some(0)),
            "{kind}: {measured:#}{said}"
        );
        // Three units for the same time are four. Its own look at its pages takes longer while they are small.
        let change = &measured["change_percent"];
        let (low, high) =
            (change["interval"][0].as_f64().unwrap(), change["interval"][1].as_f64().unwrap());
        assert!(low < -15.0 && high > -45.0, "{kind}: {change}");
        assert_eq!(target.huge_mib(), 64, "{kind}");
        assert_eq!(target.tell("check"), "0");
    }
}

#[test]
fn without_a_gain_the_pages_are_split_again() {
    let Some((folder, mut target)) = serving("measure-none", "4 3") else { return };
    let (measured, code, said) = measured(target.pid(), &units_of(&folder));
    assert_eq!((&measured["verdict"], code), (&"no_gain".into(), Some(1)), "{measured:#}{said}");
    assert_eq!((&measured["huge_bytes"], target.huge_mib()), (&0.into(), 0));
    assert_eq!(measured["sample_bytes"], 64 << 20);
    assert_eq!(target.tell("check"), "0");
}

#[test]
fn a_short_time_is_enough_for_a_part_and_the_pages_are_split_again() {
    let Some((folder, mut target)) = serving("measure-short", "3 4") else { return };
    let mut command = measure(target.pid(), &units_of(&folder));
    command.args(["--within", "1", "--effect", "49"]);
    let json: Value = serde_json::from_str(&run(&mut command).stdout).unwrap();
    let measured = &json["measured"];
    let sample = measured["sample_bytes"].as_u64().unwrap();
    assert!((2 << 20..=64 << 20).contains(&sample), "{measured:#}");
    assert_eq!(measured["dense_bytes"], 64 << 20);
    assert_ne!(measured["verdict"], "gain", "{measured:#}");
    assert_eq!((target.huge_mib(), target.tell("check").as_str()), (0, "0"));
}

#[test]
fn a_program_that_takes_all_it_gets_needs_a_unit() {
    let Some((_folder, target)) = serving("measure-busy", "3 4") else { return };
    let (measured, code, _) = measured(target.pid(), "");
    assert_eq!((&measured["verdict"]["unclear"], code), (&"saturated".into(), Some(1)));
    assert_eq!(target.huge_mib(), 0);
    let (_, code, said) = self::measured(target.pid(), "/nonexistent");
    assert!(code == Some(2) && said.contains("/nonexistent"), "{code:?} {said}");
}

/// A measurement that has made pages huge.
fn begun(target: &Program, folder: &Folder) -> Child {
    let mut command = measure(target.pid(), &units_of(folder));
    command.args(["--effect", "49"]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    until("some of it is huge", || target.huge_mib() > 0);
    child.unwrap()
}

#[test]
fn a_fork_meanwhile_is_noticed_and_a_child_has_its_memory() {
    let Some((folder, mut target)) = serving("measure-fork", "3 3") else { return };
    let child = begun(&target, &folder);
    target.tell("fork");
    let output = child.wait_with_output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let unclear = &json["measured"]["verdict"]["unclear"];
    assert_eq!((unclear, output.status.code()), (&"disturbed".into(), Some(1)), "{json:#}");
    assert_eq!(target.tell("reap"), "0", "the child's memory is what it was");
    assert_eq!(target.tell("check"), "0");
}

#[test]
fn either_side_may_be_killed_and_an_interrupt_splits_the_pages() {
    let Some((folder, mut target)) = serving("measure-killed", "3 3") else { return };
    let kill = |name: &str, pid: u32| {
        assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
    };
    let mut child = begun(&target, &folder);
    kill("-KILL", child.id());
    child.wait().unwrap();
    assert_eq!(target.tell("check"), "0");
    let Some((folder, mut target)) = serving("measure-interrupted", "3 3") else { return };
    let mut child = begun(&target, &folder);
    kill("-INT", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert_eq!((target.huge_mib(), target.tell("check").as_str()), (0, "0"));
    let mut child = begun(&target, &folder);
    target.child.kill().unwrap();
    target.child.wait().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5));
}

#[test]
fn the_daemon_promotes_only_those_that_gain() {
    let Some((gaining_folder, mut gaining)) = serving("measure-daemon", "3 4") else { return };
    let Some((other_folder, mut other)) = serving("measure-daemon", "4 3") else { return };
    let target = |target: &Program, folder: &Folder| {
        let (pid, unit) = (target.pid(), units_of(folder));
        format!("[[target]]\npid = {pid}\nmeasure = true\nunit = \"{unit}\"\n")
    };
    let config = gaining_folder.0.join("promote.toml");
    let text = target(&gaining, &gaining_folder) + &target(&other, &other_folder);
    let settings = "[settings]\nstall_percent = 100\npromotion_cpu_percent = 100\n\
                    interval_ms = 50\nsettle_ms = 100\nmeasure_period_ms = 100\n";
    fs::write(&config, text + settings).unwrap();
    let (mut daemon, address): (Daemon, String) =
        daemon_of(gaining.pid(), &["--config", config.to_str().unwrap()]);
    daemon.until("no gain");
    until("the one that gains is huge", || gaining.huge_mib() == 64);
    let reason = format!("pid=\"{}\",name=\"promoted\",reason=\"no_gain\"}} 32\n", other.pid());
    until("the other is left", || scrape(&address).contains(&reason));
    assert!(scrape(&address).contains("measured_gain_ratio{"), "{}", scrape(&address));
    assert_eq!(other.huge_mib(), 0);
    assert_eq!(daemon.end(), Some(0));
    assert_eq!((gaining.tell("check"), other.tell("check")), ("0".into(), "0".into()));
}
