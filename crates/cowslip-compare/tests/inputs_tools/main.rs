//! Files of more tools: Go 1.26, pyperf 2.11, asv 0.6, hyperfine 1.15, perf 6.1, sysstat 12.6, procps 4.0, fio 3.33,
//! wrk 4.1 and vegeta 12.12. Those of JMH 1.37, BenchmarkDotNet 0.14, k6, Prometheus, bencher and
//! github-action-benchmark are written after their documentation.

mod benchmarks;
mod load;
mod reports;

use std::fs;
use std::path::{Path, PathBuf};

use cowslip_compare::ErrorKind;
use cowslip_compare::inputs::{Benchmark, Run, parse, read, read_benchmarks};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/inputs").join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(data(name)).unwrap()
}

fn benchmarks(name: &str) -> Vec<Benchmark> {
    read_benchmarks(&data(name)).unwrap()
}

/// The only run of a file.
fn only(name: &str) -> Run {
    let mut runs = read(&data(name)).unwrap();
    assert_eq!(runs.len(), 1, "{name}");
    runs.remove(0)
}

fn names(all: &[Benchmark]) -> Vec<&str> {
    all.iter().map(|benchmark| benchmark.name.as_str()).collect()
}

fn value(run: &Run, metric: &str) -> f64 {
    run.metrics.get(metric).unwrap_or_else(|| panic!("{metric}: {:?}", run.metrics.keys())).value()
}

fn values(benchmark: &Benchmark, metric: &str) -> Vec<f64> {
    benchmark.runs.iter().map(|run| value(run, metric)).collect()
}

fn assert_close(value: f64, expected: f64) {
    assert!((value / expected - 1.0).abs() < 1e-12, "{value}, not {expected}");
}

/// Asserts that a text is refused as corrupt, with a reason.
fn assert_refused(text: &str, reason: &str) {
    let error = parse(text, "a", None).expect_err(text);
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains(reason), "{error}");
}

#[test]
fn json_of_other_kinds_never_counts_as_csv() {
    for text in [
        "[1,\n3,4]",
        "[]",
        "[\n  {\"a\": 1},\n  {\"a\": 2}\n]\n",
        "[\"a\",\"b\"]\n",
        "{}",
        "{\"results\": 1}",
    ] {
        assert_refused(text, "neither a recording of cowslip");
    }
    assert_refused("{\"a\": 1}\n{\"a\": 2}\n", "its JSON Lines are of another kind");
    assert_refused("[a,b]\n1,2\n", "begins as JSON and is none");
    assert_refused("{\"results\": []}", "it has no benchmark");
    assert_refused("{\"sysstat\": {\"hosts\": [{\"a\": 1,5}]}}", "sadf -d");
    let deep = "[".repeat(1 << 20);
    assert_refused(&deep, "is none");
}
