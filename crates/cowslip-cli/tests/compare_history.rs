//! `cowslip compare record` and `cowslip compare history`.

mod support;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{COWSLIP, Folder, Ran, run};

const PATIENCE: Duration = Duration::from_secs(60);

/// The command, in a folder.
fn compare(folder: &Folder, words: &[&str]) -> Ran {
    run(Command::new(COWSLIP).arg("compare").args(words).current_dir(&folder.0))
}

fn entries(folder: &Folder, file: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder.0.join("cowslip-history").join(file)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A series of levels with some noise: the number of entries, their kernel and their seconds.
fn series(folder: &Folder, name: &str, levels: &[(usize, &str, f64)]) {
    let mut random = fastrand::Rng::with_seed(7);
    let mut text = String::new();
    let all = levels.iter().flat_map(|(count, kernel, level)| vec![(kernel, level); *count]);
    for (index, (kernel, level)) in all.enumerate() {
        let value = level * (1.0 + 0.02 * (random.f64() + random.f64() - 1.0));
        let entry = json!({
            "schema": "cowslip.history/1",
            "time_unix_ns": 1_760_000_000_000_000_000_u64,
            "commit": format!("{:040x}", index + 1),
            "facts": { "cpu.model": "A", "cpu.count": "2", "kernel": kernel, "thp.enabled": "always" },
            "metrics": { "wall_seconds": [value * 0.99, value, value * 1.01], "items": [1.0 / value] },
        });
        text += &format!("{entry}\n");
    }
    fs::create_dir_all(folder.0.join("cowslip-history")).unwrap();
    fs::write(folder.0.join(format!("cowslip-history/{name}.jsonl")), text).unwrap();
}

fn git(folder: &Folder, words: &[&str]) -> String {
    let mut git = Command::new("git");
    git.args(["-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgsign=false"]);
    let ran = run(git.args(words).current_dir(&folder.0));
    assert!(ran.status.success(), "{}", ran.stderr);
    ran.stdout.trim().to_owned()
}

#[test]
fn the_runs_of_a_command_are_an_entry_with_commit_machine_and_values() {
    let folder = Folder::new("history-record");
    git(&folder, &["init", "--quiet"]);
    fs::write(folder.0.join("file"), "1").unwrap();
    git(&folder, &["add", "file"]);
    git(&folder, &["commit", "--quiet", "-m", "one"]);
    let commit = git(&folder, &["rev-parse", "HEAD"]);
    let log = "echo \"$1\" >> log";
    let words = ["record", "work", "-n", "3", "--warmup", "2", "--label", "v1", "--"];
    let command = ["sh", "-c", log, "sh", "it's one"];
    let ran = compare(&folder, &[&words[..], &command[..]].concat());
    assert_eq!(ran.status.code(), Some(0), "{}", ran.stderr);
    assert!(ran.stdout.starts_with("work: entry 1, 3 runs, "), "{}", ran.stdout);
    assert!(ran.stdout.trim().ends_with(&commit[..9]), "{}", ran.stdout);
    assert_eq!(fs::read_to_string(folder.0.join("log")).unwrap(), "it's one\n".repeat(5));
    fs::write(folder.0.join("file"), "2").unwrap();
    assert_eq!(compare(&folder, &[&words[..], &command[..]].concat()).status.code(), Some(0));
    let all = entries(&folder, "work.jsonl");
    assert_eq!(all[0]["schema"], "cowslip.history/1");
    assert_eq!((&all[0]["commit"], &all[0]["label"]), (&commit.as_str().into(), &"v1".into()));
    assert_eq!(all[1]["commit"], format!("{commit}-dirty"));
    for metric in ["wall_seconds", "rusage.minor_faults", "process.read_calls"] {
        assert_eq!(all[0]["metrics"][metric].as_array().unwrap().len(), 3, "{metric}");
    }
    assert!(all[0]["metrics"].as_object().unwrap().keys().all(|name| !name.starts_with("vmstat")));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(all[0]["facts"]["kernel"], kernel.trim());
    assert!(all[0]["time_unix_ns"].as_u64().unwrap() > 1_700_000_000_000_000_000);
}

#[test]
fn a_command_that_fails_adds_nothing() {
    let folder = Folder::new("history-fails");
    for (words, code, said) in [
        (&["false"][..], 125, "the command ended with exit status: 1"),
        (&["/nowhere/at/all"], 127, "it is not there"),
        (&["/etc/passwd"], 126, "it cannot be run"),
    ] {
        let ran = compare(&folder, &[&["record", "a", "-n", "2", "--"], words].concat());
        assert_eq!(ran.status.code(), Some(code), "{}", ran.stderr);
        assert!(ran.stderr.contains(said), "{}", ran.stderr);
    }
    for words in [&["record", "a"][..], &["record", "a", "--from", "x", "--", "true"]] {
        assert_eq!(compare(&folder, words).status.code(), Some(2), "{words:?}");
    }
    assert!(!folder.0.join("cowslip-history").exists());
}

#[test]
fn after_ctrl_c_nothing_is_added_and_the_command_has_ended() {
    let folder = Folder::new("history-ctrl-c");
    let mut command = Command::new(COWSLIP);
    command.args([
        "compare",
        "record",
        "a",
        "--",
        "sh",
        "-c",
        "echo $$ > part; mv part pid; sleep 600",
    ]);
    command.stderr(Stdio::piped()).current_dir(&folder.0);
    let mut child = command.spawn().unwrap();
    let deadline = Instant::now() + PATIENCE;
    let pid = loop {
        if let Ok(pid) = fs::read_to_string(folder.0.join("pid")) {
            break pid;
        }
        assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none(), "it runs");
        std::thread::yield_now();
    };
    run(Command::new("kill").args(["-INT", &child.id().to_string()]));
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("interrupted; nothing is added to a"), "{said}");
    assert!(!folder.0.join("cowslip-history").exists());
    assert!(!PathBuf::from("/proc").join(pid.trim()).exists());
}

#[test]
fn an_interrupt_ends_the_wait_for_a_folder_that_another_process_has() {
    let folder = Folder::new("history-locked");
    let store = folder.0.join("store");
    fs::create_dir(&store).unwrap();
    let held = fs::File::open(&store).unwrap();
    held.lock().unwrap();
    let done = folder.0.join("done");
    let touch = format!("touch {}", done.display());
    let mut command = Command::new(COWSLIP);
    command.args(["compare", "record", "a", "--warmup", "0", "-n", "1", "--into"]).arg(&store);
    let mut child = command.args(["--", "sh", "-c", &touch]).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done.exists() {
        assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none(), "it runs");
        std::thread::yield_now();
    }
    run(Command::new("kill").args(["-INT", &child.id().to_string()]));
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "it waits for ever");
        std::thread::yield_now();
    }
    assert!(!child.wait().unwrap().success());
    assert_eq!(fs::read_dir(&store).unwrap().count(), 0);
}

#[test]
fn files_of_other_tools_are_entries_a_series_for_each_benchmark() {
    let folder = Folder::new("history-import");
    let data = |name: &str| -> String {
        let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../cowslip-compare/tests/data");
        data.join("inputs").join(name).to_str().unwrap().to_owned()
    };
    for (name, file, series) in [
        ("py", "pytest-benchmark.json", "py%2Ftest_sort.py%3A%3Atest_sum.jsonl"),
        ("g", "google-benchmark.json", "g%2FBM_sort%2F512%2Fmin_time%3A0.020.jsonl"),
        ("c", "criterion", "c%2Fsums%2Fboth%2Fwrapping%2F100.jsonl"),
        ("one", "criterion@1", "one.jsonl"),
        ("h", "hyperfine.json@2", "h.jsonl"),
    ] {
        let ran = compare(&folder, &["record", name, "--from", &data(file), "--commit", "c1"]);
        assert_eq!(ran.status.code(), Some(0), "{}", ran.stderr);
        let entry = &entries(&folder, series)[0];
        assert_eq!(entry["commit"], "c1");
        assert!(entry["metrics"]["wall_seconds"].as_array().unwrap().len() > 1);
        // The machine that imports is not the one that measured.
        let is_silent = ["criterion", "criterion@1", "hyperfine.json@2"].contains(&file);
        let has_machine =
            ["kernel", "cpu.count"].iter().any(|fact| !entry["facts"][fact].is_null());
        assert_eq!(has_machine, !is_silent, "{entry}");
        assert_eq!(ran.stderr.contains("--this-machine"), is_silent, "{}", ran.stderr);
    }
    let here = ["record", "here", "--this-machine", "--from", &data("hyperfine.json@2")];
    let ran = compare(&folder, &here);
    assert_eq!(ran.status.code(), Some(0), "{}", ran.stderr);
    assert!(entries(&folder, "here.jsonl")[0]["facts"]["kernel"].is_string());
    let ran = compare(&folder, &["history", "c"]);
    assert_eq!(ran.status.code(), Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("c/alone: no change"), "{}", ran.stdout);
    assert!(ran.stdout.contains("too few to see another step"), "{}", ran.stdout);
    let ran = compare(&folder, &["history", "d"]);
    assert_eq!(ran.status.code(), Some(2));
    assert!(ran.stderr.contains("no series called d, but c/alone"), "{}", ran.stderr);
}

#[test]
fn the_exit_code_is_of_a_change_for_the_worse_in_the_newest_entries() {
    let folder = Folder::new("history-exit");
    series(&folder, "slower", &[(40, "6", 0.100), (8, "6", 0.110)]);
    series(&folder, "faster", &[(40, "6", 0.110), (8, "6", 0.100)]);
    series(&folder, "long ago", &[(40, "6", 0.100), (20, "6", 0.110)]);
    fs::rename(
        folder.0.join("cowslip-history/long ago.jsonl"),
        folder.0.join("cowslip-history/long%20ago.jsonl"),
    )
    .unwrap();
    for (words, code) in [
        (&["slower"][..], 1),
        (&["slower", "--effect", "15"], 0),
        (&["slower", "--newest", "5"], 0),
        (&["slower", "--primary", "items"], 0),
        (&["slower", "--primary", "items", "--fail-on", "fell"], 1),
        (&["faster"], 0),
        (&["faster", "--fail-on", "faster"], 1),
        (&["faster", "--fail-on", "any"], 1),
        (&["long ago"], 0),
        (&["long ago", "--newest", "30"], 1),
        (&["slower", "--primary", "none"], 2),
        (&["slower", "--ignore", "memory"], 2),
        (&["slower", "--from", "nowhere"], 2),
    ] {
        let ran = compare(&folder, &[&["history"], words].concat());
        assert_eq!(ran.status.code(), Some(code), "{words:?}: {}{}", ran.stdout, ran.stderr);
    }
    series(&folder, "drift", &[0.100, 0.103, 0.106, 0.109].map(|level| (30, "6", level)));
    let ran = compare(&folder, &["history", "drift"]);
    assert_eq!(ran.status.code(), Some(1), "{}", ran.stdout);
    assert!(ran.stdout.starts_with("drift: worse: wall time rose slowly by"), "{}", ran.stdout);
    let ran = compare(&folder, &["history", "drift", "--effect", "20"]);
    assert_eq!(ran.status.code(), Some(0), "{}", ran.stdout);
    let ran = compare(&folder, &["history", "slower"]);
    let first = ran.stdout.lines().next().unwrap();
    assert!(
        first.starts_with("slower: worse: in the newest 10 entries, wall time rose by"),
        "{first}"
    );
    let place =
        format!("between {:.9} (entry 40) and {:.9} (entry 41)", "0".repeat(40), "0".repeat(40));
    assert!(ran.stdout.contains(&place), "{}", ran.stdout);
    fs::write(folder.0.join("cowslip-history/torn.jsonl"), "{\"schema\":\"x\"\n").unwrap();
    assert_eq!(compare(&folder, &["history", "torn"]).status.code(), Some(6));
}

#[test]
fn machines_are_kept_apart_and_said_to_be() {
    let folder = Folder::new("history-machines");
    series(&folder, "a", &[(30, "6.1", 0.100), (10, "6.12", 0.120)]);
    let ran = compare(&folder, &["history", "a", "--newest", "20"]);
    assert_eq!(ran.status.code(), Some(0), "{}", ran.stdout);
    assert!(ran.stdout.contains("not compared with those: 30 entries of another machine, A"));
    assert!(ran.stdout.contains("(--ignore kernel compares them)"), "{}", ran.stdout);
    let ran = compare(&folder, &["history", "a", "--newest", "20", "--ignore", "kernel"]);
    assert_eq!(ran.status.code(), Some(1), "{}", ran.stdout);
    assert!(ran.stdout.contains("kernel changed from 6.1 to 6.12"), "{}", ran.stdout);
}

#[test]
fn a_setting_that_changed_comes_with_the_way_back() {
    let folder = Folder::new("history-setting");
    series(&folder, "a", &[(40, "6", 0.100), (10, "6", 0.120)]);
    let file = folder.0.join("cowslip-history/a.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    let changed = |(index, line): (usize, &str)| match index {
        ..40 => format!("{line}\n"),
        _ => line.replace("\"always\"", "\"madvise\"") + "\n",
    };
    fs::write(&file, text.lines().enumerate().map(changed).collect::<String>()).unwrap();
    let ran = compare(&folder, &["history", "a", "--newest", "20", "--ignore", "thp.enabled"]);
    let words = "thp.enabled changed from always to madvise (to return: echo always > \
                 /sys/kernel/mm/transparent_hugepage/enabled)";
    let said: Vec<&str> = ran.stdout.split_whitespace().collect();
    assert!(said.join(" ").contains(words), "{}", ran.stdout);
}

#[test]
fn json_and_junit_have_the_changes() {
    let folder = Folder::new("history-formats");
    series(&folder, "a", &[(40, "6", 0.100), (8, "6", 0.110)]);
    series(&folder, "a%2F%3Cb%3E%26", &[(40, "6", 0.1)]);
    let ran = compare(&folder, &["history", "a", "--json", "--junit", "a.xml"]);
    assert_eq!(ran.status.code(), Some(1), "{}", ran.stderr);
    let json: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(
        (&json["schema"], &json["fails"]),
        (&"cowslip.compare.history/1".into(), &true.into())
    );
    assert_eq!(
        (&json["series"][0]["fails"], &json["series"][1]["fails"]),
        (&true.into(), &false.into())
    );
    let group = &json["series"][0]["history"]["groups"][0];
    assert_eq!((&group["changes"][0]["at"], &group["levels"][1]["to"]), (&40.into(), &48.into()));
    let interval = &group["newest"]["change"]["interval"];
    let [low, high] = [0, 1].map(|side| interval[side].as_f64().unwrap());
    assert!(low < 0.1 && 0.1 < high && low > 0.08 && high < 0.12, "{interval}");
    let junit = fs::read_to_string(folder.0.join("a.xml")).unwrap();
    assert!(
        junit.contains("tests=\"2\" failures=\"1\"")
            && junit.contains("<failure type=\"regression\"")
    );
    let parse = "import sys, xml.etree.ElementTree as tree\n\
        cases = tree.parse(sys.argv[1]).getroot().findall('.//testcase')\n\
        print([(case.get('name'), case.find('failure') is not None) for case in cases])";
    let mut python = Command::new("python3");
    match python.args(["-c", parse, "a.xml"]).current_dir(&folder.0).output() {
        Ok(output) => {
            let cases = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(cases.trim(), "[('a', True), ('a/<b>&', False)]", "{output:?}");
        }
        Err(error) => println!("SKIPPED: python3: {error}"),
    }
}

#[test]
fn the_page_has_the_series_and_hostile_names_stay_text() {
    let folder = Folder::new("history-page");
    series(
        &folder,
        "a",
        &[(10, "<script>alert(1)</script>", 0.1), (40, "6", 0.100), (8, "6", 0.110)],
    );
    let file = folder.0.join("cowslip-history/a.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    let hostile = "</script><script>alert(2)</script>";
    fs::write(&file, text.replacen("\"facts\"", &format!("\"label\":\"{hostile}\",\"facts\""), 1))
        .unwrap();
    let page = folder.0.join("page.html");
    let ran = compare(&folder, &["history", "a", "--html", "page.html"]);
    assert_eq!(ran.status.code(), Some(1), "{}", ran.stderr);
    let text = fs::read_to_string(&page).unwrap();
    assert_eq!((text.matches("<svg").count(), text.matches("class=\"change\"").count()), (2, 1));
    assert_eq!(text.matches("h0").count(), 58, "a point for each entry");
    assert!(!text.contains("<script>alert") && text.contains("&lt;script&gt;alert"));
    assert!(!text.contains("http:") && !text.contains("https:") && !text.contains("src="));
    // A window is 500 pixels wide at least.
    for width in [390, 1280] {
        let script = format!(
            "<script>document.documentElement.style.width = '{width}px';
            document.body.dataset.fits = document.body.scrollWidth <= {width} &&
                document.body.offsetWidth <= {width};
            document.querySelector('.plot').dispatchEvent(
                new PointerEvent('pointermove', {{bubbles: true, clientX: 9000, clientY: 0}}))</script>"
        );
        fs::write(&page, text.replace("</body>", &format!("{script}</body>"))).unwrap();
        let mut chromium = Command::new("chromium");
        chromium.args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]);
        chromium.arg(format!("--window-size={width},900"));
        match chromium.arg(format!("file://{}", page.display())).stderr(Stdio::null()).output() {
            Ok(dom) => {
                let dom = String::from_utf8_lossy(&dom.stdout);
                let tip = dom.split("class=\"tip\"").nth(1).expect("hovering shows an entry");
                assert!(tip.contains("median of 3, 2025-10-09 08:53 UTC</div>"), "{tip}");
                assert!(dom.contains("data-fits=\"true\""), "it is as wide as the window");
            }
            Err(error) => println!("SKIPPED: chromium: {error}"),
        }
    }
}
