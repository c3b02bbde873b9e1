//! One-shot promotion.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::service::until;
use crate::support::{COWSLIP, Folder, run};
use crate::target::{MIB, Program, once, place, promote, regions};

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
    assert!(ran.stdout.contains(" 2 looks took "), "{}", ran.stdout);
    assert!(!ran.stderr.contains("khugepaged"), "nothing was split: {}", ran.stderr);
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
    // The writer's stack was allocated meanwhile.
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
    assert_eq!(replay(&["--threshold", "101"]).status.code(), Some(2), "whatever the record is");
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
    assert_eq!(code(&["--replay", "/nowhere"]), Some(2));
    let says = |options: &[&str], wanted: &[&str]| {
        let ran = run(Command::new(COWSLIP).args(["promote", "--once"]).args(options));
        assert!(wanted.iter().all(|word| ran.stderr.contains(word)), "{}", ran.stderr);
    };
    says(&["--all", "--threshold", "300"], &["--threshold", "from 1 to 100"]);
    says(&["--all", "--threshold", "150"], &["--threshold", "from 1 to 100"]);
    says(&["--all", "--stall-budget", "0"], &["--stall-budget", "above 0, 100 at most"]);
    says(&["--match", "no such program"], &["\"no such program\""]);
    says(&["--cgroup", "/nowhere"], &["control group /nowhere", "No such file"]);
}

#[test]
fn what_cannot_be_promoted_is_not_covered() {
    let Some((_folder, program)) = place("promote-shared") else { return };
    let mut target = Program::start(&mut Command::new(program));
    // Shared, and not where its file could have huge pages.
    target.tell("map_shared 8 5");
    target.fill(0..8, 512);
    let top = |target: &Program, options: &[&str]| {
        let mut command = Command::new(COWSLIP);
        command.args(["promote", "top", "--pid", &target.pid().to_string()]);
        run(command.args(options)).stdout
    };
    for options in [&["--once"][..], &["--once", "--coverage", "0.5"]] {
        let ran = promote(target.pid(), options);
        assert_eq!(ran.status.code(), Some(1), "{}", ran.stdout);
        assert!(ran.stderr.contains("nothing of it can be promoted"), "{}", ran.stderr);
    }
    let (report, _) = once(target.pid(), &["--coverage", "0"]);
    let coverage = &report["coverage"];
    assert_eq!((&coverage["ratio"], &coverage["reached"]), (&0.0.into(), &Value::Bool(false)));
    assert_eq!(coverage["fitting_ratio"], Value::Null);
    let table = top(&target, &[]);
    assert!(table.contains(" – ") && table.contains(" 1 process by rss"), "{table}");

    // Both ends of this are less than a huge page.
    target.tell("odd 1400");
    target.tell("map 4");
    target.fill(0..2, 512);
    let (report, code) = once(target.pid(), &["--coverage", "1"]);
    let ratio = report["coverage"]["ratio"].as_f64().unwrap();
    assert!(code == Some(1) && ratio > 0.5 && ratio < 1.0, "{report:#}");
    let seen: Value = serde_json::from_str(&top(&target, &["--json", "-"])).unwrap();
    let seen = |name: &str| seen["processes"][0][name].as_f64().unwrap();
    let fitting = report["coverage"]["fitting_ratio"].as_f64().unwrap();
    assert!((fitting - seen("fitting_coverage_ratio")).abs() < 1e-9 && fitting > ratio);
    // The kernel has a counter for each processor, and does not sum them up exactly.
    assert!((ratio - seen("coverage_ratio")).abs() < 0.05, "{ratio}");
    let share = format!("{:.1} %", (fitting * 1000.0).floor() / 10.0);
    assert!(promote(target.pid(), &["--once"]).stdout.contains(&share));
    assert!(top(&target, &[]).contains(&share));
    assert_eq!(target.tell("check"), "0");
}

#[test]
fn memory_in_pieces_that_fit_no_huge_page_counts_and_a_goal_is_of_all() {
    let Some((_folder, program)) = place("promote-pieces") else { return };
    let mut target = Program::start(&mut Command::new(program));
    target.tell("map 4");
    target.fill(0..4, 512);
    // 24 MiB.
    target.tell("scatter 96");
    let (report, code) = once(target.pid(), &["--coverage", "0.7"]);
    let coverage = &report["coverage"];
    let of = |name: &str| coverage[name].as_f64().unwrap();
    assert_eq!((code, &coverage["reached"]), (Some(1), &Value::Bool(false)), "{report:#}");
    assert!(of("ratio") > 0.2 && of("ratio") <= 0.25, "8 of 32 MiB: {report:#}");
    assert!(of("fitting_ratio") > 0.9, "{report:#}");
    let after = &report["processes"][0]["after"];
    let anonymous = target.sum("Anonymous:");
    assert!(after["anonymous_bytes"].as_u64().unwrap().abs_diff(anonymous) < MIB, "{report:#}");
    let said = promote(target.pid(), &["--once", "--coverage", "0.7"]).stderr;
    assert!(
        said.contains("of all anonymous memory is huge, not 70.0 %, and 100.0 % of the memory"),
        "{said}"
    );
    assert_eq!(once(target.pid(), &["--coverage", "0.2"]).1, Some(0));
    assert_eq!(target.tell("check"), "0");
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
    assert!(fine.stdout.contains("1 target; the configuration makes sense"), "{}", fine.stdout);
    let waits = check("[[target]]\ncgroup = \"/nowhere\"\n");
    assert!(waits.status.success() && waits.stdout.contains("makes sense"), "{}", waits.stderr);
    assert!(waits.stderr.contains("/nowhere") && waits.stderr.contains("waited for"));
    let metrics = folder.0.join("promote.prom");
    let writes = check(&format!("metrics_file = {metrics:?}\n[[target]]\nall = true\n"));
    assert!(writes.status.success(), "{}", writes.stderr);
    let unit =
        format!("metrics_file {}: cowslip-promote.service can write below", metrics.display());
    assert!(writes.stderr.contains(&unit), "{}", writes.stderr);
    let of_unit = check("metrics_file = \"/run/cowslip/a.prom\"\n[[target]]\nall = true\n");
    assert!(of_unit.status.success() && of_unit.stderr.is_empty(), "{}", of_unit.stderr);
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "only the configuration stays");
    let dead_link = folder.0.join("dead.prom");
    std::os::unix::fs::symlink("nothing", &dead_link).unwrap();
    let refused = check(&format!("metrics_file = {dead_link:?}\n[[target]]\nall = true\n"));
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("a link to nothing"), "{}", refused.stderr);
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/promote.toml");
    let fine = check(&fs::read_to_string(shipped).unwrap());
    assert!(fine.status.success(), "{}", fine.stderr);
    let endless = ["promote", "--check-config", "--config", "/dev/zero"];
    let refused = run(Command::new(COWSLIP).args(endless));
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("it is longer than 16 MiB"), "{}", refused.stderr);
    for (text, name) in [
        ("[[target]]\nmatch = \"a\"\n[settings]\nthreshold_percent = 0\n", "threshold_percent"),
        ("[[target]]\nmach = \"a\"\n", "mach"),
        ("[settings]\n", "[[target]]"),
        ("metrics_file = \"promote.prom\"\n[[target]]\nall = true\n", "absolute path"),
        ("metrics_file = \"/nowhere/a.prom\"\n[[target]]\nall = true\n", "/nowhere"),
        ("metrics_file = \"/proc/a.prom\"\n[[target]]\nall = true\n", "cannot write in /proc"),
        ("metrics_file = \"/tmp\"\n[[target]]\nall = true\n", "it is a folder"),
    ] {
        let refused = check(text);
        assert_eq!(refused.status.code(), Some(2), "{text}");
        assert!(refused.stderr.contains(name), "{}", refused.stderr);
    }
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
    // Written while a child reads the arena, so that a part of it is mapped: too little for it to be moved.
    target.fill(0..8, 8);
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
