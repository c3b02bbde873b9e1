//! The daemon, and the state in which it leaves the system.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::sync::PoisonError;
use std::time::Instant;

use serde_json::Value;

use crate::service::{Daemon, daemon_of, scrape, until};
use crate::support::{COWSLIP, Folder, run};
use crate::target::{MIB, PATIENCE, Program, SETTINGS, place};
use crate::user::is_root;

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
    assert_eq!(report["heat"]["sources"].as_array().unwrap().len(), 3);
    assert!(["damon", "mappings"].contains(&report["heat"]["source"].as_str().unwrap()));
    assert_eq!(report["system"]["orders"][9]["block_bytes"], 2 * MIB, "{report:#}");
    for target in &mut targets {
        assert_eq!((target.huge_mib(), target.tell("check").as_str()), (8, "0"));
    }
}

#[test]
fn a_control_group_that_is_not_there_is_waited_for() {
    let Some((folder, program)) = place("promote-vanishing") else { return };
    let mut targets =
        [Program::start(&mut Command::new(&program)), Program::start(&mut Command::new(program))];
    let (group, config) = (folder.0.join("group"), folder.0.join("promote.toml"));
    let (first, path) = (targets[0].pid(), group.display());
    let text = format!(
        "[[target]]\ncgroup = \"{path}\"\n[[target]]\npid = {first}\n[settings]\nstall_percent = 100\n\
         slow_ms = 1000\ncpu_percent = 100\npromotion_cpu_percent = 100\ninterval_ms = 50\n\
         settle_ms = 100\n"
    );
    fs::write(&config, text).unwrap();
    let mut command = Command::new(COWSLIP);
    let mut daemon = Daemon::start(command.args(["promote", "--config"]).arg(&config));
    daemon.until(&format!("control group {path}: No such file"));
    targets[0].tell("map 8");
    targets[0].fill(0..8, 512);
    let told = daemon.until("changed, ");
    assert!(!told.contains(" 0.0 %"), "what is huge afterwards: {told}");
    until("the other target is promoted", || targets[0].huge_mib() == 16);

    let second = targets[1].pid();
    fs::create_dir(&group).unwrap();
    fs::write(group.join("cgroup.procs"), format!("{second}\n")).unwrap();
    let told = daemon.until(&format!("found promoted ({second})"));
    assert!(!told.contains("waited for"));
    fs::remove_dir_all(&group).unwrap();
    daemon.until("it is waited for");
    targets[1].tell("map 4");
    targets[1].fill(0..4, 512);
    until("who was in it is promoted still", || targets[1].huge_mib() == 8);
    assert_eq!(daemon.end(), Some(0));
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
        assert_eq!(other.status.code(), Some(70), "one at a time: {}", other.stderr);
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
fn what_a_killed_run_has_kept_is_not_dropped_if_it_cannot_be_read() {
    let folder = Folder::new("promote-damaged");
    let kept = folder.0.join("promote-thp.json");
    fs::write(&kept, "{bad").unwrap();
    let mut command = Command::new(COWSLIP);
    command.args(["promote", "--restore-thp"]).env("RUNTIME_DIRECTORY", &folder.0);
    let ran = run(&mut command);
    let (path, said) = (kept.to_str().unwrap(), &ran.stderr);
    assert!(said.contains(path) && said.contains("damaged"), "{said}");
    assert_eq!((ran.status.code(), fs::read(&kept).unwrap()), (Some(6), b"{bad".to_vec()));
}

#[test]
fn promotions_of_all_targets_together_take_no_more_of_a_core_than_they_may() {
    const TARGETS: usize = 4;
    let Some((folder, program)) = place("promote-cpu") else { return };
    let mut targets: Vec<Program> =
        (0..TARGETS).map(|_| Program::start(&mut Command::new(&program))).collect();
    let mut text = String::new();
    for target in &mut targets {
        target.tell("map 64");
        target.fill(0..64, 512);
        text += &format!("[[target]]\npid = {}\n", target.pid());
    }
    let config = folder.0.join("promote.toml");
    let settings = "stall_percent = 100\nslow_ms = 1000\npromotion_cpu_percent = 4\n\
                    interval_ms = 1000\nsettle_ms = 100\n";
    fs::write(&config, format!("{text}[settings]\n{settings}")).unwrap();
    let (daemon, address) = daemon_of(targets[0].pid(), &["--config", config.to_str().unwrap()]);
    let sum = |name: &str| -> f64 {
        let text = scrape(&address);
        let lines = text.lines().filter_map(|line| line.strip_prefix(name));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    };
    let promoted = || sum("cowslip_promote_promotions_total{");
    let spent = || {
        sum("cowslip_promote_cpu_seconds_total ") - sum("cowslip_promote_look_cpu_seconds_total ")
    };
    until("the first are promoted", || promoted() >= 8.0);
    let (began, first) = (Instant::now(), (promoted(), spent()));
    until("so many more are", || promoted() >= first.0 + 60.0);
    let share = (spent() - first.1) / began.elapsed().as_secs_f64();
    let regions = promoted() - first.0;
    println!("{regions} regions took {:.2} % of a core", share * 100.0);
    // A look's promotions are reported at a time, and metrics have a cost as well.
    assert!(share > 0.01 && share <= 0.08, "{share}: 4 % is the budget");
    assert_eq!(daemon.end(), Some(0));
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
            let line = text.lines().find_map(|line| line.strip_prefix(name));
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
fn what_an_allocator_releases_is_not_filled_again_by_a_daemon() {
    let Some((folder, program)) = place("promote-released") else { return };
    let mut target = Program::start(&mut Command::new(program));
    let address = target.tell("map 2");
    target.fill(0..1, 512);
    let config = folder.0.join("promote.toml");
    let record = folder.0.join("record.jsonl");
    let pid = target.pid();
    // Nothing is promoted while this much memory must stay available: the test only needs the looks.
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
