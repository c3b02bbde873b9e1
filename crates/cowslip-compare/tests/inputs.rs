//! Files of the tools: sysstat 12.6, perf 6.1, hyperfine 1.15, pytest-benchmark 5.3, Google Benchmark 1.7, criterion 0.8.

use std::path::{Path, PathBuf};
use std::slice::from_ref;

use cowslip_compare::inputs::{Benchmark, Run, parse, read, read_benchmarks};
use cowslip_compare::{ErrorKind, Options, Unit, compare};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/inputs").join(name)
}

fn value(run: &Run, metric: &str) -> f64 {
    run.metrics.get(metric).unwrap_or_else(|| panic!("{metric}: {:?}", run.metrics.keys())).value()
}

#[test]
fn a_file_of_hyperfine_has_a_run_of_each_of_its_runs() {
    let error = read(&data("hyperfine.json")).unwrap_err();
    assert!(error.to_string().contains("FILE@1 … FILE@2"), "{error}");
    let runs = read(&data("hyperfine.json@1")).unwrap();
    assert_eq!(runs.len(), 8);
    assert_eq!(value(&runs[1], "wall_seconds"), 0.003858513);
    assert_eq!(runs[1].facts["command"], "true");
    assert_eq!(read(&data("hyperfine.json@2")).unwrap()[0].facts["command"], "sleep 0.003");
    assert_eq!(read(&data("hyperfine.json@3")).unwrap_err().kind(), ErrorKind::Usage);
}

fn names(benchmarks: &[Benchmark]) -> Vec<&str> {
    benchmarks.iter().map(|benchmark| benchmark.name.as_str()).collect()
}

#[test]
fn a_file_of_pytest_benchmark_has_a_run_of_each_round_and_its_machine() {
    let all = read_benchmarks(&data("pytest-benchmark.json")).unwrap();
    assert_eq!(names(&all), ["test_sort.py::test_sort", "test_sort.py::test_sum"]);
    assert_eq!(all[0].runs.len(), 12);
    assert_eq!(value(&all[0].runs[0], "wall_seconds"), 0.0016590819999692031);
    let facts = &all[0].runs[0].facts;
    assert_eq!((&*facts["cpu.model"], &*facts["cpu.count"]), ("AMD EPYC", "2"));
    assert_eq!(&*facts["kernel"], "6.18.44-fc-v669");
    assert!(!facts.contains_key("commit"), "it was made outside of a repository");
    let text = std::fs::read_to_string(data("pytest-benchmark.json")).unwrap();
    let committed = text
        .replace("\"unversioned\"", "\"c0ffee\"")
        .replace("\"dirty\": false", "\"dirty\": true");
    let run = &parse(&committed, "a", Some(2)).unwrap()[0];
    assert_eq!(run.facts["commit"], "c0ffee-dirty");
    let only = read_benchmarks(&data("pytest-benchmark.json@2")).unwrap();
    assert_eq!((names(&only), &only[0].runs), (vec![""], &all[1].runs));
    let without = text.replace("\"data\"", "\"no_data\"");
    let run = &parse(&without, "a", Some(1)).unwrap()[..];
    assert_eq!(
        (run.len(), value(&run[0], "wall_seconds")),
        (1, 0.001537939599802485),
        "the median"
    );
}

#[test]
fn a_file_of_google_benchmark_has_a_run_of_each_repetition() {
    let all = read_benchmarks(&data("google-benchmark.json")).unwrap();
    assert_eq!(names(&all), ["BM_sort/64/min_time:0.020", "BM_sort/512/min_time:0.020"]);
    let runs = &all[0].runs;
    assert_eq!(runs.len(), 6, "aggregates are no runs");
    let metrics: Vec<&String> = runs[0].metrics.keys().collect();
    assert_eq!(metrics, ["cpu_seconds", "items_per_second", "moves", "wall_seconds"]);
    let seconds = value(&runs[0], "wall_seconds");
    assert!((seconds / 2.5972555006527454e-7 - 1.0).abs() < 1e-12, "microseconds: {seconds}");
    let text = std::fs::read_to_string(data("google-benchmark.json")).unwrap();
    let error = parse(&text.replace("\"iteration\"", "\"aggregate\""), "a", None).unwrap_err();
    assert!(error.to_string().contains("--benchmark_report_aggregates_only"), "{error}");
    let failed = text.replacen("\"run_type\"", "\"error_occurred\": true, \"run_type\"", 1);
    assert_eq!(parse(&failed, "a", Some(1)).unwrap().len(), 5);
}

#[test]
fn a_folder_of_criterion_has_benchmarks_and_a_sample_is_a_run_an_iteration() {
    let all = read_benchmarks(&data("criterion")).unwrap();
    assert_eq!(names(&all), ["alone", "sums/both/wrapping/100"]);
    assert_eq!(all[0].runs.len(), 12);
    assert_eq!(value(&all[0].runs[1], "wall_seconds"), 3605842.0 / 1443804.0 / 1e9);
    assert_eq!(read(&data("criterion@1")).unwrap(), all[0].runs);
    let error = read(&data("criterion")).unwrap_err();
    assert!(error.to_string().contains("criterion: it has 2 benchmarks"), "{error}");
    for folder in ["criterion/alone", "criterion/alone/new", "criterion/alone/new/sample.json"] {
        assert_eq!(read(&data(folder)).unwrap(), all[0].runs, "{folder}");
    }
    let estimate = &read(&data("criterion/alone/new/estimates.json")).unwrap()[..];
    let text = std::fs::read_to_string(data("criterion/alone/new/estimates.json")).unwrap();
    let estimates: serde_json::Value = serde_json::from_str(&text).unwrap();
    let slope = estimates["slope"]["point_estimate"].as_f64().unwrap();
    assert_eq!((estimate.len(), value(&estimate[0], "wall_seconds")), (1, slope / 1e9));
}

#[test]
fn a_file_of_one_benchmark_is_one_without_a_name() {
    let all = read_benchmarks(&data("perf-appended.json")).unwrap();
    assert_eq!((names(&all), all[0].runs.len()), (vec![""], 2));
    let commands = read_benchmarks(&data("hyperfine.json")).unwrap();
    assert_eq!(names(&commands), ["true", "sleep 0.003"]);
}

#[test]
fn a_file_of_sadf_has_a_metric_of_every_number_in_every_report() {
    let runs = read(&data("sadf.json")).unwrap();
    assert_eq!(runs.len(), 1);
    let run = &runs[0];
    assert!(run.facts.contains_key("kernel"));
    let samples = run.metrics["cpu-load.all.idle"].samples().len();
    assert!(samples >= 3, "{samples}");
    for metric in ["paging.fault", "memory.memfree", "process-and-context-switch.cswch"] {
        assert_eq!(run.metrics[metric].samples().len(), samples, "{metric}");
    }
    assert!(
        run.metrics.keys().any(|name| name.starts_with("network.net-dev.lo.")),
        "{:?}",
        run.metrics.keys()
    );
    assert!(!run.metrics.keys().any(|name| name.contains("timestamp")));
}

#[test]
fn a_file_of_perf_stat_has_rates_of_intervals_or_a_run_a_time_it_was_appended_to() {
    let runs = read(&data("perf-interval.json")).unwrap();
    assert_eq!(runs.len(), 1);
    let faults = &runs[0].metrics["page-faults"];
    assert_eq!(faults.samples().len(), 2, "what was not counted is no sample");
    assert_eq!(faults.samples()[0], 75.0 / 0.200281599);
    assert_eq!(faults.value(), 75.0 / (0.200281599 + (0.701586076 - 0.603094844)));

    let text = std::fs::read_to_string(data("perf-interval.json")).unwrap();
    let lines: String = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| format!("{line}\n"))
        .collect();
    for twice in [text.repeat(2), lines.repeat(2)] {
        let both = parse(&twice, "a", None).unwrap();
        assert_eq!(
            (both.len(), &both[0].metrics, &both[1].metrics),
            (2, &runs[0].metrics, &runs[0].metrics)
        );
    }

    let runs = read(&data("perf-appended.json")).unwrap();
    assert_eq!(runs.len(), 2);
    assert_eq!(value(&runs[0], "page-faults"), 74.0);
    assert_eq!(value(&runs[0], "task-clock_msec"), 1.053242);
    assert!(!runs[1].metrics.contains_key("cycles"), "not supported there");
    assert_eq!(value(&runs[1], "page-faults"), 50.0);
}

#[test]
fn csv_has_a_metric_a_column_and_finds_its_counters() {
    let mut text = "timestamp;level;count;host;odd\n".to_owned();
    for row in 0..10 {
        text += &format!("{};{};{};a;{}\n", 1000 + row, 5 + row % 3, 100 + row * row, "nan");
    }
    let run = &parse(&text, "a", None).unwrap()[0];
    assert_eq!(run.metrics.keys().collect::<Vec<_>>(), ["count", "level"]);
    assert_eq!(run.facts["host"], "a");
    assert_eq!(
        run.left_out,
        ["column `timestamp` (the time of each row: it grows)", "column `odd` (empty)"]
    );
    let other = &parse(&text.replace(";5;", ";9;"), "b", None).unwrap()[0];
    let comparison = compare(from_ref(run), from_ref(other), &Options::default()).unwrap();
    assert_eq!(comparison.unit, Unit::Sample);
    assert_eq!(
        comparison.rows.iter().map(|row| &*row.metric).collect::<Vec<_>>(),
        ["level", "count/row"]
    );
    assert_eq!(comparison.rows[1].means, (9.0, 9.0), "81 in nine steps");
    assert!(
        comparison
            .notes
            .iter()
            .any(|note| note.contains("count only grow: counters by their names"))
    );
}

/// Cases with names that begin alike are apart, and a number that a case has in all of its rows is no setting.
#[test]
fn csv_has_the_results_of_each_case() {
    let long = "/api/v1/organizations/[organization]/projects/[project]/deployments/";
    let mut text = "case,allocs,ms\n".to_owned();
    for row in 0..8 {
        let (name, allocs) = [("a", 100), ("b", 200)][row % 2];
        text += &format!("{long}{name},{allocs},{}.5\n", allocs + row);
    }
    let run = &parse(&text, "a", None).unwrap()[0];
    let metrics = ["allocs", "ms"]
        .map(|metric| ["a", "b"].map(|name| format!("{metric}{{case={long}{name}}}")));
    assert_eq!(
        run.metrics.keys().collect::<Vec<_>>(),
        metrics.iter().flatten().collect::<Vec<_>>()
    );
    assert_eq!(run.metrics[&metrics[1][0]].samples(), [100.5, 102.5, 104.5, 106.5]);
}

#[test]
fn recordings_have_rates_levels_and_totals_and_a_torn_line_is_left_out() {
    let text = r#"{"start":{"schema":"cowslip.recording/1","created_unix_ns":1,"facts":{"kernel":"6"}}}
{"metrics":[{"name":"faults","kind":"counter"},{"name":"rss_bytes","kind":"gauge"}]}
{"sample":{"at_ns":0,"values":[10.0,null]}}
{"sample":{"at_ns":2000000000,"values":[30.0,4096.0]}}
{"metrics":[{"name":"faults","kind":"counter"}]}
{"sample":{"at_ns":3000000000,"values":[30.0]}}
{"totals":{"wall_seconds":3.5}}
"#;
    let run = &parse(text, "a", None).unwrap()[0];
    assert_eq!(run.metrics["faults"].samples(), [10.0, 0.0]);
    assert_eq!((value(run, "faults"), value(run, "rss_bytes")), (20.0 / 3.0, 4096.0));
    assert_eq!((value(run, "wall_seconds"), &*run.facts["kernel"]), (3.5, "6"));
    let torn = &parse(&text[..text.len() - 9], "a", None).unwrap()[0];
    assert_eq!(torn.metrics.len(), 2);
    for (from, to, said) in [
        ("recording/1", "recording/7", "recording/7"),
        ("[10.0,null]", "[10.0]", "line 3: 1 values of 2"),
        ("{\"sample\":{\"at_ns\":0,", "{\"sampl\":{", "line 3"),
    ] {
        let error = parse(&text.replacen(from, to, 1), "a", None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[test]
fn what_is_none_of_these_is_refused_with_the_reason() {
    let numbers_without_head = "nothing here\nof any use\n";
    for (text, said) in [
        ("", "no column of numbers"),
        ("\0\u{1}", "neither a recording"),
        ("{\"a\": 1}", "neither a recording"),
        ("{\"a\": ", "begins as JSON"),
        ("{\"results\": [{}]}", "without `times`"),
        ("{\"sysstat\": {\"hosts\": [{}]}}", "without `statistics`"),
        ("{\"counter-value\": \"1\"}\n", "line 1"),
        ("a,b\n1,2\n3\n", "line 3 has 1 fields, and the lines above it 2"),
        ("<!DOCTYPE html>\n<p>1, 2\n", "as HTML"),
        ("load, faults, load\n1,2,3\n", "columns 1 and 3 are both called `load`"),
        (numbers_without_head, "no column of numbers"),
    ] {
        let error = parse(text, "a", None).unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains(said), "{error}");
    }
    let folder = std::env::temp_dir().join(format!("cowslip-inputs-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("a.csv"), "a\n1\n").unwrap();
    std::fs::write(folder.join("page.html"), "<html>\n").unwrap();
    let error = read(&folder).unwrap_err().to_string();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(error.contains("page.html: neither") && error.contains("every file"), "{error}");
    let missing = read(Path::new("/nowhere/at/all")).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Io(std::io::ErrorKind::NotFound));
}

/// A damaged file is read or refused, and metrics read from it can be compared.
#[test]
fn damaged_files_are_read_or_refused() {
    let mut random = fastrand::Rng::with_seed(20);
    let (mut read, mut refused) = (0, 0);
    let recording = r#"{"start":{"schema":"cowslip.recording/1","created_unix_ns":1,"facts":{}}}
{"metrics":[{"name":"a","kind":"counter"},{"name":"b","kind":"gauge"}]}
{"sample":{"at_ns":0,"values":[10.0,2.0]}}
{"sample":{"at_ns":20,"values":[30.0,4.0]}}
{"sample":{"at_ns":30,"values":[35.0,1.0]}}
"#;
    let csv = "a,b,c\n1,2,3\n2,2,4\n3,2,9\n4,1,1\n5,5,5\n6,6,6\n7,7,7\n8,8,8\n";
    let mut texts = vec![recording.to_owned(), csv.to_owned()];
    for name in [
        "hyperfine.json",
        "perf-interval.json",
        "perf-appended.json",
        "sadf.json",
        "pytest-benchmark.json",
        "google-benchmark.json",
        "criterion/alone/new/sample.json",
    ] {
        texts.push(std::fs::read_to_string(data(name)).unwrap());
    }
    for text in &texts {
        for _ in 0..150 {
            let mut bytes = text.clone().into_bytes();
            for _ in 0..random.usize(1..6) {
                let at = random.usize(..bytes.len());
                bytes[at] = *random.choice(b"0123456789-e.,:;[]{}\"\n#ax ").unwrap();
            }
            let Ok(damaged) = String::from_utf8(bytes) else { continue };
            match (parse(&damaged, "a", Some(1)), parse(text, "b", Some(1))) {
                (Ok(damaged), Ok(whole)) => {
                    read += 1;
                    // An error for lack of comparable metrics is an answer, too.
                    let _ = compare(&damaged, &whole, &Options::default());
                }
                _ => refused += 1,
            }
        }
    }
    println!("{read} read, {refused} refused");
    assert!(read > 100 && refused > 100, "{read} and {refused}");
}
