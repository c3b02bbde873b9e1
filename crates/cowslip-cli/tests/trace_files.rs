//! `cowslip trace import` and `export`, as a user runs them.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use cowslip_trace::file::Writer;
use cowslip_trace::model::{Event, EventKind, Fault, Header, Sink};
use serde_json::Value;
use support::{COWSLIP, Folder, run};

/// The number of faults in the stored recording, as `perf script` prints them.
const FAULTS: usize = 47;

fn sample() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../cowslip-trace/tests/data/page-faults.data")
}

fn imported(folder: &Folder) -> PathBuf {
    let trace = folder.0.join("true.trace");
    let mut command = Command::new(COWSLIP);
    command.args(["trace", "import"]).arg(sample()).arg("-o").arg(&trace);
    let ran = run(&mut command);
    assert!(ran.status.success(), "{}", ran.stderr);
    assert!(ran.stderr.contains(&format!(", {FAULTS} of them page faults")), "{}", ran.stderr);
    assert!(ran.stderr.contains("not seen: munmap(2)"), "{}", ran.stderr);
    trace
}

#[test]
fn what_is_imported_is_exported() {
    let folder = Folder::new("trace-files");
    let trace = imported(&folder);
    assert_eq!(fs::metadata(&trace).unwrap().permissions().mode() & 0o777, 0o600);
    let export = |format: &str| {
        let mut command = Command::new(COWSLIP);
        command.args(["trace", "export"]).arg(&trace).args(["--format", format]);
        let ran = run(&mut command);
        assert!(ran.status.success(), "{}", ran.stderr);
        ran.stdout
    };
    let csv = export("csv");
    assert_eq!(csv.lines().filter(|line| line.contains(",fault,")).count(), FAULTS);
    let jsonl = export("jsonl");
    let lines = jsonl.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert_eq!(lines.filter(|line| line["kind"] == "fault").count(), FAULTS);
    let file = folder.0.join("out.csv");
    let mut command = Command::new(COWSLIP);
    command.args(["trace", "export"]).arg(&trace).arg("-o").arg(&file);
    assert!(run(&mut command).status.success());
    assert_eq!(fs::read_to_string(&file).unwrap(), csv);
}

/// Wherever a file ends, its whole blocks are reported after the reason why there are no more.
#[test]
fn of_a_file_that_was_cut_the_cause_is_said_first() {
    let folder = Folder::new("trace-cut");
    let trace = folder.0.join("cut.trace");
    let length = || fs::metadata(&trace).unwrap().len() as usize;
    let file = fs::File::create(&trace).unwrap();
    let mut writer = Writer::new(file, &Header::default()).unwrap();
    let header = length();
    let mut ends = Vec::new();
    for block in 0..3 {
        for page in 0..200 {
            let what = EventKind::Fault(Fault::at((block * 200 + page) * 4096, 0x40_0000));
            let time_ns = (block * 200 + page) * 1_000_000;
            writer.event(&Event { time_ns, pid: 1, tid: 1, what }).unwrap();
        }
        writer.flush().unwrap();
        ends.push(length());
    }
    writer.finish(0).unwrap();
    let bytes = fs::read(&trace).unwrap();
    let cuts = [0, 7, 63, 100, header / 2, header, ends[0] - 1, ends[0], ends[0] + 30];
    let later = [ends[1] - 1, ends[1], ends[2] - 1, ends[2], bytes.len() - 1];
    for cut in cuts.into_iter().chain(later) {
        fs::write(&trace, &bytes[..cut]).unwrap();
        let faults = 200 * ends.iter().filter(|end| **end <= cut).count();
        let cowslip = |action: &str, more: &[&str]| {
            let mut command = Command::new(COWSLIP);
            command.args(["trace", action]).arg(&trace).args(more);
            run(&mut command)
        };
        let path = trace.to_str().unwrap();
        let (json, page) = (&["--json", "-"][..], &["-o", "-"][..]);
        for (action, more) in [
            ("report", &[][..]),
            ("report", json),
            ("diff", &[path]),
            ("diff", &[path, "--json", "-"]),
            ("html", page),
            ("export", page),
        ] {
            let ran = cowslip(action, more);
            let (code, said) = (ran.status.code(), format!("{}{}", ran.stderr, ran.stdout));
            let at = format!("{action} {more:?}, cut at {cut} of {}: {said}", bytes.len());
            if faults == 0 {
                assert_eq!(code, Some(6), "{at}");
                assert!(ran.stderr.contains("cut.trace"), "{at}");
                continue;
            }
            assert_eq!(code, Some(0), "{at}");
            let cause = said.find("the end is missing").unwrap_or_else(|| panic!("{at}"));
            let told = said.find(" faults in ").or_else(|| said.find("\"faults\""));
            assert!(told.is_none_or(|told| cause < told), "{at}");
            if action == "export" {
                assert_eq!(ran.stdout.matches(",fault,").count(), faults, "{at}");
            }
            if action == "report" && more.is_empty() {
                assert!(said.contains(&format!("{faults} faults in")), "{at}");
            }
        }
    }
}

/// A reader that has seen enough closes its pipe.
#[test]
fn who_reads_no_more_is_no_error() {
    let folder = Folder::new("trace-head");
    let trace = folder.0.join("long.trace");
    let mut writer = Writer::new(Vec::new(), &Header::default()).unwrap();
    for page in 0..100_000 {
        let what = EventKind::Fault(Fault::at(page * 4096, 0x40_0000));
        writer.event(&Event { time_ns: page, pid: 1, tid: 1, what }).unwrap();
    }
    fs::write(&trace, writer.finish(0).unwrap().0).unwrap();
    for format in ["csv", "jsonl"] {
        let mut child = Command::new(COWSLIP)
            .args(["trace", "export", "--format", format])
            .arg(&trace)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        let ended = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.success() && said.is_empty(), "{format}: {:?} {said}", ended.status);
        assert!(!first.is_empty(), "{format}");
    }
}

#[test]
fn damage_and_other_files_have_their_exit_code_and_leave_nothing() {
    let folder = Folder::new("trace-damage");
    let trace = imported(&folder);
    let mut bytes = fs::read(&trace).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&trace, &bytes).unwrap();
    let out = folder.0.join("out.csv");
    let mut command = Command::new(COWSLIP);
    command.args(["trace", "export"]).arg(&trace).arg("-o").arg(&out);
    let ran = run(&mut command);
    assert_eq!(ran.status.code(), Some(6), "{}", ran.stderr);
    assert!(ran.stderr.contains("true.trace: at byte "), "{}", ran.stderr);
    // The trace of a killed recorder is read, with a notice.
    fs::write(&trace, &bytes[..bytes.len() - 1]).unwrap();
    let ran = run(&mut command);
    assert!(ran.status.success() && ran.stderr.contains("the end is missing"), "{}", ran.stderr);
    fs::remove_file(&out).unwrap();
    let mut command = Command::new(COWSLIP);
    let ran = run(command.args(["trace", "import", "/proc/self/status", "-o"]).arg(&out));
    assert_eq!(ran.status.code(), Some(6), "{}", ran.stderr);
    assert!(ran.stderr.contains("it is no perf.data"), "{}", ran.stderr);
    let left: Vec<_> = fs::read_dir(&folder.0).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(left, [trace]);
}
