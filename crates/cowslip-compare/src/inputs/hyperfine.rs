//! `hyperfine --export-json`: each of its runs is a run, except those that failed.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::collect::clipped;
use super::{Benchmark, Run};
use crate::{Error, Result};

/// True for the results of commands.
pub(super) fn is_export(whole: &Value) -> bool {
    whole.get("results").is_some_and(Value::is_array)
}

pub(super) fn parse(whole: &Value, name: &str) -> Result<Vec<Benchmark>> {
    let results = whole.get("results").and_then(Value::as_array).into_iter().flatten();
    let mut all = results.map(|result| command(result, name)).collect::<Result<Vec<_>>>()?;
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
    // A command that a signal ended has no exit code.
    let exit_codes = result.get("exit_codes").and_then(Value::as_array);
    let has_failed = |index: &usize| {
        exit_codes.and_then(|codes| codes.get(*index)).is_some_and(|code| *code != 0)
    };
    let failed_runs = (0..times.len()).filter(has_failed).count();
    let runs = (0..times.len()).filter(|index| !has_failed(index)).map(|index| {
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
    let mut runs: Vec<Run> = runs.collect();
    match runs.first_mut() {
        Some(first) => first.failed_runs = failed_runs,
        None if failed_runs > 0 => {
            let command = clipped(command.unwrap_or_default());
            return Err(Error::corrupt(format!("all {failed_runs} runs of `{command}` failed")));
        }
        None => {}
    }
    Ok(Benchmark { name: command.unwrap_or_default().to_owned(), runs })
}
