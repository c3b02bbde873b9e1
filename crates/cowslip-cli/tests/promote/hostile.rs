//! Programs of other users that would have the promoter end, wait or grow, and those beside them.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::PoisonError;

use crate::service::{Daemon, scrape, until};
use crate::support::{COWSLIP, Folder, compile, run};
use crate::target::{MIB, Program, SETTINGS, place};
use crate::user::is_root;

/// What the packaged unit may have (`MemoryMax=`).
const MOST_BYTES: u64 = 256 * MIB;

/// `tests/programs/hostile.c` under a name of this test's own.
fn hostile(folder: &Folder, letter: char) -> Option<PathBuf> {
    let named = folder.0.join(format!("{letter}{}", std::process::id()));
    fs::rename(compile(folder, "hostile")?, &named).unwrap();
    Some(named)
}

fn start(program: &Path, kind: &str, folder: &Folder) -> Program {
    let mut program = Program::start(Command::new(program).arg(kind).current_dir(&folder.0));
    assert_eq!(program.hear(), "ready");
    program
}

/// The most memory that a process had.
fn most_bytes(daemon: &Daemon) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

/// A daemon for programs of the names of both files.
fn daemon(folder: &Folder, names: [&Path; 2], metrics: &str) -> Daemon {
    let rule = |name: &Path| {
        format!("[[target]]\nmatch = {:?}\n", name.file_name().unwrap().to_str().unwrap())
    };
    let settings = "[settings]\nstall_percent = 100\nslow_ms = 1000\ncpu_percent = 100\n\
                    interval_ms = 50\nsettle_ms = 100\n";
    let config = folder.0.join("promote.toml");
    fs::write(&config, format!("{metrics}{}{}{settings}", rule(names[0]), rule(names[1]))).unwrap();
    Daemon::start(Command::new(COWSLIP).args(["promote", "--config"]).arg(config))
}

#[test]
fn memory_made_to_deceive_ends_no_daemon_and_others_are_promoted() {
    let Some((folder, program)) = place("promote-hostile") else { return };
    let Some(hostile) = hostile(&folder, 'h') else { return };
    let victim = folder.0.join(format!("v{}", std::process::id()));
    fs::rename(program, &victim).unwrap();
    let kinds = if is_root() { &["counters", "names", "held"][..] } else { &["counters", "names"] };
    for kind in kinds {
        let deceiver = start(&hostile, kind, &folder);
        let mut target = Program::start(&mut Command::new(&victim));
        target.tell("map 8");
        let daemon = daemon(&folder, [&hostile, &victim], "");
        target.fill(0..8, 512);
        until("the other program is huge", || target.huge_mib() == 16);
        assert!(most_bytes(&daemon) < MOST_BYTES, "{kind}: {} bytes", most_bytes(&daemon));
        assert_eq!(daemon.end(), Some(0), "{kind}");
        drop(deceiver);
    }
}

#[test]
fn processes_beyond_the_limit_of_open_files_end_no_daemon() {
    let Some((folder, _)) = place("promote-many") else { return };
    let Some(hostile) = hostile(&folder, 'm') else { return };
    let many: Vec<Program> = (0..80).map(|_| start(&hostile, "nothing", &folder)).collect();
    let mut command = Command::new("prlimit");
    command.args(["--nofile=96:96", COWSLIP, "promote", "--metrics", "127.0.0.1:0", "--match"]);
    let mut daemon = Daemon::start(command.arg(hostile.file_name().unwrap()));
    daemon.until("left out: the limit of open files");
    let line = daemon.until("metrics at");
    let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
    // It goes on, round after round.
    let looks = || {
        let text = scrape(&address);
        let line = text.lines().find_map(|line| line.strip_prefix("cowslip_promote_looks_total "));
        line.map_or(0, |count| count.parse::<u64>().unwrap())
    };
    until("three looks", || looks() >= 3);
    drop(many);
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn a_client_that_says_nothing_or_little_keeps_no_metrics_from_others() {
    let folder = Folder::new("promote-silent");
    let mut daemon = daemon(&folder, [&folder.0, &folder.0], "metrics = \"127.0.0.1:0\"\n");
    let line = daemon.until("metrics at");
    let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
    let mut silent: Vec<_> = (0..100).map(|_| TcpStream::connect(&address).unwrap()).collect();
    silent.iter_mut().for_each(|client| drop(client.write_all(b"G")));
    assert!(scrape(&address).starts_with("HTTP/1.1 200 OK"));
    drop(silent);
    assert_eq!(daemon.end(), Some(0));
}

/// Every user may fill a disk.
#[test]
fn a_disk_that_is_full_later_ends_no_daemon() {
    let folder = Folder::new("promote-full");
    let disk = folder.0.join("disk");
    fs::create_dir(&disk).unwrap();
    let mount = |words: &[&str]| Command::new(words[0]).args(&words[1..]).arg(&disk).status();
    match mount(&["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs"]) {
        Ok(status) if status.success() => {}
        _ => return println!("SKIPPED: root: a file system of the test's own"),
    }
    let _unmounted = Unmounted(&disk);
    let metrics = disk.join("promote.prom");
    let mut daemon =
        daemon(&folder, [&folder.0, &folder.0], &format!("metrics_file = {metrics:?}\n"));
    until("it is written", || metrics.exists());
    let mut filler = fs::File::create(disk.join("filler")).unwrap();
    while filler.write_all(&[7; 4096]).is_ok() {}
    daemon.until("the metrics' file stays as it is for now");
    assert_eq!(daemon.child.try_wait().unwrap(), None);
    drop(filler);
    fs::remove_file(disk.join("filler")).unwrap();
    let changed = || fs::metadata(&metrics).unwrap().modified().unwrap();
    let before = changed();
    until("it is written again", || changed() > before);
    assert_eq!(daemon.end(), Some(0));
}

/// What is to be put back after a kill, as the user of a unit may have written it for root to find.
#[test]
fn what_another_user_left_is_neither_put_back_nor_trusted() {
    if !is_root() {
        return println!("SKIPPED: root: khugepaged's settings are root's");
    }
    let setting = "/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none";
    let _one_at_a_time = SETTINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let read = || fs::read_to_string(setting).unwrap().trim().parse::<u32>().unwrap();
    let (folder, before) = (Folder::new("promote-foreign"), read());
    let kept = folder.0.join("promote-thp.json");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let thp = |most_absent: u32| format!("[\"unknown\",{most_absent}]");
    let text = format!(
        "{{\"boot_id\":\"{}\",\"owner\":{{\"pid\":2147483647,\"start_ticks\":1}},\"left\":[{},{}]}}",
        boot.trim(),
        thp(before ^ 1),
        thp(before)
    );
    fs::write(&kept, text).unwrap();
    chown(&kept, Some(65_534), None).unwrap();
    let promote = |words: &[&str]| {
        run(Command::new(COWSLIP).arg("promote").args(words).env("RUNTIME_DIRECTORY", &folder.0))
    };
    let restored = promote(&["--restore-thp"]);
    let is_now = read();
    fs::write(setting, before.to_string()).unwrap();
    assert_eq!(is_now, before, "{}", restored.stderr);
    assert!(restored.stderr.contains("no run has left"), "{}", restored.stderr);
    // A folder of theirs is no place for this user's file.
    fs::remove_file(&kept).unwrap();
    chown(&folder.0, Some(65_534), None).unwrap();
    let pid = std::process::id().to_string();
    let refused = promote(&["--manage-thp", "--once", "--pid", &pid]);
    assert_eq!((refused.status.code(), kept.exists()), (Some(4), false), "{}", refused.stderr);
    assert!(refused.stderr.contains("another user may change"), "{}", refused.stderr);
    assert_eq!(read(), before);
}

/// A mount that goes with this value.
struct Unmounted<'a>(&'a Path);

impl Drop for Unmounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0).status();
    }
}
