//! `cowslip compare` on files of other tools, and `cowslip compare run` on commands with a known difference.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{COWSLIP, Folder, Ran, compile, run};

const PATIENCE: Duration = Duration::from_secs(60);

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../cowslip-compare/tests/data/inputs").join(name)
}

fn compare(options: &[&str], good: &Path, bad: &Path) -> Ran {
    run(Command::new(COWSLIP).arg("compare").args(options).arg(good).arg("--").arg(bad))
}

fn record(folder: &Folder, options: &[&str]) -> Command {
    let mut command = Command::new(COWSLIP);
    // `compare_why.rs` tests the samples.
    command.args(["compare", "run", "--why=never", "--output"]);
    command.arg(folder.0.join("runs")).args(options);
    command
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.stderr))
}

fn write(folder: &Folder, name: &str, text: &str) -> PathBuf {
    let path = folder.0.join(name);
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn two_commands_of_a_hyperfine_file_are_compared_and_the_exit_code_tells() {
    let [first, second] = ["hyperfine.json@1", "hyperfine.json@2"].map(data);
    let ran = compare(&["--json", "-"], &first, &second);
    assert_eq!(ran.status.code(), Some(1), "{}", ran.stderr);
    let report = json(&ran);
    assert_eq!(
        (&report["schema"], &report["differs"]),
        (&"cowslip.compare/1".into(), &true.into())
    );
    let row = &report["comparison"]["rows"][0];
    assert_eq!(row["metric"], "wall_seconds");
    // scipy.stats.ttest_ind(true, sleep, equal_var=False) of the file's times.
    let t = row["welch"]["t"].as_f64().unwrap();
    assert!((t / -2.658_068_102_083_939 - 1.0).abs() < 1e-12, "{t:?}");
    let ran = compare(&[], &second, &first);
    assert!(ran.stdout.contains("▼ differs") && !ran.stdout.contains('\x1b'), "{}", ran.stdout);
    let same = data("hyperfine.json@1");
    assert_eq!(compare(&[], &same, &same).status.code(), Some(0));
}

#[test]
fn the_exit_code_is_of_what_matters_in_the_direction_asked_for() {
    let folder = Folder::new("compare-exit");
    let file = |name: &str, wall: f64, faults: f64| {
        let row = |index: u32| {
            let noise = 1.0 + f64::from(index * 7 % 5) / 1000.0;
            format!("{},{}\n", wall * noise, faults * noise)
        };
        let rows: String = (0..12).map(row).collect();
        write(&folder, name, &format!("wall_seconds,faults\n{rows}"))
    };
    let (good, bad) = (file("good.csv", 1.0, 90.0), file("bad.csv", 1.02, 30.0));
    let others: [(&[&str], [i32; 2]); 10] = [
        // It is 2 % slower, which does not matter.
        (&[], [0, 0]),
        (&["--effect", "1"], [1, 0]),
        (&["--effect", "1", "--fail-on", "faster"], [0, 1]),
        (&["--effect", "1", "--fail-on", "any"], [1, 1]),
        (&["--primary", "faults"], [0, 1]),
        (&["--primary", "faults", "--fail-on", "fell"], [1, 0]),
        // The bad direction is not known.
        (&["--metric", "faults"], [1, 1]),
        (&["--metric", "faults", "--fail-on", "rose"], [0, 1]),
        (&["--metric", "faults", "--primary", "wall_seconds"], [0, 0]),
        (&["--primary", "none"], [2, 2]),
    ];
    for (options, codes) in others {
        let ran = [compare(options, &good, &bad), compare(options, &bad, &good)];
        assert_eq!(ran.each_ref().map(|ran| ran.status.code().unwrap()), codes, "{options:?}");
    }
    let ran = compare(&[], &good, &bad);
    let line = ran.stdout.lines().next().unwrap();
    assert!(
        line.starts_with("wall time rose by 2.00 % (1.00 s to 1.02 s, 95 % interval"),
        "{line}"
    );
    assert!(line.ends_with("; what else differs: faults fell by 66.7 %"), "{line}");
    assert!(ran.stdout.contains("a side find a change of wall_seconds by 5 %"), "{}", ran.stdout);
}

#[test]
fn a_recording_of_sadf_is_compared_by_its_samples_with_a_warning() {
    let file = data("sadf.json");
    let ran = compare(&["--all", "--metric", "^paging"], &file, &file);
    assert_eq!(ran.status.code(), Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("sample by sample") && ran.stdout.contains("paging.fault"));
    assert!(ran.stdout.contains("one run on each side"), "{}", ran.stdout);
    assert!(!ran.stdout.contains("cpu-load"), "{}", ran.stdout);
}

#[test]
fn what_the_tools_of_this_machine_write_is_read() {
    let folder = Folder::new("tools");
    let file = |name: &str| folder.0.join(name).to_str().unwrap().to_owned();
    let sadc = "/usr/lib/sysstat/sadc";
    for (tool, program, arguments, metric) in [
        (
            "hyperfine",
            "hyperfine",
            format!("-N -r 4 --export-json {} true", file("a")),
            "wall_seconds",
        ),
        (
            "perf",
            "perf",
            format!(
                "stat -j -e page-faults -I 10 -o {} dd if=/dev/zero of=/dev/null bs=1M count=2000",
                file("a")
            ),
            "page-faults/s",
        ),
        ("sysstat", sadc, format!("-S ALL 1 3 {}", file("sa")), "paging.fault"),
    ] {
        let ran = Command::new(program)
            .args(arguments.split(' '))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if !ran.is_ok_and(|status| status.success()) {
            println!("SKIPPED: {tool}: it does not run here");
            continue;
        }
        if tool == "sysstat" {
            let sadf = run(Command::new("sadf").args(["-j", &file("sa"), "--", "-A"]));
            fs::write(file("a"), sadf.stdout).unwrap();
        }
        let input = PathBuf::from(file("a"));
        let ran = compare(&["--json", "-"], &input, &input);
        let report = json(&ran);
        let rows = report["comparison"]["rows"].as_array().unwrap();
        assert!(rows.iter().any(|row| row["metric"] == metric), "{tool}: {}", ran.stderr);
        assert_eq!(ran.status.code(), Some(0), "a file is like itself");
    }
}

#[test]
fn bad_input_has_its_exit_code_and_says_what_is_wrong() {
    let folder = Folder::new("compare-bad");
    let good = write(&folder, "good.csv", "a\n1\n2\n3\n");
    let other = write(&folder, "other.csv", "b\n1\n2\n3\n");
    let binary = write(&folder, "binary", "\0\0");
    let twice = write(&folder, "twice.csv", "a,b,a\n1,2,3\n");
    let page = write(&folder, "page.html", "<!DOCTYPE html>\n<p>1, 2\n");
    let both = |bad: &Path| compare(&[], &good, bad);
    for (ran, code, said) in [
        (both(Path::new("/nowhere")), 2, "/nowhere"),
        (both(Path::new("--all")), 2, "options go before it"),
        (both(&binary), 6, "neither a recording"),
        (both(&twice), 6, "twice.csv: as CSV: columns 1 and 3 are both called `a`"),
        (both(&page), 6, "page.html: neither a recording"),
        (both(&folder.0), 6, "every file of a directory is taken for runs"),
        (both(&other), 6, "only in good runs: a; only in bad runs: b"),
        (compare(&["--alpha", "2"], &good, &good), 2, "between 0 and 1"),
        (compare(&["--metric", "("], &good, &good), 2, "--metric"),
        (run(Command::new(COWSLIP).arg("compare").arg(&good)), 2, "BAD"),
    ] {
        assert_eq!(ran.status.code(), Some(code), "{}", ran.stderr);
        assert!(ran.stderr.contains(said), "{said}: {}", ran.stderr);
    }
}

#[test]
fn the_page_has_the_distributions_and_hostile_names_stay_text() {
    let folder = Folder::new("compare-page");
    let hostile = "<script>alert(1)</script>' onload=x";
    let side = |shift: u32| {
        let rows: String =
            (0..9).map(|row| format!("{},{}\n", shift + row * 5 % 7, row * 3 % 7)).collect();
        format!("{hostile},even\n{rows}")
    };
    let good = write(&folder, "good.csv", &side(0));
    let bad = write(&folder, "bad.csv", &side(20));
    let page = folder.0.join("page.html");
    let ran = compare(&["--html", page.to_str().unwrap()], &good, &bad);
    assert_eq!(ran.status.code(), Some(1), "{}", ran.stderr);
    let text = fs::read_to_string(&page).unwrap();
    assert!(text.find("class=\"verdict\"").unwrap() < text.find("class=\"metric\"").unwrap());
    assert_eq!((text.matches("<svg").count(), text.matches("<circle").count()), (2, 36));
    assert!(!text.contains("<script>alert") && text.contains("&lt;script&gt;alert"));
    assert!(!text.contains("http:") && !text.contains("https:") && !text.contains("src="));
    let hover = "<script>document.querySelector('.bad circle').dispatchEvent(
        new PointerEvent('pointermove', {bubbles: true}))</script>";
    fs::write(&page, text.replace("</body>", &format!("{hover}</body>"))).unwrap();
    let mut chromium = Command::new("chromium");
    chromium.args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]);
    match chromium.arg(format!("file://{}", page.display())).stderr(Stdio::null()).output() {
        Ok(dom) => {
            let dom = String::from_utf8_lossy(&dom.stdout);
            assert!(dom.contains("1 of 2 shown"), "the script ran: {dom}");
            let tip = dom.split("id=\"tip\"").nth(1).expect("hovering shows a value");
            assert!(tip.contains("onload=x bad: 20</div>"), "{tip}");
        }
        Err(error) => println!("SKIPPED: chromium: {error}"),
    }
}

/// The values of a counter in a recording: the first, the last, and the total of that name.
fn counter(file: &Path, name: &str, total: &str) -> (f64, f64, f64) {
    let text = fs::read_to_string(file).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let metrics = lines.iter().find_map(|line| line["metrics"].as_array()).unwrap();
    let column = metrics.iter().position(|metric| metric["name"] == name).unwrap();
    let values: Vec<f64> =
        lines.iter().filter_map(|line| line["sample"]["values"][column].as_f64()).collect();
    (values[0], values[values.len() - 1], lines.last().unwrap()["totals"][total].as_f64().unwrap())
}

#[test]
fn of_two_commands_that_differ_in_the_pages_they_touch_faults_rank_first() {
    let folder = Folder::new("record");
    let Some(program) = compile(&folder, "touch") else { return };
    let (good, bad) = (format!("{} 1", program.display()), format!("{} 64", program.display()));
    let options = ["-n", "6", "--good", &good, "--bad", &bad, "--json", "-"];
    let ran = run(&mut record(&folder, &options));
    assert_eq!(ran.status.code(), Some(1), "{}{}", ran.stderr, json(&ran)["cause"]);
    let report = json(&ran);
    let rows = report["comparison"]["rows"].as_array().unwrap();
    // Listed once, though the recordings have them both as sampled and as wait4 reported them.
    assert_eq!(rows[0]["metric"], "rusage.minor_faults", "{:#}", rows[0]);
    assert!(rows.iter().all(|row| row["metric"] != "process.minor_faults"));
    assert_eq!(rows[0]["verdict"], "differs");
    let cause = report["cause"].as_str().unwrap();
    assert!(
        cause.starts_with("wall time rose by") && cause.contains("; as minor faults rose"),
        "{cause}"
    );
    let means = [0, 1].map(|side| rows[0]["means"][side].as_f64().unwrap());
    // The bad command touches 4 MiB 63 times more.
    let pages = f64::from(63 * (4 << 20)) / page_bytes();
    assert!((means[1] - means[0] - pages).abs() < pages / 100.0, "{means:?}");
    let facts = report["comparison"]["facts"].as_array().unwrap();
    assert_eq!(facts.len(), 1, "the machine is the same: {facts:?}");
    assert_eq!(facts[0]["bad"][0], bad);
    for side in ["good", "bad"] {
        let files: Vec<_> = fs::read_dir(folder.0.join("runs").join(side)).unwrap().collect();
        assert_eq!(files.len(), 6);
        for file in files {
            let (first, last, total) =
                counter(&file.unwrap().path(), "process.minor_faults", "rusage.minor_faults");
            assert_eq!((first, last), (0.0, total), "as wait4 says");
        }
    }
    let again = compare(&[], &folder.0.join("runs/good"), &folder.0.join("runs/bad"));
    assert!(again.stdout.contains("rusage.minor_faults") && again.status.code() == Some(1));
    let refused = run(&mut record(&folder, &options));
    assert!(refused.status.code() == Some(2) && refused.stderr.contains("another --output"));
}

#[test]
fn the_same_work_that_takes_longer_counts_the_same() {
    let folder = Folder::new("record-longer");
    let Some(program) = compile(&folder, "touch") else { return };
    let (good, bad) = (format!("{} 1", program.display()), format!("{} 1 500", program.display()));
    let options = ["-n", "6", "--good", &good, "--bad", &bad, "--json", "-"];
    let report = json(&run(&mut record(&folder, &options)));
    let comparison = &report["comparison"];
    assert_eq!(comparison["counters"]["by_default"], "count", "{:#}", comparison["counters"]);
    assert!(comparison["notes"].to_string().contains("by what they counted in a run"));
    let find = |comparison: &Value, metric: &str| {
        let rows = comparison["rows"].as_array().unwrap();
        rows.iter().find(|row| row["metric"] == metric).cloned()
    };
    let wall = find(comparison, "wall_seconds").unwrap();
    assert_eq!(wall["verdict"], "differs", "{wall:#}");
    let cause = report["cause"].as_str().unwrap();
    assert!(cause.starts_with("wall time rose by"), "{cause}");
    assert!(cause.contains("; the time went to being asleep (+"), "{cause}");
    let name = "process.read_calls";
    assert_eq!(find(comparison, &format!("{name}/s")), None);
    if let Some(row) = find(comparison, name) {
        assert_eq!(row["measure"], "count");
        assert!(row["change"]["value"].as_f64().unwrap().abs() < 0.01, "{row:#}");
    } else {
        assert!(comparison["constant"].as_array().unwrap().iter().any(|metric| metric == name));
    }
    assert!(find(comparison, "exit_code").is_none(), "all ended well");
}

#[test]
fn small_reads_are_system_time_and_read_calls() {
    let folder = Folder::new("record-reads");
    let dd =
        |size: &str, count: &str| format!("dd if=/dev/zero of=/dev/null bs={size} count={count}");
    let (good, bad) = (dd("1M", "1"), dd("4", "256k"));
    let options = ["-n", "6", "--good", &good, "--bad", &bad, "--json", "-"];
    let ran = run(&mut record(&folder, &options));
    assert_eq!(ran.status.code(), Some(1), "{}{}", ran.stderr, json(&ran)["cause"]);
    let report = json(&ran);
    assert_eq!((&report["fails"], &report["differs"]), (&true.into(), &true.into()));
    let cause = report["cause"].as_str().unwrap();
    assert!(cause.starts_with("wall time rose by"), "{cause}");
    // Both system calls are equally frequent.
    assert!(cause.contains("the command's read calls rose"), "{cause}");
    let part = report["time"]["parts"].as_array().unwrap().iter().max_by(|a, b| {
        let carried = |part: &Value| part["carried"].as_f64().unwrap();
        carried(a).total_cmp(&carried(b))
    });
    assert_eq!(part.unwrap()["part"], "system", "{:#}", report["time"]);
    // The ticks of such short runs are too coarse.
    let coarse = report["comparison"]["too_coarse"].to_string();
    assert!(coarse.contains("cpu.idle_share"), "{coarse}");
}

/// A recording includes the waits of threads and children that are gone, even without the kernel's records of them.
#[test]
fn ordinary_users_know_how_long_a_processor_was_waited_for() {
    let folder = Folder::new("record-user");
    let is_root = run(Command::new("id").arg("-u")).stdout.trim() == "0";
    if !is_root {
        return println!("SKIPPED: root: nobody can be somebody else");
    }
    run(Command::new("chmod").arg("777").arg(&folder.0));
    let count = std::thread::available_parallelism().unwrap().get() + 1;
    // Long enough for many looks, also where the recorder itself waits.
    let busy = "dd if=/dev/zero of=/dev/null bs=2 count=800k";
    let command = format!("n=0; while [ $n -lt {count} ]; do n=$((n + 1)); {busy} & done; wait");
    let mut recorded = record(&folder, &["-n", "2", "--good", &command, "--bad", &command]);
    let program = recorded.get_program().to_owned();
    let arguments: Vec<_> = recorded.get_args().map(ToOwned::to_owned).collect();
    recorded = Command::new("setpriv");
    recorded.args(["--reuid=65534", "--clear-groups"]).arg(program).args(arguments);
    let ran = run(&mut recorded);
    assert!(ran.status.code().is_some_and(|code| code < 2), "{}", ran.stderr);
    for side in ["good", "bad"] {
        let file = folder.0.join("runs").join(side).join("00001.jsonl");
        let (first, last, _) = counter(&file, "process.schedstat.wait_seconds", "wall_seconds");
        assert!(first == 0.0 && last > 0.001, "{first} {last}");
    }
}

fn page_bytes() -> f64 {
    let ran = run(Command::new("getconf").arg("PAGESIZE"));
    ran.stdout.trim().parse().unwrap()
}

#[test]
fn hooks_warm_up_and_order_are_as_asked_for() {
    let folder = Folder::new("record-order");
    let log = folder.0.join("log");
    let say = |word: &str| format!("echo {word} >> {}", log.display());
    let (good, bad, before, after) = (say("good"), say("bad"), say("before"), say("after"));
    let options = ["--good", &good, "--bad", &bad, "--prepare", &before, "--cleanup", &after];
    let ran = run(record(&folder, &options).args(["-n", "2", "--order", "abba"]));
    assert!(ran.status.code().is_some_and(|code| code < 2), "{}", ran.stderr);
    let wanted = ["good", "bad", "good", "bad", "bad", "good"];
    let wanted: String = wanted.iter().map(|side| format!("before\n{side}\nafter\n")).collect();
    assert_eq!(fs::read_to_string(log).unwrap(), wanted);
}

#[test]
fn a_missing_file_is_the_only_thing_that_is_said() {
    let ran = run(Command::new(COWSLIP).args(["compare", "/nowhere/good", "--", "/nowhere/bad"]));
    assert_eq!(ran.status.code(), Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("/nowhere/good"), "{}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
}

#[test]
fn a_command_that_fails_ends_it_unless_that_is_to_be_ignored() {
    for (options, code, said) in [
        (
            &["--good", "true", "--bad", "exit 3"][..],
            125,
            "the bad command ended with exit status: 3",
        ),
        (&["--good", "kill -9 $$", "--bad", "true"], 125, "signal: 9"),
        (&["--good", "true", "--bad", "true", "--prepare", "false"], 125, "--prepare"),
        (&["--good", "/nowhere/at/all", "--bad", "true"], 127, "it is not there: /nowhere/at/all"),
        (&["--good", "/etc/passwd", "--bad", "true"], 126, "it cannot be run: /etc/passwd"),
    ] {
        let folder = Folder::new("record-fails");
        let ran = run(record(&folder, options).args(["-n", "2", "--warmup", "0"]));
        assert_eq!(ran.status.code(), Some(code), "{}", ran.stderr);
        assert!(ran.stderr.contains(said), "{}", ran.stderr);
        assert!(
            !folder.0.join("runs/bad/.part").exists() && !folder.0.join("runs/good/.part").exists()
        );
    }
    let folder = Folder::new("record-ignored");
    let options =
        ["--good", "true", "--bad", "exit 3", "--ignore-failure", "-n", "2", "--json", "-"];
    let ran = run(&mut record(&folder, &options));
    assert!(ran.status.code().is_some_and(|code| code < 2), "{}", ran.stderr);
    assert!(ran.stderr.contains("2 bad runs ended with exit status: 3"), "{}", ran.stderr);
    let report = json(&ran);
    let rows = report["comparison"]["rows"].as_array().unwrap();
    let code = rows.iter().find(|row| row["metric"] == "exit_code").unwrap();
    assert_eq!((&code["means"][0], &code["means"][1]), (&0.0.into(), &3.0.into()));
    // No command was run.
    for (output, code) in [("/proc/foo", 2), ("/dev/null/runs", 2)] {
        let mut command = Command::new(COWSLIP);
        command.args(["compare", "run", "--good", "true", "--bad", "true", "--output", output]);
        let ran = run(&mut command);
        assert_eq!(ran.status.code(), Some(code), "{}", ran.stderr);
        assert!(ran.stderr.contains(output), "{}", ran.stderr);
    }
}

/// Sends SIGINT once `is_time` holds, and waits for the end.
fn interrupt(command: &mut Command, is_time: impl Fn() -> bool) -> Ran {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !is_time() {
        assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none(), "it goes on");
        std::thread::yield_now();
    }
    run(Command::new("kill").args(["-INT", &child.id().to_string()]));
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran { status: output.status, stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

#[test]
fn after_ctrl_c_what_was_finished_is_kept_and_compared() {
    let folder = Folder::new("record-ctrl-c");
    let runs = folder.0.join("runs");
    let mut command = record(&folder, &["--good", "true", "--bad", "true", "-n", "100000"]);
    let ran = interrupt(&mut command, || {
        ["good", "bad"].iter().all(|side| runs.join(side).join("00003.jsonl").exists())
    });
    assert!(ran.status.code().is_some_and(|code| code < 2), "{:?} {}", ran.status, ran.stderr);
    assert!(ran.stdout.contains("compared run by run"), "{}", ran.stdout);
    let [good, bad] = ["good", "bad"].map(|side| fs::read_dir(runs.join(side)).unwrap().count());
    let said = format!("interrupted after {good} good and {bad} bad runs");
    assert!(ran.stderr.contains(&said), "{said}: {}", ran.stderr);
}

#[test]
fn ctrl_c_ends_the_command_and_all_that_it_started() {
    let folder = Folder::new("record-ctrl-c-long");
    let started = folder.0.join("pid");
    let long = format!("sleep 1000 & echo $! > {0}.new; mv {0}.new {0}; wait", started.display());
    let ran =
        interrupt(&mut record(&folder, &["--good", &long, "--bad", &long]), || started.exists());
    assert_eq!(ran.status.code(), Some(125), "{}", ran.stderr);
    assert!(ran.stderr.contains("too few to compare"), "{}", ran.stderr);
    let pid = fs::read_to_string(started).unwrap();
    let deadline = Instant::now() + PATIENCE;
    // The process that inherited it may not have waited for it yet.
    let is_alive = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    };
    while is_alive() {
        assert!(Instant::now() < deadline, "{pid} is alive");
        std::thread::yield_now();
    }
}
