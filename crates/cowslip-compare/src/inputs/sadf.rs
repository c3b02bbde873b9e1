//! `sadf -j` of sysstat: every number of every report is a metric, named by its path; sadf turns counters into rates.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Metric, Run, choose};
use crate::{Error, Result};

/// Longer paths are none of sysstat's. What lies below one would repeat it.
const LONGEST_PATH: usize = 256;
/// Numbers that say which one it is, not how much.
const IDENTIFIERS: [&str; 4] = ["number", "line", "index", "serial"];

pub(super) fn parse(hosts: &Value, name: &str, part: Option<usize>) -> Result<Vec<Run>> {
    let hosts = hosts.as_array().map(Vec::as_slice).unwrap_or_default();
    let host = choose(hosts, part, "host")?;
    let Some(statistics) = host.get("statistics").and_then(Value::as_array) else {
        return Err(Error::corrupt("a host of sadf without `statistics`"));
    };
    let mut samples: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for look in statistics {
        for (report, content) in look.as_object().into_iter().flatten() {
            if report != "timestamp" {
                collect(report, content, &mut samples);
            }
        }
    }
    let mut facts = BTreeMap::new();
    for (fact, field) in [("kernel", "release"), ("machine", "machine"), ("host", "nodename")] {
        if let Some(text) = host.get(field).and_then(Value::as_str) {
            facts.insert(fact.to_owned(), text.to_owned());
        }
    }
    let mut run = Run::new(name);
    run.facts = facts.into();
    for (name, samples) in samples {
        run.add(&name, Metric::levels(samples));
    }
    Ok(vec![run])
}

fn collect(path: &str, content: &Value, into: &mut BTreeMap<String, Vec<f64>>) {
    match content {
        _ if path.len() > LONGEST_PATH => {}
        Value::Number(number) => {
            into.entry(path.to_owned()).or_default().extend(number.as_f64());
        }
        Value::Object(fields) => {
            let mut path = path.to_owned();
            for (field, value) in fields {
                match value {
                    Value::String(text) => path += &format!(".{text}"),
                    Value::Number(number) if IDENTIFIERS.contains(&field.as_str()) => {
                        path += &format!(".{number}");
                    }
                    _ => {}
                }
            }
            for (field, value) in fields {
                if !IDENTIFIERS.contains(&field.as_str()) {
                    collect(&format!("{path}.{field}"), value, into);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(path, item, into)),
        _ => {}
    }
}
