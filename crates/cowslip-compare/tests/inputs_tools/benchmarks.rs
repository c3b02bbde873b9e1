//! Tools that measure programs and functions.

use std::fs;

use cowslip_compare::inputs::{WALL, parse, read, read_benchmarks};
use cowslip_compare::{Options, compare};

use crate::{assert_close, assert_refused, benchmarks, data, names, text, value, values};

#[test]
fn lines_of_go_test_are_runs_and_a_common_number_of_processors_is_a_fact() {
    let all = benchmarks("go-bench.txt");
    let expected = [
        "example.org/words.BenchmarkSplit",
        "example.org/words.BenchmarkJoin/n=2",
        "example.org/words.BenchmarkJoin/xxn=2",
        "example.org/words/more.BenchmarkAdd",
    ];
    assert_eq!(names(&all), expected);
    assert_eq!(values(&all[0], WALL), [78.62 / 1e9, 110.2 / 1e9, 88.45 / 1e9]);
    let run = &all[0].runs[0];
    assert_eq!((value(run, "B/op"), value(run, "allocs/op")), (80.0, 1.0));
    assert_eq!((value(run, "MB/s"), value(run, "fields/op")), (114.47, 5.0));
    let facts = ["goos", "goarch", "cpu.model", "cpu.count"].map(|fact| run.facts[fact].as_str());
    assert_eq!(facts, ["linux", "amd64", "AMD EPYC", "2"]);

    let text = "BenchmarkA-2 10 5 ns/op\nBenchmarkA-4 10 3 ns/op\nPASS\n";
    let path = std::env::temp_dir().join(format!("cowslip-go-{}", std::process::id()));
    fs::write(&path, text).unwrap();
    let all = read_benchmarks(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(names(&all), ["BenchmarkA-2", "BenchmarkA-4"], "the numbers differ");
    assert!(all[0].runs[0].facts.is_empty());
    let joined = "cpu: A\nBenchmarkA-2 10 5 ns/op\ncpu: B\ngoos: linux\nBenchmarkA-2 10 3 ns/op\n";
    let runs = parse(joined, "a", None).unwrap();
    let models = runs.iter().map(|run| run.facts["cpu.model"].as_str());
    assert_eq!(models.collect::<Vec<_>>(), ["A", "B"], "results of two machines");
    assert_refused("BenchmarkA-2 10 x ns/op\n", "x ns/op of BenchmarkA-2 is no number");
}

#[test]
fn the_events_of_go_test_have_the_results_of_each_package() {
    let all = benchmarks("go-test.jsonl");
    assert_eq!(all.len(), 4);
    assert_eq!(all[0].name, "example.org/words.BenchmarkSplit");
    assert_eq!(values(&all[0], WALL), [148.4 / 1e9, 119.2 / 1e9], "results in several events");
    assert_eq!(all[3].runs[1].facts["cpu.model"], "AMD EPYC");
    let text = text("go-test.jsonl");
    assert_refused(&text[..text.len() - 9], "line 43");
    assert_refused(&text.replace("Benchmark", "Test"), "run it with -bench");
    assert_refused("{\"Action\":\"output\",\"Package\":\"a\",\"Output\":[]}\n", "line 1");
}

#[test]
fn iterations_of_jmh_are_runs_in_seconds_or_operations_a_second() {
    let all = benchmarks("jmh.json");
    let expected = [
        "org.example.Words.split(size=64) avgt",
        "org.example.Words.split(size=64) thrpt",
        "org.example.Words.join sample",
    ];
    assert_eq!(names(&all), expected);
    assert_eq!(all[0].runs.len(), 6, "two forks of three iterations");
    assert_close(value(&all[0].runs[4], WALL), 123e-9);
    assert_eq!(value(&all[0].runs[4], "gc.alloc.rate_MB/sec"), 1014.0);
    assert_eq!(value(&all[0].runs[4], "gc.count"), 2.0);
    assert_close(value(&all[1].runs[1], "ops_per_second"), 8.5e6);
    assert_close(value(&all[2].runs[0], WALL), 2.5e-6);
    let facts = &all[0].runs[0].facts;
    assert_eq!((&*facts["jdk.version"], &*facts["mode"]), ("17.0.12", "avgt"));
    assert_eq!(facts["jvm"], "/usr/lib/jvm/java-17/bin/java");
    let text = text("jmh.json");
    assert_refused(&text[..text.len() / 2], "begins as JSON and is none");
    assert_refused(&text.replace("\"scoreUnit\"", "\"unit\""), "without `scoreUnit`");
    assert_refused(&text.replace("\"benchmark\"", "\"name\""), "without `benchmark`");
    let holes =
        parse(&text.replace("123.0\n", "\"NaN\"\n").replace("123.0,", "NaN,"), "a", Some(1));
    assert_eq!(holes.unwrap()[4].missing.len(), 1);
}

#[test]
fn values_of_pyperf_are_runs_and_warm_ups_are_none() {
    let all = benchmarks("pyperf.json");
    assert_eq!((names(&all), all[0].runs.len()), (vec!["timeit"], 6));
    assert_eq!(value(&all[0].runs[3], WALL), 6.997300079092384e-07);
    let facts = &all[0].runs[0].facts;
    assert_eq!((&*facts["cpu.model"], &*facts["host"]), ("AMD EPYC", "vm"));
    assert_eq!((&*facts["python"], &*facts["cpu.count"]), ("3.11.7 (64-bit)", "2"));
    assert!(facts["platform"].starts_with("Linux-"));
    let text = text("pyperf.json");
    let bytes = &parse(&text.replace("\"second\"", "\"byte\""), "a", None).unwrap()[0];
    assert!(bytes.metrics.contains_key("bytes"));
    assert_refused(&text.replace("\"values\"", "\"other\""), "only warm-ups");
    assert_refused(&text.replace("\"runs\": [", "\"runs\": 1, \"more\": ["), "another kind");
}

#[test]
fn samples_of_asv_are_runs_of_a_benchmark_and_its_parameters() {
    let all = benchmarks("asv.json");
    let expected = [
        "words.Split.time_split(10, 'a')",
        "words.Split.time_split(10, 'b')",
        "words.Split.time_split(1000, 'a')",
        "words.Split.time_split(1000, 'b')",
        "words.Split.track_parts(10, 'a')",
        "words.Split.track_parts(1000, 'a')",
        "words.Split.track_parts(1000, 'b')",
        "words.mem_list",
        "words.peakmem_list",
    ];
    assert_eq!(names(&all), expected, "one failed");
    assert_eq!((all[1].runs.len(), value(&all[1].runs[0], WALL)), (4, 6.209993443917483e-07));
    assert_eq!((values(&all[4], "value"), values(&all[7], "bytes")), (vec![11.0], vec![856.0]));
    assert_eq!(values(&all[8], "peak_bytes"), [24801280.0]);
    let facts = &all[0].runs[0].facts;
    assert_eq!((&*facts["cpu.model"], &*facts["cpu.count"]), ("AMD EPYC", "2"));
    assert_eq!((&*facts["memory"], &*facts["host"]), ("25276502016", "vm"));
    assert_eq!(facts["os"], "Linux 6.18.44-fc-v669");
    assert_eq!(facts["commit"], "7aef3c5c36e6a6ff55914917625ddb5240924957");

    let old = r#"{"commit_hash": "c0", "results": {"a.time_x": 0.5, "a.time_y":
        {"result": [1.5, null], "params": [["1", "2"]], "samples": [[1.0, 2.0], null]}}, "version": 1}"#;
    assert_eq!(parse(old, "a", Some(1)).unwrap()[0].metrics[WALL].value(), 0.5);
    assert_eq!(parse(old, "a", Some(2)).unwrap().len(), 2);
    let many = vec!["[1]"; 17].join(",");
    let hostile = old.replace("[[\"1\", \"2\"]]", &format!("[{many}]"));
    assert_refused(&hostile, "a.time_y has 17 parameters");
    assert_refused(&old.replace("0.5", "null").replace("\"result\"", "\"r\""), "without a result");
}

#[test]
fn original_values_of_benchmark_dotnet_are_runs_and_jobs_have_names() {
    let all = benchmarks("benchmark-dotnet.json");
    let expected = [
        "Example.Words.Split(N: 64)",
        "Words.Join: .NET 8.0(Runtime=.NET 8.0)",
        "Words.Join: .NET 6.0(Runtime=.NET 6.0)",
    ];
    assert_eq!(names(&all), expected);
    assert_eq!(values(&all[0], WALL), [1210.5 / 1e9, 1212.25 / 1e9, 1208.75 / 1e9]);
    assert_eq!(value(&all[0].runs[0], "allocated_bytes_per_operation"), 376.0);
    let facts = &all[0].runs[0].facts;
    assert_eq!((&*facts["cpu.model"], &*facts["cpu.count"]), ("AMD EPYC 9R14", "8"));
    assert_eq!(facts["runtime"], ".NET 8.0.8 (8.0.824.36612)");
    assert_eq!(facts["os"], "Debian GNU/Linux 12 (bookworm)");
    let text = text("benchmark-dotnet.json");
    assert_refused(&text.replace("OriginalValues", "Values"), "JsonExporter.Full");
    let nameless = text.replace("\"FullName\"", "\"a\"").replace("\"MethodTitle\"", "\"b\"");
    assert_refused(&nameless, "without a name");
}

#[test]
fn measures_of_bencher_and_values_for_github_actions_are_runs() {
    let text = r#"{"sort": {"latency": {"value": 1500.0, "lower_value": 1400.0, "upper_value": 1600.0},
        "instructions": {"value": 7}}, "sum": {"latency": {"value": 2}}}"#;
    let sort = &parse(text, "a", Some(1)).unwrap()[0];
    assert_close(value(sort, WALL), 1.5e-6);
    assert_eq!((value(sort, "instructions"), sort.metrics.len()), (7.0, 2));
    assert_refused(&text.replace("{\"value\": 2}", "[2]"), "sum has a measure without a `value`");

    let list = r#"[{"name": "a", "unit": "us/iter", "value": 2.5, "range": "± 3", "extra": "x"},
        {"name": "a", "unit": "us/iter", "value": 3.5}, {"name": "b", "unit": "ops/sec", "value": 40},
        {"name": "c", "unit": "Percent", "value": NaN}]"#;
    let runs = parse(list, "file", Some(1)).unwrap();
    assert_eq!((runs.len(), &*runs[1].name), (2, "file#2"));
    assert_close(value(&runs[1], WALL), 3.5e-6);
    assert_eq!(value(&parse(list, "a", Some(2)).unwrap()[0], "ops_per_second"), 40.0);
    assert_eq!(parse(list, "a", Some(3)).unwrap()[0].missing.len(), 1);
    assert_refused(&list.replace("3.5", "[]"), "the value of a is no number");
    assert_refused(&list.replace("\"b\"", "7"), "without name, unit and value");
}

#[test]
fn failed_runs_of_hyperfine_are_left_out_and_counted() {
    let runs = read(&data("hyperfine-failures.json")).unwrap();
    assert_eq!((runs.len(), runs[0].failed_runs), (3, 3));
    assert_eq!(value(&runs[1], WALL), 0.004007954);
    let comparison = compare(&runs, &runs, &Options::default()).unwrap();
    for note in
        ["3 of 6 good runs failed and were left out", "3 of 6 bad runs failed and were left out"]
    {
        assert!(comparison.notes.iter().any(|one| one == note), "{:?}", comparison.notes);
    }
    let text = text("hyperfine-failures.json");
    assert_refused(&text.replace("        0,\n", "        null,\n"), "all 6 runs of `sh -c");
}

#[test]
fn context_and_missing_counters_of_google_benchmark() {
    let text = text("google-benchmark.json");
    let run = &parse(&text, "a", Some(1)).unwrap()[0];
    let facts = ["cpu.count", "cpu.mhz", "host", "build", "cpu.scaling"];
    let known: Vec<&str> =
        facts.iter().filter_map(|fact| run.facts.get(*fact)).map(|fact| fact.as_str()).collect();
    assert!(known.len() >= 4, "{:?}", run.facts);
    assert!(run.facts["cpu.mhz"].ends_with("00"), "{:?}", run.facts);
    for word in ["NaN", "Infinity", "-Infinity", "1e999"] {
        let missing = text.replacen("\"moves\": ", &format!("\"moves\": {word}, \"b\": "), 1);
        let run = &parse(&missing, "a", Some(1)).unwrap()[0];
        assert!(!run.metrics.contains_key("moves") && run.metrics.contains_key(WALL), "{word}");
        assert_eq!(run.missing.len(), 1);
    }
}

#[test]
fn a_file_of_pytest_without_rounds_names_the_option() {
    let text = text("pytest-benchmark.json").replace("\"data\"", "\"no_data\"");
    let text = text.replace("\"unversioned\"", "\"unknown\"");
    let runs = parse(&text, "a", Some(1)).unwrap();
    assert!(!runs[0].facts.contains_key("commit"));
    let error = compare(&runs, &runs, &Options::default()).unwrap_err();
    assert!(error.to_string().contains("--benchmark-save-data"), "{error}");
    let several = [runs[0].clone(), runs[0].clone().with(WALL, 1.0)];
    let comparison = compare(&several, &several, &Options::default()).unwrap();
    assert!(comparison.notes.iter().any(|note| note.contains("--benchmark-save-data")));
}
