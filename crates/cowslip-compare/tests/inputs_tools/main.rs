//! Files of more tools: Go 1.26, pyperf 2.11, asv 0.6, hyperfine 1.15, perf 6.1, sysstat 12.6, procps 4.0, fio 3.33,
//! wrk 4.1, vegeta 12.12 and Locust 2.47. Those of JMH 1.37, BenchmarkDotNet 0.14, k6, Prometheus, bencher and
//! github-action-benchmark are written by hand, in their formats.

mod benchmarks;
mod load;
mod reports;
mod sysstat;

use std::fs;
use std::path::{Path, PathBuf};
use std::slice::from_ref;

use cowslip_compare::inputs::{Benchmark, Run, parse, read, read_benchmarks};
use cowslip_compare::{ErrorKind, Options, compare};

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

/// A damaged file of any tool is read or refused.
#[test]
fn damaged_files_are_read_or_refused() {
    let mut random = fastrand::Rng::with_seed(21);
    let (mut taken, mut refused) = (0, 0);
    for entry in fs::read_dir(data("")).unwrap() {
        let path = entry.unwrap().path();
        if !path.is_file() {
            continue;
        }
        let whole = fs::read_to_string(&path).unwrap();
        for _ in 0..100 {
            let mut bytes = whole.clone().into_bytes();
            for _ in 0..random.usize(1..6) {
                let at = random.usize(..bytes.len());
                bytes[at] = *random.choice(b"0123456789-e.,:;[]{}\"\n#ax ").unwrap();
            }
            bytes.truncate(random.usize(bytes.len() / 2..=bytes.len()));
            let Ok(damaged) = String::from_utf8(bytes) else { continue };
            match parse(&damaged, "a", Some(1)) {
                Ok(runs) => {
                    taken += 1;
                    if let [first, ..] = &runs[..] {
                        // An error for lack of comparable metrics is an answer, too.
                        let _ = compare(from_ref(first), from_ref(first), &Options::default());
                    }
                }
                Err(_) => refused += 1,
            }
        }
    }
    println!("{taken} read, {refused} refused");
    assert!(taken > 100 && refused > 100, "{taken} and {refused}");
}
