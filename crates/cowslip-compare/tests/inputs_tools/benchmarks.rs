//! Tools that measure programs and functions.

use cowslip_compare::inputs::{WALL, parse, read};
use cowslip_compare::{Options, compare};

use crate::{assert_refused, data, text, value};

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
    for word in ["NaN", "Infinity", "-Infinity", "1e999"] {
        let missing = text.replacen("\"moves\": ", &format!("\"moves\": {word}, \"b\": "), 1);
        let run = &parse(&missing, "a", Some(1)).unwrap()[0];
        assert!(!run.metrics.contains_key("moves") && run.metrics.contains_key(WALL), "{word}");
        assert_eq!(run.left_out, 1);
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
