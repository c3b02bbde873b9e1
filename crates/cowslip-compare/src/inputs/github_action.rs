//! Results for github-action-benchmark: a list of names, units and values. Entries of the same name are runs.

use serde_json::Value;

use super::collect::Benchmarks;
use super::units::metric_of;
use super::{Benchmark, Run};
use crate::{Error, Result};

/// True for a list of values with units.
pub(super) fn is_list(whole: &Value) -> bool {
    let first = whole.as_array().and_then(|entries| entries.first());
    first.is_some_and(|entry| {
        ["name", "unit", "value"].iter().all(|field| entry.get(field).is_some())
    })
}

pub(super) fn parse(whole: &Value, file: &str) -> Result<Vec<Benchmark>> {
    let mut all = Benchmarks::default();
    for entry in whole.as_array().into_iter().flatten() {
        let text = |field: &str| entry.get(field).and_then(Value::as_str);
        let (Some(name), Some(unit), Some(value)) =
            (text("name"), text("unit"), entry.get("value"))
        else {
            return Err(Error::corrupt(
                "an entry of github-action-benchmark without name, unit and value",
            ));
        };
        let (metric, factor) = match metric_of(unit) {
            Some(known) => known,
            None if unit.trim().is_empty() => ("value", 1.0),
            None => (unit.trim(), 1.0),
        };
        if !(value.is_number() || value.is_null()) {
            let name = super::collect::clipped(name);
            return Err(Error::corrupt(format!("the value of {name} is no number")));
        }
        let mut run = Run::default();
        run.add_value(metric, value.as_f64().map(|value| value * factor));
        all.add(name, file, [run]);
    }
    Ok(all.into_vec())
}
