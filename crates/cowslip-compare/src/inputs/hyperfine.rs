//! `hyperfine --export-json`: each of its runs is a run.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::{Benchmark, Run};
use crate::{Error, Result};

pub(super) fn parse(results: &Value, name: &str) -> Result<Vec<Benchmark>> {
    let results = results.as_array().map(Vec::as_slice).unwrap_or_default();
    let mut all = results.iter().map(|result| command(result, name)).collect::<Result<Vec<_>>>()?;
    if let [only] = all.as_mut_slice() {
        only.name.clear();
    }
    Ok(all)
}

fn command(result: &Value, name: &str) -> Result<Benchmark> {
    let fields = result.as_object().into_iter().flatten();
    let lists: Vec<(&str, &Vec<Value>)> = fields
        .filter(|(field, _)| *field != "exit_codes")
        .filter_map(|(field, list)| Some((field.as_str(), list.as_array()?)))
        .collect();
    let Some((_, times)) = lists.iter().find(|(field, _)| *field == "times") else {
        return Err(Error::corrupt("a result of hyperfine without `times`"));
    };
    let command = result.get("command").and_then(Value::as_str);
    let facts = command.map(|command| ("command".to_owned(), command.to_owned()));
    let facts: Arc<BTreeMap<_, _>> = Arc::new(facts.into_iter().collect());
    let runs = (0..times.len()).map(|index| {
        let mut run = Run::new(&format!("{name}#{}", index + 1));
        run.facts = Arc::clone(&facts);
        for (field, list) in lists.iter().filter(|(_, list)| list.len() == times.len()) {
            let metric = if *field == "times" { "wall_seconds" } else { field };
            if let Some(value) = list[index].as_f64() {
                run = run.with(metric, value);
            }
        }
        run
    });
    Ok(Benchmark { name: command.unwrap_or_default().to_owned(), runs: runs.collect() })
}
