//! Memory that an arena cannot follow leaves it: a program that reads past the page cache, has rings, shared futexes, a
//! page-fault handler or limits of its own prints the same as natively, and the report says why memory left.

mod support;

use std::ffi::OsStr;
use std::process::Command;

use cowslip::raw::Departure;
use serde_json::Value;
use support::{COWSLIP, Folder, compile, run, under_cowslip};

const MODES: [&[&str]; 2] = [&[], &["--without-userfaultfd"]];
const CHUNK_BYTES: u64 = 2 << 20;

/// Runs a program natively and in both modes under Cowslip, and returns the reports, with userfaultfd first. Returns
/// None, reported as skipped, if there is no compiler or the kernel lacks the tested call.
fn compared(name: &str, words: &[&str], options: &[&str]) -> Option<[Value; 2]> {
    let folder = Folder::new(name);
    let program = compile(&folder, name)?;
    let file = folder.0.join("data");
    let words: Vec<&OsStr> = words
        .iter()
        .map(|word| if *word == "FILE" { file.as_os_str() } else { OsStr::new(word) })
        .collect();
    let native = run(Command::new(&program).args(&words));
    assert!(native.status.success(), "natively: {}\n{}", native.status, native.stdout);
    if let Some(skipped) = native.stdout.lines().find(|line| line.starts_with("SKIPPED")) {
        println!("{skipped} ({name} {words:?})");
        return None;
    }
    let command: Vec<_> = [program.as_os_str()].into_iter().chain(words).collect();
    Some(MODES.map(|mode| {
        let options = [mode, options].concat();
        let (ran, report) = under_cowslip(&options, &command);
        assert_eq!(ran.stdout, native.stdout, "{name} {options:?}");
        assert!(ran.status.success(), "{name} {options:?}: {}", ran.status);
        assert_eq!(ran.stderr, "", "{name} {options:?}");
        report.expect("a report at exit")
    }))
}

fn left_for(report: &Value) -> Vec<Departure> {
    Departure::of_metrics(report["left_for"].as_u64().expect("a number")).collect()
}

/// All memory that left did so for this reason. With userfaultfd, where writers wait, exactly this many chunks left.
fn assert_left(reports: &[Value; 2], why: Departure, chunks: u64) {
    for report in reports {
        assert_eq!(left_for(report), [why], "{report}");
    }
    let [report, _] = reports;
    if report["plain_freezes"] == 0 {
        assert_eq!(report["left_bytes"].as_u64(), Some(chunks * CHUNK_BYTES), "{report}");
    }
}

#[test]
fn memory_that_is_read_and_written_as_a_file_leaves() {
    let Some(reports) = compared("proc_mem", &[], &[]) else { return };
    assert_left(&reports, Departure::ProcMem, 13);
}

#[test]
fn buffers_that_are_read_past_the_page_cache_leave() {
    let Some(reports) = compared("direct", &["FILE"], &[]) else { return };
    assert_left(&reports, Departure::DirectIo, 12);
    assert!(reports[0]["freezes"].as_u64() >= Some(1), "{}", reports[0]);
}

#[test]
fn so_do_those_of_descriptors_from_before() {
    let Some(reports) = compared("direct", &["FILE", "pass"], &["--follow-exec"]) else { return };
    assert_left(&reports, Departure::DirectIo, 12);
}

/// libc's own reads are not seen.
#[test]
fn beside_a_stream_past_the_page_cache_nothing_is_in_an_arena() {
    let Some(reports) = compared("direct", &["FILE", "stream"], &[]) else { return };
    for report in &reports {
        assert_eq!(left_for(report), [Departure::DirectIo], "{report}");
        assert_eq!(report["used_bytes"], 0, "{report}");
    }
}

#[test]
fn beside_a_ring_nothing_is_in_an_arena() {
    for when in ["early", "late"] {
        let Some(reports) = compared("rings", &["FILE", when], &[]) else { return };
        for report in &reports {
            assert_eq!(left_for(report), [Departure::Ring], "{report}");
            assert_eq!(report["freezes"].as_u64() > Some(0), when == "late", "{report}");
        }
        assert_eq!(reports[0]["used_bytes"], 0, "{}", reports[0]);
    }
}

#[test]
fn buffers_of_aio_leave() {
    let Some(reports) = compared("rings", &["FILE", "aio"], &[]) else { return };
    assert_left(&reports, Departure::Ring, 4);
}

#[test]
fn memory_that_is_lent_to_a_reader_leaves() {
    let Some(reports) = compared("lending", &[], &[]) else { return };
    assert_left(&reports, Departure::Lent, 9);
    assert!(reports[0]["freezes"].as_u64() >= Some(1), "{}", reports[0]);
}

/// A debugger writes to it as to a file.
#[test]
fn code_leaves() {
    let Some(reports) = compared("code", &[], &[]) else { return };
    assert_left(&reports, Departure::Code, 1);
}

#[test]
fn so_do_those_that_a_file_system_pins() {
    let Some(reports) = compared("pinning", &["FILE"], &[]) else { return };
    for report in &reports {
        assert_eq!(left_for(report), [Departure::DirectIo], "{report}");
    }
    assert_left(&reports, Departure::DirectIo, 9);
}

#[test]
fn memory_for_packets_leaves() {
    let Some(reports) = compared("packets", &[], &[]) else { return };
    assert_left(&reports, Departure::Ring, 4);
}

#[test]
fn memory_with_a_handler_of_the_program_leaves() {
    let Some(reports) = compared("faults", &[], &[]) else { return };
    // Two that faults are handled in, the target of a move, and its source.
    assert_left(&reports, Departure::Userfaultfd, 4);
}

#[test]
fn who_waits_for_what_is_shared_is_woken() {
    let Some(reports) = compared("waiting", &[], &[]) else { return };
    // Nine kinds, a thread's stack, and the word that is cleared at a thread's end.
    assert_left(&reports, Departure::SharedFutex, 11);
    assert!(reports[0]["freezes"].as_u64() >= Some(1), "{}", reports[0]);
}

#[test]
fn what_is_private_to_a_process_stays() {
    let Some(reports) = compared("waiting", &["private"], &[]) else { return };
    for report in &reports {
        assert_eq!(report["left_bytes"], 0, "{report}");
    }
}

#[test]
fn words_that_the_kernel_writes_leave() {
    let Some(reports) = compared("inheriting", &[], &[]) else { return };
    // A mutex, a word that is locked, and one that a waker adds to.
    assert_left(&reports, Departure::SharedFutex, 3);
    assert!(reports[0]["freezes"].as_u64() >= Some(1), "{}", reports[0]);
}

#[test]
fn beside_another_table_of_descriptors_nothing_is_in_an_arena() {
    for who in ["thread", "closed", "number", "peer"] {
        let Some(reports) = compared("tables", &[who], &[]) else { return };
        for report in &reports {
            assert_eq!(left_for(report), [Departure::Descriptors], "{who}: {report}");
        }
        assert_eq!(reports[0]["used_bytes"], 0, "{who}: {}", reports[0]);
    }
}

/// A thread that is alone, and a process that has its parent's memory for a moment.
#[test]
fn nothing_leaves_for_a_table_of_descriptors_that_nobody_shares() {
    for who in ["alone", "vfork"] {
        let Some(reports) = compared("tables", &[who], &[]) else { return };
        for report in &reports {
            assert_eq!(left_for(report), [], "{who}: {report}");
            assert!(report["forks"].as_u64() >= Some(8), "{who}: {report}");
        }
    }
}

#[test]
fn calls_by_number_are_seen() {
    let Some(reports) = compared("numbers", &[], &[]) else { return };
    for report in &reports {
        assert_eq!(left_for(report), [Departure::Advice], "{report}");
        assert!(report["freezes"].as_u64() >= Some(3), "{report}");
    }
}

#[test]
fn limits_that_a_program_sets_are_checked_as_the_kernel_would() {
    for words in [["as", "name"], ["data", "number"], ["fsize", "other"]] {
        let words = if words[1] == "name" { &words[..1] } else { &words[..] };
        let Some(reports) = compared("limits", words, &[]) else { return };
        for report in &reports {
            assert_eq!(left_for(report), [Departure::Limit], "{report}");
        }
        assert_eq!(reports[0]["used_bytes"], 0, "{words:?}: {}", reports[0]);
    }
}

/// `ulimit` in a shell, then a program that prints a word and forks.
#[test]
fn under_a_limit_there_is_no_arena_and_the_program_runs() {
    let folder = Folder::new("limited");
    let (report, log) = (folder.0.join("report.json"), folder.0.join("log"));
    for (limit, wanted) in [
        ("-f 10485760", "RLIMIT_FSIZE is set; `ulimit -f unlimited` lifts it"),
        ("-d 8388608", "RLIMIT_DATA is set; `ulimit -d unlimited` lifts it"),
        ("-v 16777216", "RLIMIT_AS is set; `ulimit -v unlimited` lifts it, of afl-fuzz"),
    ] {
        let (report, log) = (report.display(), log.display());
        let script = format!(
            "ulimit {limit}; exec '{COWSLIP}' run --capacity 16G --report '{report}' --log '{log}' -- \
             /usr/bin/perl -e '$x = \"x\" x 50_000_000; fork // die; wait; print \"hi\\n\"'"
        );
        let ran = run(Command::new("bash").args(["-c", &script]));
        assert_eq!(ran.stdout.lines().next(), Some("hi"), "{limit}: {} {}", ran.status, ran.stderr);
        assert!(ran.status.success(), "{limit}: {}", ran.status);
        let said = std::fs::read_to_string(folder.0.join("log")).unwrap();
        assert!(said.contains(wanted), "{limit}: {said}");
        let is_told = ran.stderr.contains(wanted);
        assert_eq!(is_told, !limit.starts_with("-f"), "{limit}: {}", ran.stderr);
        std::fs::remove_file(folder.0.join("log")).unwrap();
    }
}
