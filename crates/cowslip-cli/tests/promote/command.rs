//! `cowslip promote -- COMMAND`: huge pages by promotion alone, and the command's signals and exit code.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::PoisonError;

use cowslip_sys::thp_disable::ThpDisable;

use crate::service::{Daemon, until};
use crate::support::{COWSLIP, Folder, run};
use crate::target::{MIB, Program, SETTINGS, once, place};
use crate::user::is_root;

const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Huge pages at the faults of every program, until it is dropped.
struct AlwaysHuge {
    before: String,
}

impl AlwaysHuge {
    fn set() -> Self {
        let text = fs::read_to_string(ENABLED).unwrap();
        let (_, rest) = text.split_once('[').unwrap();
        let before = rest.split_once(']').unwrap().0.to_owned();
        fs::write(ENABLED, "always").unwrap();
        Self { before }
    }
}

impl Drop for AlwaysHuge {
    fn drop(&mut self) {
        fs::write(ENABLED, &self.before).unwrap();
    }
}

/// True if the kernel can keep huge pages to memory with advice; reports a skipped test otherwise.
fn can_except_advised() -> bool {
    let before = ThpDisable::get().unwrap();
    let set = ThpDisable::ExceptAdvised.set();
    before.set().unwrap();
    if let Err(errno) = set {
        println!("SKIPPED: thp_except_advised: {errno}");
    }
    set.is_ok()
}

/// A promoter that ignores no signal, also where the tests were started to ignore some.
fn configured(folder: &Folder) -> Command {
    let config = folder.0.join("promote.toml");
    let text = "[settings]\nstall_percent = 100\nslow_ms = 1000\ncpu_percent = 100\ninterval_ms = 50\nsettle_ms = 100\n";
    fs::write(&config, text).unwrap();
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP,INT,QUIT", COWSLIP, "promote", "--config"]).arg(&config);
    command
}

/// The promoted program as a child of the command: a descendant is a target as well.
fn below_a_shell(command: &mut Command, program: &Path) -> Program {
    Program::start(command.args(["--", "sh", "-c", "\"$0\"; exit $?"]).arg(program))
}

/// The only process below another one that is named so.
pub(crate) fn descendant(pid: u32, name: &str) -> u32 {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let child = children.split_ascii_whitespace().next().expect("it has a child").parse().unwrap();
    let is_it = fs::read_to_string(format!("/proc/{child}/comm")).unwrap().trim() == name;
    if is_it { child } else { descendant(child, name) }
}

/// Huge pages in MiB.
fn huge_mib(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    cowslip_sys::procfs::field_bytes(&text, "AnonHugePages").unwrap() / MIB
}

#[test]
fn a_command_gets_huge_pages_by_use_even_where_all_faults_make_them() {
    if !is_root() {
        println!("SKIPPED: root: the system's setting of huge pages is root's");
        return;
    }
    let Some((folder, program)) = place("promote-command") else { return };
    if !can_except_advised() {
        return;
    }
    let touch = |target: &mut Program| {
        target.tell("map 8");
        (0..8).for_each(|region| drop(target.tell(&format!("fault_in {region} 1"))));
    };
    let (mut free, mut kept) = {
        let _one_at_a_time = SETTINGS.lock().unwrap_or_else(PoisonError::into_inner);
        let _always = AlwaysHuge::set();
        let mut free = Program::start(&mut Command::new(&program));
        touch(&mut free);
        let mut kept = below_a_shell(&mut configured(&folder), &program);
        touch(&mut kept);
        (free, kept)
    };
    assert_eq!(free.huge_mib(), 16, "the faults of others make huge pages");
    let pid = descendant(kept.pid(), "promoted");
    assert_eq!(huge_mib(pid), 0);
    kept.fill(0..6, 512);
    until("what is full is huge", || huge_mib(pid) == 12);
    assert_eq!((kept.tell("check"), free.tell("check")), ("0".into(), "0".into()));
}

#[test]
fn a_process_that_excepts_advised_memory_is_promoted() {
    let Some((_folder, program)) = place("promote-excepted") else { return };
    if !can_except_advised() {
        return;
    }
    let mut target = Program::start(&mut Command::new(program));
    assert_eq!(target.tell("except_advised"), "0");
    target.tell("map 4");
    target.fill(0..4, 512);
    let (report, code) = once(target.pid(), &["--coverage", "0.9"]);
    assert_eq!((code, target.huge_mib()), (Some(0), 8), "{report}");
    assert_eq!(target.tell("check"), "0");
}

#[test]
fn the_exit_code_and_the_output_are_the_commands() {
    let folder = Folder::new("promote-exit");
    for (words, code) in [
        (&["sh", "-c", "echo said; exit 7"][..], 7),
        (&["sh", "-c", "echo said; kill -9 $$"], 137),
        (&["/nowhere/at/all"], 127),
        (&["/etc/passwd"], 126),
    ] {
        let ran = run(configured(&folder).arg("--").args(words));
        assert_eq!(ran.status.code(), Some(code), "{}", ran.stderr);
        assert_eq!(ran.stdout, if words.len() > 1 { "said\n" } else { "" });
    }
    let ran = run(Command::new(COWSLIP).args([
        "promote",
        "--threshold",
        "10",
        "--demote-below",
        "20",
        "--",
        "echo",
    ]));
    assert_eq!((ran.status.code(), ran.stdout), (Some(125), String::new()), "it does not run");
    let ran = run(Command::new(COWSLIP).args(["promote", "--once", "--", "echo"]));
    assert_eq!(ran.status.code(), Some(2));
}

#[test]
fn signals_reach_the_command_and_it_ends_in_its_own_time() {
    let folder = Folder::new("promote-signals");
    let script = "trap 'echo hung up >&2' HUP; trap 'echo bye >&2; kill $!; exit 9' TERM; \
                  sleep 1000 & echo ready >&2; while :; do wait; done";
    let mut command = configured(&folder);
    command
        .args(["--", "sh", "-c", script])
        .stdout(Stdio::null())
        .env("NOTIFY_SOCKET", folder.0.join("none"));
    let mut daemon = Daemon::start(&mut command);
    daemon.until("ready");
    daemon.signal("-HUP");
    daemon.until("hung up");
    // At once, as systemd's SendSIGHUP=yes: both have to arrive.
    let pid = daemon.child.id().to_string();
    let both = format!("kill -TERM {pid}; kill -HUP {pid}");
    assert!(run(Command::new("sh").args(["-c", &both])).status.success());
    daemon.until("bye");
    assert_eq!(daemon.child.wait().unwrap().code(), Some(9));
}

#[test]
fn a_signal_that_the_caller_ignores_stays_ignored() {
    let folder = Folder::new("promote-ignored");
    let mut command = configured(&folder);
    command.args(["--", "sh", "-c", "kill -HUP $$; kill -INT $$; echo alive"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP INT; exec \"$@\"", "sh"]);
    let ran = run(shell.args(command.get_args().skip(1)));
    assert_eq!((ran.status.code(), ran.stdout.as_str()), (Some(0), "alive\n"), "{}", ran.stderr);
}

#[test]
fn a_key_of_the_terminal_reaches_the_command_once() {
    if Command::new("script").arg("--version").output().is_err() {
        return println!("SKIPPED: script: it makes the terminal");
    }
    let folder = Folder::new("promote-key");
    let script = folder.0.join("program");
    let text = "trap 'echo interrupt $((n += 1))' INT\ntrap 'kill $!; exit 9' TERM\n\
                sleep 1000 &\necho ready $PPID.\nwhile :; do wait; done\n";
    fs::write(&script, text).unwrap();
    let command = configured(&folder);
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_str().unwrap()).collect();
    let line = format!("exec {} -- sh {}", words.join(" "), script.display());
    let mut command = Command::new("timeout");
    command.args(["60", "script", "-qec", &line, "/dev/null"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut keys = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let ready = lines.find_map(|line| Some(line.split_once("ready ")?.1.to_owned())).unwrap();
    let pid = ready.split_once('.').unwrap().0;
    keys.write_all(b"\x03").unwrap();
    lines.find(|line| line.contains("interrupt 1")).expect("the key's signal");
    assert!(Command::new("kill").args(["-TERM", pid]).status().unwrap().success());
    assert_eq!(lines.find(|line| line.contains("interrupt")), None);
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

#[test]
fn a_caller_that_wants_no_huge_pages_at_all_gets_none() {
    let prctl = if cfg!(target_arch = "x86_64") { 157 } else { 167 };
    let program = format!("syscall({prctl}, 41, 1, 0, 0, 0) == 0 or die; exec @ARGV"); // PR_SET_THP_DISABLE
    let folder = Folder::new("promote-without");
    let mut command = configured(&folder);
    command.args(["--", "grep", "THP_enabled", "/proc/self/status"]);
    let mut without = Command::new("perl");
    without.args(["-e", &program, "--"]).arg(command.get_program());
    let ran = run(without.args(command.get_args()));
    assert_eq!(ran.stdout, "THP_enabled:\t0\n", "{}", ran.stderr);
}
