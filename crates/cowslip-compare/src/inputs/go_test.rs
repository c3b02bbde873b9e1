//! `go test -json`: the text of `go test -bench` in the events of packages that run at the same time.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use super::json::from_json;
use super::{Benchmark, go_bench};
use crate::{Error, Result};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Event {
    #[serde(default)]
    package: String,
    #[serde(default)]
    output: String,
}

/// True for an event of `go test -json`.
pub(super) fn is_event(line: &Value) -> bool {
    let has_text = |field: &str| line.get(field).is_some_and(Value::is_string);
    has_text("Action") && (has_text("Package") || has_text("ImportPath"))
}

/// Joins the output of each package, as a result may be in several events, and reads all of it.
pub(super) fn parse(text: &str, file: &str) -> Result<Vec<Benchmark>> {
    let mut outputs: Vec<String> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let event: Event = from_json(line)
            .map_err(|error| Error::corrupt(format!("line {}: {error}", index + 1)))?;
        let place = *places.entry(event.package).or_insert_with(|| {
            outputs.push(String::new());
            outputs.len() - 1
        });
        outputs[place] += &event.output;
    }
    go_bench::parse(&outputs.join("\n"), file)
}
