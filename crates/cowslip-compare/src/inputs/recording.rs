//! Recordings of Cowslip's own, as runs.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Metric, Run};
use crate::recording::{Definition, EXIT_CODE, Event, MetricKind, SCHEMA};
use crate::{Error, Prices, Result};

/// True for the first line of a recording.
pub(super) fn is_start(line: &Value) -> bool {
    line.pointer("/start/schema").is_some()
}

/// Ignores a last line that was cut short, for example when the recorder was killed.
pub(super) fn parse(text: &str, name: &str) -> Result<Run> {
    let mut run = Run::new(name);
    let mut columns: Vec<Definition> = Vec::new();
    let mut reads: BTreeMap<(String, MetricKind), Vec<(f64, f64)>> = BTreeMap::new();
    let mut lines = text.lines().enumerate().peekable();
    while let Some((index, line)) = lines.next() {
        let corrupt = |what: String| Error::corrupt(format!("line {}: {what}", index + 1));
        match serde_json::from_str(line) {
            Ok(Event::Start { schema, .. }) if schema != SCHEMA => {
                return Err(corrupt(format!("its schema is {schema}, not {SCHEMA}")));
            }
            Ok(Event::Start { facts, .. }) => run.facts = facts.into(),
            Ok(Event::Prices(prices)) => run.prices = Some(prices).filter(Prices::is_plausible),
            Ok(Event::Metrics(definitions)) => columns = definitions,
            Ok(Event::Sample { values, .. }) if values.len() != columns.len() => {
                return Err(corrupt(format!(
                    "{} values of {} metrics",
                    values.len(),
                    columns.len()
                )));
            }
            Ok(Event::Sample { at_ns, values }) => {
                for (column, value) in columns.iter().zip(values) {
                    let Some(value) = value else { continue };
                    reads
                        .entry((column.name.clone(), column.kind))
                        .or_default()
                        .push((at_ns as f64 / 1e9, value));
                }
            }
            Ok(Event::Totals(totals)) => {
                run.ended_by_itself |= totals.contains_key(EXIT_CODE);
                for (name, value) in totals {
                    run.add(&name, Metric::levels(vec![value]));
                }
            }
            Err(error) if error.is_eof() && index > 0 && lines.peek().is_none() => {}
            Err(error) => return Err(corrupt(error.to_string())),
        }
    }
    for ((name, kind), reads) in reads {
        let metric = match kind {
            MetricKind::Counter => Metric::counter(&reads),
            MetricKind::Share => Metric::share(&reads),
            MetricKind::Gauge => {
                Metric::levels(reads.into_iter().map(|(_, value)| value).collect())
            }
        };
        run.add(&name, metric);
    }
    Ok(run)
}
