//! `cowslip setup`: on a system below a directory, and as root on this one, which is restored afterwards.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::{COWSLIP, Folder, Ran, compile, run};

const UNIT: &str = "[Unit]\nDescription=A store\n[Service]\nType=notify\n\
    ExecStart=-/usr/bin/store /etc/store.conf \\\n  --name %i\n\
    User=store\nPrivateDevices=true\nSystemCallFilter=@system-service\nNoExecPaths=/\nExecPaths=/usr/bin/store\n";
const UNIT_FILE: &str = "usr/lib/systemd/system/store.service";
const DROP_IN: &str = "etc/systemd/system/store.service.d/cowslip.conf";

fn is_root() -> bool {
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    if !is_root {
        println!("SKIPPED: root, who sets a machine up");
    }
    is_root
}

/// A system below a directory, with a service.
fn system(name: &str) -> Folder {
    let folder = Folder::new(name);
    for (file, text) in [
        ("etc/passwd", "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n"),
        ("etc/group", "root:x:0:\nalice:x:1000:\n"),
        ("etc/gshadow", "root:*::\nalice:!::\n"),
        ("etc/login.defs", "SYS_GID_MIN 100\nSYS_GID_MAX 999\n"),
        (UNIT_FILE, UNIT),
        ("usr/bin/cowslip", ""),
    ] {
        let file = folder.0.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    std::os::unix::fs::symlink(
        "store.service",
        folder.0.join("usr/lib/systemd/system/alias.service"),
    )
    .unwrap();
    folder
}

/// The files and their contents, without backups, lock files and markers of changes.
fn files(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if !name.ends_with('-') && !name.ends_with(".lock") && !name.contains(".updated")
            {
                let text = fs::read(&path).unwrap();
                all.insert(
                    path.strip_prefix(root).unwrap().to_owned(),
                    String::from_utf8_lossy(&text).into_owned(),
                );
            }
        }
    }
    all
}

fn setup(arguments: &[&str]) -> (Ran, Value) {
    let ran = run(Command::new(COWSLIP).arg("setup").args(arguments).args(["--json", "-"]));
    let document = serde_json::from_str(&ran.stdout)
        .unwrap_or_else(|_| panic!("{} {}", ran.stdout, ran.stderr));
    (ran, document)
}

/// The steps with this outcome.
fn steps<'a>(document: &'a Value, outcome: &str) -> Vec<&'a str> {
    let all = document["steps"].as_array().unwrap().iter();
    all.filter(|step| step["outcome"] == outcome)
        .map(|step| step["step"].as_str().unwrap())
        .collect()
}

#[test]
fn files_are_written_once_and_all_of_them_taken_back() {
    if !is_root() {
        return;
    }
    let system = system("setup");
    let root = system.0.to_str().unwrap();
    let before = files(&system.0);
    let wanted = ["group", "udev rule", "user alice", "huge pages", "store.service"];
    let arguments = ["--root", root, "--user", "alice", "store"];

    let (_, document) = setup(&[&arguments[..], &["--dry-run"]].concat());
    assert_eq!(steps(&document, "would"), wanted, "{document}");
    assert_eq!(files(&system.0), before);

    let (ran, document) = setup(&arguments);
    assert_eq!(steps(&document, "done"), wanted, "{document}");
    assert!(ran.status.success());
    let done = files(&system.0);
    let drop_in = &done[Path::new(DROP_IN)];
    for line in [
        "ExecStart=-/usr/bin/cowslip run -- /usr/bin/store /etc/store.conf    --name %i",
        "SupplementaryGroups=cowslip",
        "BindPaths=/dev/userfaultfd",
        "DeviceAllow=/dev/userfaultfd rw",
        "ExecPaths=-/usr/bin/cowslip -/usr/lib/cowslip",
        "SystemCallErrorNumber=EPERM",
    ] {
        assert!(drop_in.lines().any(|text| text == line), "{line}: {drop_in}");
    }
    let group =
        done[Path::new("etc/group")].lines().find(|line| line.starts_with("cowslip:")).unwrap();
    assert!(group.ends_with(":alice"), "{group}");

    let (_, document) = setup(&arguments);
    assert_eq!(steps(&document, "needless"), wanted, "{document}");
    assert_eq!(files(&system.0), done);
    // By another name of the same service.
    let (_, document) = setup(&["--root", root, "alias"]);
    assert_eq!(steps(&document, "done"), [""; 0], "{document}");

    let (ran, document) = setup(&["--root", root, "--undo", "--dry-run"]);
    assert!(ran.status.success() && document["ok"] == true, "{document}");
    assert_eq!(files(&system.0), done);
    let (ran, document) = setup(&["--root", root, "--undo"]);
    assert!(ran.status.success(), "{document}");
    assert_eq!(files(&system.0), before);
    assert!(!system.0.join(DROP_IN).parent().unwrap().exists());
    let (_, document) = setup(&["--root", root, "--undo"]);
    assert_eq!(steps(&document, "done"), [""; 0], "{document}");
}

#[test]
fn what_others_wrote_or_use_stays() {
    if !is_root() {
        return;
    }
    let system = system("setup-others");
    let root = system.0.to_str().unwrap();
    let theirs = system.0.join(DROP_IN);
    fs::create_dir_all(theirs.parent().unwrap()).unwrap();
    fs::write(&theirs, "[Service]\nNice=5\n").unwrap();
    let before = files(&system.0);
    let (ran, document) = setup(&["--root", root, "store"]);
    assert_eq!((ran.status.code(), &document["ok"]), (Some(1), &Value::Bool(false)));
    assert_eq!(steps(&document, "failed"), ["store.service"], "{document}");
    assert_ne!(document["steps"][0]["fix"], "", "{document}");
    assert_eq!(files(&system.0), before, "nothing is changed for a service that is refused");
    let (ran, document) = setup(&["--root", root]);
    assert!(ran.status.success(), "{document}");

    // An administrator adds a user to the group.
    let groups = system.0.join("etc/group");
    let text = fs::read_to_string(&groups).unwrap();
    let line = text.lines().find(|line| line.starts_with("cowslip:")).unwrap();
    fs::write(&groups, text.replace(line, &format!("{line}alice"))).unwrap();
    let (ran, document) = setup(&["--root", root, "--undo"]);
    assert!(ran.status.success(), "{document}");
    assert!(fs::read_to_string(&groups).unwrap().contains("cowslip:"), "{document}");
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "[Service]\nNice=5\n");
}

#[test]
fn unknown_names_change_nothing_and_near_ones_are_offered() {
    if !is_root() {
        return;
    }
    let system = system("setup-names");
    let root = system.0.to_str().unwrap();
    let before = files(&system.0);
    for (arguments, wanted) in [
        (&["store", "stor"][..], "there is no stor.service: store?"),
        (&["nonesuch"], "there is no nonesuch.service; `systemctl list-unit-files"),
        (&["--user", "alcie", "store"], "there is no user alcie in /etc/passwd: alice?"),
        (&["--undo", "stor"], "there is no stor.service: store?"),
        (&["--undo", "--user", "alcie"], "there is no user alcie in /etc/passwd: alice?"),
    ] {
        let ran = run(Command::new(COWSLIP).args(["setup", "--root", root]).args(arguments));
        assert_eq!(ran.status.code(), Some(2), "{arguments:?}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains(wanted), "{wanted}: {}", ran.stderr);
        assert_eq!(files(&system.0), before, "{arguments:?}");
    }
}

/// As in a container, which cannot change a setting of its host: here the folder of one step's file is a file.
#[test]
fn no_service_is_changed_after_a_step_that_failed() {
    if !is_root() {
        return;
    }
    let system = system("setup-failed");
    let root = system.0.to_str().unwrap();
    fs::write(system.0.join("etc/tmpfiles.d"), "").unwrap();
    let before = files(&system.0);
    let (ran, document) = setup(&["--root", root, "store"]);
    assert_eq!(ran.status.code(), Some(1), "{document}");
    assert_eq!(steps(&document, "failed"), ["huge pages", "store.service"], "{document}");
    assert!(!system.0.join(DROP_IN).exists(), "{document}");
    let (_, document) = setup(&["--root", root, "--keep-shmem-enabled", "store"]);
    assert_eq!(steps(&document, "done"), ["store.service"], "{document}");

    // A service that is gone is undone by its name.
    fs::rename(system.0.join(UNIT_FILE), system.0.join("kept")).unwrap();
    let (_, document) = setup(&["--root", root, "--undo", "store"]);
    assert_eq!(steps(&document, "done"), ["store.service"], "{document}");
    fs::rename(system.0.join("kept"), system.0.join(UNIT_FILE)).unwrap();
    // What the failed setup had done already is taken back too.
    let (ran, document) = setup(&["--root", root, "--undo"]);
    assert!(ran.status.success(), "{document}");
    assert_eq!(files(&system.0), before, "{document}");
}

#[test]
fn who_may_not_change_the_system_is_told_so() {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    let folder = Folder::new("setup-nobody");
    let program = for_everybody(&folder);
    let ran = match fs::metadata("/proc/self").unwrap().uid() {
        0 => run(command.arg(program).arg("setup")),
        _ => run(Command::new(program).arg("setup")),
    };
    assert_eq!(ran.status.code(), Some(4), "{}", ran.stderr);
    assert!(ran.stderr.contains("as root"), "{}", ran.stderr);
}

/// Whose command it is, or whose folder, that user would be whatever user the service has.
#[test]
fn a_service_is_not_started_from_what_others_can_change() {
    if !is_root() {
        return;
    }
    let system = system("setup-changeable");
    let root = system.0.to_str().unwrap();
    let (command, folder) = (system.0.join("usr/bin/cowslip"), system.0.join("usr/bin"));
    let set = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let refused = |what: &str| {
        let (_, document) = setup(&["--root", root, "store"]);
        assert_eq!(steps(&document, "failed"), ["store.service"], "{document}");
        assert!(document.to_string().contains(what), "{what}: {document}");
        assert!(!system.0.join(DROP_IN).exists());
    };
    for (path, mode) in [(&command, 0o757), (&command, 0o775), (&folder, 0o777)] {
        let before = fs::metadata(path).unwrap().mode();
        set(path, mode);
        refused(&format!("{} may be written by others", path.display()));
        set(path, before);
    }
    for path in [&command, &folder] {
        chown(path, Some(1000), None).unwrap();
        refused(&format!("{} belongs to user 1000", path.display()));
        chown(path, Some(0), None).unwrap();
    }
    let (_, document) = setup(&["--root", root, "store"]);
    assert!(steps(&document, "done").contains(&"store.service"), "{document}");

    // On the system that runs it is this very command.
    let folder = Folder::new("setup-changeable-here");
    let cowslip = for_everybody(&folder);
    set(&cowslip, 0o757);
    let Some(service) = any_service() else {
        return println!("SKIPPED: systemd: no service here");
    };
    let ran = run(Command::new(&cowslip).args(["setup", "--dry-run", &service]));
    let what = format!("{} may be written by others", cowslip.display());
    assert!(ran.stdout.contains(&what), "{what}: {}{}", ran.stdout, ran.stderr);
}

#[test]
fn systemd_finds_no_fault_with_a_drop_in() {
    if !is_root() {
        return;
    }
    let exists = ["/usr/bin/systemd-analyze", "/usr/lib/systemd/system/redis-server.service"];
    let exists = exists.iter().all(|path| Path::new(path).exists())
        && Path::new("/usr/bin/redis-server").exists();
    if !exists {
        return println!("SKIPPED: no systemd-analyze or no Debian's redis-server here");
    }
    // Debian's own unit, with the command where the verifier looks for it.
    let system = system("setup-verify");
    let units = system.0.join("usr/lib/systemd/system");
    fs::copy("/usr/lib/systemd/system/redis-server.service", units.join("redis-server.service"))
        .unwrap();
    let (ran, document) = setup(&["--root", system.0.to_str().unwrap(), "redis-server"]);
    assert!(ran.status.success(), "{document}");
    let drop_in = system.0.join("etc/systemd/system/redis-server.service.d/cowslip.conf");
    let text = fs::read_to_string(&drop_in).unwrap();
    assert!(text.contains(
        "run -- /usr/bin/redis-server /etc/redis/redis.conf --supervised systemd --daemonize no"
    ));
    fs::write(&drop_in, text.replace("=/usr/bin/cowslip run", &format!("={COWSLIP} run"))).unwrap();
    let path = [units.as_path(), &system.0.join("etc/systemd/system"), Path::new("")];
    let path = path.map(|path| path.to_str().unwrap()).join(":");
    let mut command = Command::new("systemd-analyze");
    command.args(["verify", "--man=no", "redis-server.service"]).env("SYSTEMD_UNIT_PATH", path);
    let ran = run(&mut command);
    assert!(ran.status.success(), "{}", ran.stderr);
    assert!(!ran.stderr.contains("cowslip"), "{}", ran.stderr);
}

/// A service of this system.
fn any_service() -> Option<String> {
    let files = fs::read_dir("/usr/lib/systemd/system").ok()?.flatten();
    let mut names = files.filter_map(|file| file.file_name().into_string().ok());
    names.find(|name| name.ends_with(".service") && !name.contains('@'))
}

/// The command and its libraries, where every user can reach them.
fn for_everybody(folder: &Folder) -> PathBuf {
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).unwrap();
    let beside = Path::new(COWSLIP).parent().unwrap();
    for file in ["cowslip", "libcowslip_preload.so", "libcowslip_malloc.so"] {
        // Another process copies: a process that has the copy open for writing keeps others from running it.
        let copied = Command::new("cp").arg(beside.join(file)).arg(&folder.0).status().unwrap();
        assert!(copied.success(), "{file}");
    }
    folder.0.join("cowslip")
}

/// Sets up this machine, once: its group, device and setting, and checks their effect on a user's program.
#[test]
fn a_member_of_the_group_has_the_full_mechanism_and_nobody_else() {
    let shmem = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let device = Path::new("/dev/userfaultfd");
    if !is_root() {
        return;
    }
    if !device.exists() || fs::OpenOptions::new().write(true).open(shmem).is_err() {
        return println!("SKIPPED: no /dev/userfaultfd, or shmem_enabled cannot be changed");
    }
    let is_set_up =
        fs::read_to_string("/etc/group").unwrap().lines().any(|line| line.starts_with("cowslip:"));
    let anybody = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap();
    if is_set_up || anybody.trim() == "1" {
        return println!(
            "SKIPPED: this machine is set up already: what setup changes cannot be told"
        );
    }
    let folder = Folder::new("setup-here");
    let Some(program) = compile(&folder, "member") else { return };
    let cowslip = for_everybody(&folder);
    let state = || {
        let node = fs::metadata(device).unwrap();
        let groups = fs::read_to_string("/etc/group").unwrap();
        (node.mode(), node.uid(), node.gid(), fs::read_to_string(shmem).unwrap(), groups)
    };
    let before = state();

    let ours =
        |undo: &[&str]| run(Command::new(&cowslip).arg("setup").args(undo).args(["--json", "-"]));
    let done = ours(&[]);
    let group = fs::read_to_string("/etc/group").unwrap();
    let group = group
        .lines()
        .find_map(|line| line.strip_prefix("cowslip:x:")?.split(':').next()?.parse::<u32>().ok());
    // A program's freeze, writes and thaw, as its log and report show them.
    let reports = folder.0.join("reports");
    fs::create_dir(&reports).unwrap();
    fs::set_permissions(&reports, fs::Permissions::from_mode(0o777)).unwrap();
    let as_user = |group: u32, report: &str| {
        let report = reports.join(report);
        let mut command = Command::new(&cowslip);
        command.args(["run", "--log", "-", "--report"]).arg(&report).arg("--").arg(&program);
        let ran = run(command.uid(65534).gid(group).current_dir("/"));
        (ran, fs::read_to_string(report).ok())
    };
    let of_the_group = as_user(group.unwrap_or(65534), "member.json");
    let of_another = as_user(65534, "other.json");
    let again = ours(&[]);
    let undone = ours(&["--undo"]);
    // After any failure, nothing of it stays.
    assert_eq!(state(), before, "{} {}", undone.stdout, undone.stderr);

    for ran in [&done, &again, &undone] {
        assert!(ran.status.success(), "{} {}", ran.stdout, ran.stderr);
    }
    let document: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(steps(&document, "works"), ["trial"], "{document}");
    let document: Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!(steps(&document, "done"), [""; 0], "{document}");

    let (ran, report) = of_the_group;
    assert_eq!((ran.stdout.as_str(), ran.status.code()), ("thawed\n", Some(0)), "{}", ran.stderr);
    let report: Value = serde_json::from_str(&report.expect("a report")).unwrap();
    assert_eq!(report["has_userfaultfd"], 1, "{report}");
    // Each chunk either moved while the child lived, or was thawed after it.
    let again_live = ["thawed_chunks", "moved_chunks"].map(|name| report[name].as_u64().unwrap());
    assert!(again_live.iter().sum::<u64>() >= 1, "{report}");
    assert!(ran.stderr.contains("huge pages (memfd)"), "{}", ran.stderr);
    let (ran, report) = of_another;
    assert_eq!((ran.stdout.as_str(), report), ("no arena\n", None), "{}", ran.stderr);
    assert!(ran.stderr.contains("cowslip setup --user nobody"), "{}", ran.stderr);
}
