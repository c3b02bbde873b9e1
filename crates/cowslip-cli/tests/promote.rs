//! `cowslip promote` on programs that know what every byte of their memory should be.
//!
//! The oracles are the kernel's sums (`smaps_rollup`) and the program itself: it counts the words that are not
//! what they should be, a thread of it writing all the while.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{COWSLIP, Folder, Ran, compile, run};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// Held while khugepaged's settings are changed: they are the whole system's.
static SETTINGS: Mutex<()> = Mutex::new(());

/// The program of `tests/programs/promoted.c`.
struct Program {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Program {
    fn start(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let commands = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, commands, answers }
    }

    fn tell(&mut self, command: &str) -> String {
        writeln!(self.commands, "{command}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer.trim().to_owned()
    }

    fn fill(&mut self, regions: std::ops::Range<usize>, pages: usize) {
        for region in regions {
            self.tell(&format!("fill {region} {pages}"));
        }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Anonymous huge memory, in MiB.
    fn huge_mib(&self) -> u64 {
        self.sum("AnonHugePages:") / MIB
    }

    fn sum(&self, field: &str) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() << 10
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder that every user can reach, and the program in it; `None` without a compiler.
fn place(name: &str) -> Option<(Folder, PathBuf)> {
    let folder = Folder::new(name);
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).unwrap();
    let program = compile(&folder, "promoted")?;
    Some((folder, program))
}

fn promote(pid: u32, options: &[&str]) -> Ran {
    run(Command::new(COWSLIP).args(["promote", "--pid", &pid.to_string()]).args(options))
}

/// What a one-shot promotion without pauses says as JSON, and its exit code.
fn once(pid: u32, options: &[&str]) -> (Value, Option<i32>) {
    let fast = ["--once", "--stall-budget", "100", "--json", "-"];
    let ran = promote(pid, &[&fast[..], options].concat());
    let json = serde_json::from_str(&ran.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", ran.stdout, ran.stderr));
    (json, ran.status.code())
}

fn regions(report: &Value, reason: &str) -> u64 {
    report["processes"][0]["regions_by_reason"][reason].as_u64().unwrap_or(0)
}

#[test]
fn what_is_used_becomes_huge_under_a_writer_and_the_kernel_confirms_it() {
    let Some((_folder, program)) = place("promote-once") else { return };
    let mut target = Program::start(&mut Command::new(program));
    target.tell("map 48");
    target.fill(0..40, 512);
    target.fill(40..44, 300);
    target.tell("write");
    let (report, code) = once(target.pid(), &["--coverage", "0.9"]);
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(target.huge_mib(), 80);
    assert_eq!(report["processes"][0]["after"]["huge_bytes"], 80 * MIB);
    assert_eq!(report["processes"][0]["promotions"], 40);
    assert!(regions(&report, "below_threshold") >= 4, "{report:#}");
    assert!(report["processes"][0]["longest_stall_ns"].as_u64().unwrap() > 0);

    let (report, code) = once(target.pid(), &["--coverage", "0.99"]);
    assert_eq!(code, Some(1), "not all of it is wanted: {report:#}");
    let (_, code) = once(target.pid(), &["--coverage", "0.99", "--threshold", "50"]);
    assert_eq!((code, target.huge_mib()), (Some(0), 88));
    assert!(target.tell("rest").parse::<u64>().unwrap() > 0, "the writer got on");
    assert_eq!(target.tell("check"), "0");
}

#[test]
fn a_dry_run_says_what_it_would_do_and_does_nothing() {
    let Some((_folder, program)) = place("promote-dry") else { return };
    let mut target = Program::start(&mut Command::new(program));
    target.tell("map 4");
    target.fill(0..4, 512);
    let ran = promote(target.pid(), &["--once", "--dry-run", "--stall-budget", "100"]);
    assert!(ran.status.success() && ran.stdout.contains("would be promoted"), "{}", ran.stdout);
    assert!(!ran.stdout.contains('\x1b'), "no colour in a pipe");
    assert_eq!(target.huge_mib(), 0);
}

#[test]
fn huge_pages_that_hold_hardly_anything_are_split_and_given_back() {
    let Some((_folder, program)) = place("promote-split") else { return };
    let mut target = Program::start(&mut Command::new(program));
    target.tell("map 16");
    target.fill(0..14, 20);
    target.fill(14..16, 512);
    for region in 0..16 {
        assert_eq!(target.tell(&format!("huge {region} 1")), "0");
    }
    let before = target.sum("Anonymous:");
    target.tell("write");
    let (kept, _) = once(target.pid(), &["--demote-below", "0"]);
    assert_eq!((&kept["processes"][0]["splits"], target.huge_mib()), (&Value::from(0), 32));
    let (report, code) = once(target.pid(), &[]);
    assert_eq!(code, Some(0));
    assert_eq!(report["processes"][0]["splits"], 14, "{report:#}");
    assert_eq!(target.huge_mib(), 4);
    let freed = report["processes"][0]["freed_bytes"].as_u64().unwrap();
    // The writer's stack came meanwhile.
    let less = before - target.sum("Anonymous:");
    assert!(less <= freed && freed <= less + MIB / 8, "{less} and {freed}");
    if freed == 0 {
        println!("SKIPPED: free_zero_pages: this kernel keeps the zero pages of what it splits");
    } else {
        assert_eq!(freed, 14 * 492 * 4096);
    }
    target.tell("rest");
    assert_eq!(target.tell("check"), "0");
    assert_eq!(once(target.pid(), &[]).0["processes"][0]["promotions"], 0, "no to and fro");
}

#[test]
fn what_a_live_child_shares_is_left_alone_and_explained() {
    let Some((_folder, program)) = place("promote-fork") else { return };
    let mut target = Program::start(&mut Command::new(program));
    let address = target.tell("map 8");
    target.fill(0..8, 512);
    target.tell("fork");
    let before = target.sum("Anonymous:");
    let (report, code) = once(target.pid(), &["--coverage", "0.5"]);
    assert_eq!((code, target.huge_mib()), (Some(1), 0), "{report:#}");
    assert!(regions(&report, "shared") >= 8, "{report:#}");
    assert_eq!(target.sum("Anonymous:"), before, "nothing was copied");
    let ran = promote(target.pid(), &["--explain", &address]);
    assert!(
        ran.stdout.contains("512 shared") && ran.stdout.contains("shared: left"),
        "{}",
        ran.stdout
    );
    assert_eq!(target.tell("reap"), "0", "the child's memory is what it was");
    assert_eq!(once(target.pid(), &["--coverage", "0.9"]).1, Some(0));
    assert_eq!((target.huge_mib(), target.tell("check").as_str()), (16, "0"));
    let nowhere = promote(target.pid(), &["--explain", "0x200000"]);
    assert_eq!(nowhere.status.code(), Some(1), "{}", nowhere.stderr);
}

#[test]
fn a_process_that_disabled_huge_pages_is_respected() {
    let Some((_folder, program)) = place("promote-disabled") else { return };
    let mut target = Program::start(&mut Command::new(program));
    target.tell("map 4");
    target.fill(0..4, 512);
    assert_eq!(target.tell("refuse"), "0");
    let (report, code) = once(target.pid(), &[]);
    assert_eq!((code, target.huge_mib()), (Some(0), 0));
    assert!(regions(&report, "disabled") >= 4, "{report:#}");
    assert_eq!(report["processes"][0]["refusals_by_errno"], serde_json::json!({}), "nor asked");
}

#[test]
fn a_record_is_decided_about_again_with_another_threshold() {
    let Some((folder, program)) = place("promote-replay") else { return };
    let mut target = Program::start(&mut Command::new(program));
    let address = target.tell("map 12");
    target.fill(0..6, 512);
    target.fill(6..12, 400);
    let record = folder.0.join("record.jsonl");
    let (_, code) = once(target.pid(), &["--record", record.to_str().unwrap()]);
    assert_eq!((code, target.huge_mib()), (Some(0), 12));
    let replay = |options: &[&str]| {
        run(Command::new(COWSLIP).args(["promote", "--replay"]).arg(&record).args(options))
    };
    let counts = |options: &[&str]| {
        let ran = replay(&[&["--json", "-"], options].concat());
        let json: Value = serde_json::from_str(&ran.stdout).unwrap();
        (json["recorded"].clone(), json["replayed"].clone())
    };
    let (recorded, same) = counts(&[]);
    assert_eq!((recorded["promotions"].as_u64(), &recorded), (Some(6), &same));
    let (_, lower) = counts(&["--threshold", "70"]);
    assert_eq!(lower["promotions"], 12);
    assert_eq!(lower["added_bytes"], 6 * 112 * 4096);
    let story = replay(&["--explain", &address]).stdout;
    let (first, then) = (story.find("first_look").unwrap(), story.find("full: to be").unwrap());
    assert!(first < then && story.contains("huge: left"), "{story}");

    fs::write(&record, "{\"look\": 1}\n").unwrap();
    assert_eq!(replay(&[]).status.code(), Some(6));
    assert_eq!(replay(&["--threshold", "101"]).status.code(), Some(6), "before its settings");
}

#[test]
fn requests_without_sense_and_targets_that_are_gone_have_their_exit_codes() {
    let code = |options: &[&str]| {
        let ran = run(Command::new(COWSLIP).arg("promote").args(options));
        assert!(!ran.stderr.is_empty(), "{options:?}");
        ran.status.code()
    };
    assert_eq!(code(&["--once"]), Some(2), "of whom?");
    assert_eq!(code(&["--once", "--all", "--threshold", "0"]), Some(2));
    assert_eq!(code(&["--once", "--all", "--coverage", "2"]), Some(2));
    assert_eq!(code(&["--all", "--metrics", "192.0.2.1:9464"]), Some(2), "no loopback address");
    assert_eq!(code(&["--once", "--pid", "2147483647"]), Some(5));
    assert_eq!(code(&["--once", "--match", "no such program"]), Some(5));
    assert_eq!(code(&["--once", "--cgroup", "/nowhere"]), Some(2));
    assert_eq!(code(&["--replay", "/nowhere"]), Some(1));
}

#[test]
fn a_configuration_is_checked_with_the_name_of_what_is_wrong() {
    let folder = Folder::new("promote-config");
    let file = folder.0.join("promote.toml");
    let check = |text: &str| {
        fs::write(&file, text).unwrap();
        run(Command::new(COWSLIP).args(["promote", "--check-config", "--config"]).arg(&file))
    };
    let fine = check("[[target]]\nmatch = \"redis-server\"\n[settings]\nthreshold_percent = 80\n");
    assert!(fine.status.success(), "{}", fine.stderr);
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/promote.toml");
    let fine = check(&fs::read_to_string(shipped).unwrap());
    assert!(fine.status.success(), "{}", fine.stderr);
    for (text, name) in [
        ("[[target]]\nmatch = \"a\"\n[settings]\nthreshold_percent = 0\n", "threshold_percent"),
        ("[[target]]\nmach = \"a\"\n", "mach"),
        ("[settings]\n", "[[target]]"),
    ] {
        let refused = check(text);
        assert_eq!(refused.status.code(), Some(2), "{text}");
        assert!(refused.stderr.contains(name), "{}", refused.stderr);
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// Runs a program as nobody, with the capabilities that are named.
fn as_nobody(program: &Path, capabilities: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.arg(format!("--inh-caps=-all{capabilities}"));
    command.arg(format!("--ambient-caps=-all{capabilities}"));
    command.arg(program);
    command
}

#[test]
fn the_documented_capabilities_are_enough_and_without_them_the_refusal_names_them() {
    if !is_root() {
        println!("SKIPPED: root: becoming another user needs it");
        return;
    }
    let Some((folder, program)) = place("promote-nobody") else { return };
    // The build directory may be closed to others. Another process copies: if this one had the copy open
    // for writing while a test next to this one forks, the kernel would refuse to run it.
    let command = folder.0.join("cowslip");
    assert!(Command::new("cp").arg(COWSLIP).arg(&command).status().unwrap().success());
    let promote = |capabilities: &str, pid: u32| {
        let mut it = as_nobody(&command, capabilities);
        run(it.args(["promote", "--once", "--stall-budget", "100", "--pid", &pid.to_string()]))
    };
    let fill = |mut target: Program| {
        target.tell("map 4");
        target.fill(0..4, 512);
        target
    };
    let roots = fill(Program::start(&mut Command::new(&program)));
    let refused = promote("", roots.pid());
    assert_eq!(refused.status.code(), Some(4), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"),
        "{}",
        refused.stderr
    );
    assert_eq!(roots.huge_mib(), 0);
    let done = promote(",+sys_ptrace,+dac_read_search,+sys_nice", roots.pid());
    assert!(done.status.success(), "{}", done.stderr);
    assert_eq!(roots.huge_mib(), 8);

    let mut own = fill(Program::start(&mut as_nobody(&program, "")));
    let refused = promote("", own.pid());
    assert_eq!(refused.status.code(), Some(4), "{}", refused.stderr);
    assert!(refused.stderr.contains("CAP_SYS_NICE") && refused.stderr.contains("setcap"));
    assert_eq!(own.huge_mib(), 0);
    let done = promote(",+sys_nice", own.pid());
    assert!(done.status.success(), "{}", done.stderr);
    assert_eq!((own.huge_mib(), own.tell("check").as_str()), (8, "0"));
}

/// A running daemon; ended when dropped.
struct Daemon {
    child: Child,
    /// What it says on standard error.
    lines: mpsc::Receiver<String>,
}

impl Daemon {
    fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (told, lines) = mpsc::channel();
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).try_for_each(|line| told.send(line))
        });
        Self { child, lines }
    }

    /// Waits until that is said.
    fn until(&mut self, wanted: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|error| panic!("never {wanted:?}: {error}"));
            if line.contains(wanted) {
                return line;
            }
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// Ends it as systemd does: its exit code.
    fn end(mut self) -> Option<i32> {
        self.signal("-TERM");
        let told = loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(_) => {}
                Err(end) => break end,
            }
        };
        assert_eq!(told, mpsc::RecvTimeoutError::Disconnected, "it hangs");
        self.child.wait().unwrap().code()
    }
}

impl Drop for Daemon {
    /// After a failure, too, it puts settings back that it changed, unless it hangs.
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.signal("-TERM");
            while self.lines.recv_timeout(PATIENCE).is_ok() {}
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn scrape(address: &str) -> String {
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_daemon_promotes_across_exec_tells_reloads_and_leaves_the_system_as_it_was() {
    if !is_root() {
        println!("SKIPPED: root: khugepaged's settings are root's");
        return;
    }
    let Some((folder, program)) = place("promote-daemon") else { return };
    let mut target = Program::start(&mut Command::new(program));
    target.tell("map 24");
    target.fill(0..16, 512);
    let config = folder.0.join("promote.toml");
    let pid = target.pid();
    let configure = |threshold: u32| {
        let text = format!(
            "manage_thp = true\nmetrics = \"127.0.0.1:0\"\n[[target]]\npid = {pid}\n[settings]\n\
             threshold_percent = {threshold}\nstall_percent = 100\nslow_ms = 1000\n\
             cpu_percent = 100\ninterval_ms = 50\nsettle_ms = 100\n"
        );
        fs::write(&config, text).unwrap();
    };
    configure(90);
    let setting = "/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none";
    let _one_at_a_time = SETTINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let before = fs::read_to_string(setting).unwrap();
    let socket = folder.0.join("notify");
    let systemd = UnixDatagram::bind(&socket).unwrap();
    systemd.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = Command::new(COWSLIP);
    command.args(["promote", "--config"]).arg(&config).env("NOTIFY_SOCKET", &socket);
    let mut daemon = Daemon::start(&mut command);
    let line = daemon.until("metrics at");
    let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
    let mut message = [0; 64];
    let length = systemd.recv(&mut message).unwrap();
    assert_eq!(&message[..length], b"READY=1");
    until("16 regions are huge", || target.huge_mib() == 32);
    assert!(fs::read_to_string(setting).unwrap().trim().parse::<u32>().unwrap() <= 51);
    let promotions = |count: u32| {
        format!("promotions_total{{pid=\"{}\",name=\"promoted\"}} {count}\n", target.pid())
    };
    until("the metrics say so", || scrape(&address).contains(&promotions(16)));

    // It answers before it execs.
    target.tell("exec");
    until("it is another program", || target.huge_mib() == 0);
    target.tell("map 24");
    target.fill(0..16, 512);
    until("16 regions of it are huge", || target.huge_mib() == 32);

    fs::write(&config, "nonsense").unwrap();
    daemon.signal("-HUP");
    daemon.until("goes on as before");
    target.fill(16..24, 300);
    configure(50);
    daemon.signal("-HUP");
    daemon.until("read the configuration again");
    until("24 regions are huge", || target.huge_mib() == 48);

    assert_eq!(daemon.end(), Some(0));
    assert_eq!(fs::read_to_string(setting).unwrap(), before);
    assert_eq!(target.tell("check"), "0");
}

#[test]
fn the_daemon_finds_programs_by_name_and_survives_their_end() {
    let Some((folder, program)) = place("promote-match") else { return };
    let named = folder.0.join(format!("p{}", std::process::id()));
    fs::rename(program, &named).unwrap();
    let config = folder.0.join("promote.toml");
    let text = format!(
        "[[target]]\nmatch = \"{}\"\n[settings]\nstall_percent = 100\nslow_ms = 1000\n\
         cpu_percent = 100\ninterval_ms = 50\nsettle_ms = 100\n",
        named.file_name().unwrap().to_str().unwrap()
    );
    fs::write(&config, text).unwrap();
    let metrics = folder.0.join("metrics.prom");
    let mut command = Command::new(COWSLIP);
    command.args(["promote", "--config"]).arg(&config).arg("--metrics-file").arg(&metrics);
    let mut daemon = Daemon::start(&mut command);
    daemon.until("nobody yet");
    for round in 0..2 {
        let mut target = Program::start(&mut Command::new(&named));
        target.tell("map 8");
        target.fill(0..8, 512);
        daemon.until(&format!("({})", target.pid()));
        until("it is huge", || target.huge_mib() == 16);
        assert_eq!(target.tell("check"), "0", "round {round}");
        let pid = format!("pid=\"{}\"", target.pid());
        until("it is in the metrics", || fs::read_to_string(&metrics).unwrap().contains(&pid));
        drop(target);
        until("it is gone from them", || !fs::read_to_string(&metrics).unwrap().contains(&pid));
    }
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn one_shot_ends_well_when_its_target_is_killed_meanwhile() {
    let Some((_folder, program)) = place("promote-killed") else { return };
    let mut target = Program::start(&mut Command::new(program));
    target.tell("map 64");
    target.fill(0..64, 512);
    let pid = target.pid().to_string();
    let mut command = Command::new(COWSLIP);
    command.args(["promote", "--once", "--stall-budget", "1", "--pid", &pid]);
    let ran = std::thread::scope(|scope| {
        let ran = scope.spawn(|| run(&mut command));
        until("it has begun", || target.huge_mib() > 0);
        target.child.kill().unwrap();
        target.child.wait().unwrap();
        ran.join().unwrap()
    });
    assert_eq!(ran.status.code(), Some(5), "{}", ran.stderr);
    assert!(ran.stderr.contains("ended meanwhile"), "{}", ran.stderr);
}

#[test]
fn processes_of_a_control_group_and_of_those_below_it_are_promoted() {
    let Some((folder, program)) = place("promote-cgroup") else { return };
    let mut targets =
        [Program::start(&mut Command::new(&program)), Program::start(&mut Command::new(program))];
    for target in &mut targets {
        target.tell("map 4");
        target.fill(0..4, 512);
    }
    // The interface of a control group is this file, of either version.
    let below = folder.0.join("below");
    fs::create_dir(&below).unwrap();
    for (group, target) in [&folder.0, &below].iter().zip(&targets) {
        fs::write(group.join("cgroup.procs"), format!("{}\n", target.pid())).unwrap();
    }
    let mut command = Command::new(COWSLIP);
    command.args(["promote", "--once", "--stall-budget", "100", "--heat", "--json", "-"]);
    let mut group = folder.0.clone().into_os_string();
    group.push("=3");
    let ran = run(command.arg("--cgroup").arg(group));
    assert!(ran.status.success(), "{}", ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["processes"].as_array().unwrap().len(), 2, "{report:#}");
    for process in report["processes"].as_array().unwrap() {
        assert_eq!(process["group"], folder.0.to_str().unwrap(), "{report:#}");
        assert_eq!(process["weight"], 3);
    }
    assert_eq!(report["heat"]["ladder"].as_array().unwrap().len(), 3);
    assert!(["damon", "mappings"].contains(&report["heat"]["source"].as_str().unwrap()));
    assert_eq!(report["system"]["orders"][9]["block_bytes"], 2 * MIB, "{report:#}");
    for target in &mut targets {
        assert_eq!((target.huge_mib(), target.tell("check").as_str()), (8, "0"));
    }
}

#[test]
fn an_interrupted_run_puts_the_settings_back_and_says_so() {
    if !is_root() {
        println!("SKIPPED: root: khugepaged's settings are root's");
        return;
    }
    let Some((_folder, program)) = place("promote-interrupted") else { return };
    let mut target = Program::start(&mut Command::new(program));
    target.tell("map 64");
    target.fill(0..64, 512);
    let setting = "/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none";
    let _one_at_a_time = SETTINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let before = fs::read_to_string(setting).unwrap();
    let mut command = Command::new(COWSLIP);
    command.args(["promote", "--once", "--stall-budget", "1", "--manage-thp", "--pid"]);
    let mut running = Daemon::start(command.arg(target.pid().to_string()));
    running.until("until this ends");
    until("it has begun", || target.huge_mib() > 0);
    running.signal("-INT");
    running.until("as they were");
    running.until("interrupted");
    assert_eq!(running.child.wait().unwrap().code(), Some(1));
    assert_eq!(fs::read_to_string(setting).unwrap(), before);
    assert_eq!(target.tell("check"), "0");
}

/// A daemon that promotes one process, and where it serves its metrics.
fn daemon_of(pid: u32, options: &[&str]) -> (Daemon, String) {
    let mut command = Command::new(COWSLIP);
    command.args(["promote", "--stall-budget", "100", "--metrics", "127.0.0.1:0", "--pid"]);
    let mut daemon = Daemon::start(command.arg(pid.to_string()).args(options));
    let line = daemon.until("metrics at");
    let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
    (daemon, address)
}

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
    let row = table.stdout.lines().find(|it| it.contains(&pid)).unwrap();
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
    see("processes by rss", &mut seen);
    keys.write_all(b"s").unwrap();
    see("processes by huge", &mut seen);
    keys.write_all(b"p").unwrap();
    see("paused", &mut seen);
    keys.write_all(b"q").unwrap();
    see("\x1b[?1049l", &mut seen);
    assert!(child.wait().unwrap().success());
    screen.read_to_string(&mut seen).unwrap();
    let (before, after) = (seen.lines().next().unwrap(), seen.lines().last().unwrap());
    assert!(after.ends_with(before) && before.contains(':'), "{before} and {after}");
}

#[test]
fn what_a_killed_run_has_changed_is_put_back_by_the_next() {
    if !is_root() {
        println!("SKIPPED: root: khugepaged's settings are root's");
        return;
    }
    let Some((folder, program)) = place("promote-left") else { return };
    let mut target = Program::start(&mut Command::new(program));
    target.tell("map 2");
    let setting = "/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none";
    let read = || fs::read_to_string(setting).unwrap().trim().to_owned();
    let _one_at_a_time = SETTINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let before = read();
    let promote = |options: &[&str]| {
        let mut command = Command::new(COWSLIP);
        command.arg("promote").args(options).env("RUNTIME_DIRECTORY", &folder.0);
        command
    };
    let pid = target.pid().to_string();
    let manage = ["--manage-thp", "--threshold", "97", "--pid", &pid];
    let kept = folder.0.join("promote-thp.json");
    let kill_one = || {
        let mut running = Daemon::start(&mut promote(&manage));
        running.until("until this ends");
        until("the setting is ours", || read() == "15");
        assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
        let other = run(&mut promote(&manage));
        assert_eq!(other.status.code(), Some(1), "one at a time: {}", other.stderr);
        running.child.kill().unwrap();
        running.child.wait().unwrap();
        assert_eq!(read(), "15", "it had no time");
    };
    kill_one();
    let done = run(&mut promote(&["--restore-thp"]));
    assert!(done.status.success() && done.stderr.contains(&before), "{}", done.stderr);
    assert_eq!((read(), kept.exists()), (before.clone(), false));
    let nothing = run(&mut promote(&["--restore-thp"]));
    assert!(nothing.status.success() && nothing.stderr.contains("no run has left"));

    kill_one();
    let next = run(&mut promote(&["--once", "--dry-run", "--pid", &pid]));
    assert!(next.stderr.contains("put back"), "{}", next.stderr);
    assert_eq!(read(), before);

    kill_one();
    fs::write(setting, "77").unwrap();
    run(&mut promote(&["--restore-thp"]));
    assert_eq!(read(), "77", "somebody else's");
    fs::write(setting, &before).unwrap();

    kill_one();
    let text = fs::read_to_string(&kept).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    fs::write(&kept, text.replace(boot.trim(), "another-boot")).unwrap();
    run(&mut promote(&["--restore-thp"]));
    assert_eq!((read(), kept.exists()), ("15".to_owned(), false), "of another boot");
    fs::write(setting, &before).unwrap();
}

#[test]
fn looking_takes_no_more_of_a_core_than_it_may() {
    let Some((folder, program)) = place("promote-budget") else { return };
    let mut target = Program::start(&mut Command::new(program));
    target.tell("map 128");
    target.fill(0..128, 300);
    let config = folder.0.join("promote.toml");
    let pid = target.pid();
    fs::write(&config, format!("[[target]]\npid = {pid}\n[settings]\ninterval_ms = 10\n")).unwrap();
    let (daemon, address) = daemon_of(pid, &["--config", config.to_str().unwrap()]);
    let looks = || {
        let text = scrape(&address);
        let of = |name: &str| -> f64 {
            let line = text.lines().find_map(|it| it.strip_prefix(name));
            line.map_or(0.0, |value| value.trim().parse().unwrap())
        };
        (of("cowslip_promote_looks_total"), of("cowslip_promote_look_cpu_seconds_total"))
    };
    until("it has looked", || looks().0 >= 1.0);
    let (began, first) = (Instant::now(), looks());
    until("it has looked five times more", || looks().0 >= first.0 + 5.0);
    let (seconds, last) = (began.elapsed().as_secs_f64(), looks());
    // Each look is followed by a rest, so that all but the last one's rest is over.
    let share = (last.1 - first.1) / seconds;
    println!(
        "a look takes {:.1} ms, all together {:.2} % of a core",
        (last.1 - first.1) * 1e3 / (last.0 - first.0),
        share * 100.0
    );
    assert!(share > 0.0 && share <= 0.015, "{share}: 1 % is the budget");
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn a_target_that_becomes_another_program_meanwhile_is_nothing_special() {
    let Some((_folder, program)) = place("promote-exec") else { return };
    let mut target = Program::start(&mut Command::new(program));
    target.tell("map 64");
    target.fill(0..64, 512);
    let pid = target.pid().to_string();
    let mut command = Command::new(COWSLIP);
    command.args(["promote", "--once", "--stall-budget", "2", "--timeout", "20", "--pid", &pid]);
    let ran = std::thread::scope(|scope| {
        let ran = scope.spawn(|| run(&mut command));
        until("it has begun", || target.huge_mib() > 0);
        target.tell("exec");
        target.tell("map 8");
        target.fill(0..8, 512);
        assert_eq!(target.tell("check"), "0");
        ran.join().unwrap()
    });
    assert_eq!(ran.status.code(), Some(0), "{}", ran.stderr);
    assert_eq!(target.tell("check"), "0", "whatever of it was promoted");
}

#[test]
fn file_capabilities_are_enough_for_a_user_without_any() {
    if !is_root() {
        println!("SKIPPED: root: becoming another user needs it");
        return;
    }
    let Some((folder, program)) = place("promote-setcap") else { return };
    let command = folder.0.join("cowslip");
    assert!(Command::new("cp").arg(COWSLIP).arg(&command).status().unwrap().success());
    let documented = "cap_sys_ptrace,cap_dac_read_search,cap_sys_nice+ep";
    match Command::new("setcap").arg(documented).arg(&command).output() {
        Ok(set) if set.status.success() => {}
        Ok(set) => {
            println!("SKIPPED: setcap: {}", String::from_utf8_lossy(&set.stderr));
            return;
        }
        Err(error) => {
            println!("SKIPPED: setcap: {error}");
            return;
        }
    }
    let mut target = Program::start(&mut Command::new(&program));
    target.tell("map 4");
    target.fill(0..4, 512);
    // No capability is handed on: what it has is its file's.
    let mut promote = as_nobody(&command, "");
    let pid = target.pid().to_string();
    let done = run(promote.args(["promote", "--once", "--stall-budget", "100", "--pid", &pid]));
    assert!(done.status.success(), "{}", done.stderr);
    assert_eq!((target.huge_mib(), target.tell("check").as_str()), (8, "0"));
}

#[test]
fn a_region_of_each_kind_is_explained() {
    let Some((folder, program)) = place("promote-explain") else { return };
    let mut target = Program::start(&mut Command::new(program));
    let start = u64::from_str_radix(&target.tell("map 6")[2..], 16).unwrap();
    target.fill(0..1, 512);
    target.fill(1..2, 300);
    target.fill(2..3, 512);
    target.fill(3..4, 20);
    assert_eq!(target.tell("huge 2 2"), "0");
    let config = folder.0.join("promote.toml");
    let explain = |target: &Program, region: u64, settings: &str| -> (String, String) {
        let pid = target.pid();
        let text = format!("[[target]]\npid = {pid}\n[settings]\ninterval_ms = 100\n{settings}");
        fs::write(&config, text).unwrap();
        let address = format!("{:#x}", start + region * 2 * MIB + 4711);
        let mut command = Command::new(COWSLIP);
        command.args(["promote", "--explain", &address, "--config"]).arg(&config);
        let human = run(&mut command).stdout;
        let ran = run(command.args(["--json", "-"]));
        let json: Value = serde_json::from_str(&ran.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", ran.stdout, ran.stderr));
        (json["regions"][0]["reason"].as_str().unwrap().to_owned(), human)
    };
    for (region, settings, reason, says) in [
        (0, "", "full", "512 of 512 pages in use"),
        (0, "keep_available_percent = 100", "memory_low", "too little memory"),
        (0, "stall_percent = 0.0001", "stall_budget", "held up the process"),
        (1, "", "below_threshold", "300 of 512 pages in use (58 %)"),
        (2, "", "huge", "one huge page"),
        (3, "", "sparse", "20 of 512 pages hold anything but zeroes"),
    ] {
        let (found, human) = explain(&target, region, settings);
        assert_eq!(found, reason, "{human}");
        assert!(human.contains(says) && human.contains(&format!("{reason}: ")), "{human}");
    }
    target.tell("fork");
    let (found, human) = explain(&target, 0, "");
    assert_eq!(found, "shared", "{human}");
    assert_eq!(target.tell("reap"), "0");

    // What needs a history is explained from a record.
    let record = folder.0.join("record.jsonl");
    assert_eq!(target.tell("refuse_some 0 1"), "0");
    // Something to do, after which it looks again.
    target.fill(4..5, 512);
    once(target.pid(), &["--record", record.to_str().unwrap(), "--demote-below", "0"]);
    let story = |region: u64| {
        let address = format!("{:#x}", start + region * 2 * MIB);
        let mut command = Command::new(COWSLIP);
        run(command.args(["promote", "--explain", &address, "--replay"]).arg(&record)).stdout
    };
    let given_up = story(0);
    let wanted = ["first_look: ", "full: ", "given_up: "].map(|it| given_up.find(it));
    assert!(wanted.is_sorted() && wanted.iter().all(Option::is_some), "{given_up}");
    assert_eq!(target.tell("refuse"), "0");
    assert_eq!(explain(&target, 1, "threshold_percent = 50").0, "disabled");
    assert_eq!(target.tell("check"), "0");
}

#[test]
fn what_an_allocator_releases_is_not_filled_again_by_a_daemon() {
    let Some((folder, program)) = place("promote-released") else { return };
    let mut target = Program::start(&mut Command::new(program));
    let address = target.tell("map 2");
    target.fill(0..1, 512);
    let config = folder.0.join("promote.toml");
    let record = folder.0.join("record.jsonl");
    let pid = target.pid();
    // Nothing is promoted while so much memory has to stay available: its looks are what is wanted.
    let settings = "interval_ms = 50\ncpu_percent = 100\nkeep_available_percent = 100\n";
    fs::write(&config, format!("[[target]]\npid = {pid}\n[settings]\n{settings}")).unwrap();
    let options = ["--config", config.to_str().unwrap(), "--record", record.to_str().unwrap()];
    let (daemon, at) = daemon_of(pid, &options);
    let regions = |reason: &str| format!("reason=\"{reason}\"}} 1\n");
    until("it would be promoted", || scrape(&at).contains(&regions("memory_low")));
    target.tell("release 0 20");
    until("it is left alone", || scrape(&at).contains(&regions("just_released")));
    assert_eq!(daemon.end(), Some(0));
    let mut command = Command::new(COWSLIP);
    let story = run(command.args(["promote", "--explain", &address, "--replay"]).arg(&record));
    assert!(story.stdout.contains("just_released: left"), "{}", story.stdout);
    assert_eq!(target.tell("check"), "0");
}

#[test]
fn an_arena_of_base_pages_is_promoted_while_it_is_live_and_not_while_a_child_reads_it() {
    let Some((folder, program)) = place("promote-arena") else { return };
    let mut command = Command::new(COWSLIP);
    command.args(["run", "--strict", "--backing", "base", "--"]).arg(program);
    let mut target = Program::start(&mut command);
    let address = target.tell("map 8");
    target.fill(0..8, 512);
    let report = |target: &Program| once(target.pid(), &[]).0["processes"][0].clone();
    let bytes = |report: &Value, what: &str| report["after"][what].as_u64().unwrap();
    target.tell("fork");
    // Written while a child reads the arena, so that something of it is mapped.
    target.fill(0..8, 512);
    let config = folder.0.join("promote.toml");
    let text = format!("[[target]]\npid = {}\n[settings]\ninterval_ms = 100\n", target.pid());
    fs::write(&config, text).unwrap();
    let explain = || {
        let mut command = Command::new(COWSLIP);
        run(command.args(["promote", "--explain", &address, "--config"]).arg(&config)).stdout
    };
    let explained = explain();
    assert!(explained.contains("frozen: left"), "{explained}");
    let frozen = report(&target);
    assert_eq!(bytes(&frozen, "arena_huge_bytes"), 0, "{frozen:#}");
    assert!(frozen["regions_by_reason"]["frozen"].as_u64().unwrap() >= 8, "{frozen:#}");
    assert_eq!(target.tell("reap"), "0");
    until("it is thawed, and mapped again", || {
        assert_eq!(target.tell("check"), "0");
        let told = explain();
        told.contains("of an arena,") || told.contains("of an arena\n")
    });
    let live = report(&target);
    assert!(bytes(&live, "arena_huge_bytes") >= 16 * MIB, "{live:#}");
    assert_eq!(target.tell("check"), "0");
}
