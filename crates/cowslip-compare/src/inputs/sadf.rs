//! `sadf -j` and `-o JSON` of sysstat: every number of every report is a metric, named by its path; sadf turns counters into rates.

use std::collections::BTreeMap;

use serde_json::Value;

use super::collect::{clipped, facts};
use super::{Benchmark, Metric, Run, iostat};
use crate::{Error, Result};

const FACTS: [(&str, &str); 3] =
    [("kernel", "/release"), ("machine", "/machine"), ("host", "/nodename")];
/// Longer paths are none of sysstat's. Each name below one would repeat it.
const LONGEST_PATH: usize = 256;
/// Numbers that say which one it is, not how much.
const IDENTIFIERS: [&str; 4] = ["number", "line", "index", "serial"];

/// True for a report of hosts.
pub(super) fn is_report(whole: &Value) -> bool {
    whole.pointer("/sysstat/hosts").is_some()
}

pub(super) fn parse(whole: &Value, file: &str) -> Result<Vec<Benchmark>> {
    let hosts = whole.pointer("/sysstat/hosts").and_then(Value::as_array);
    let hosts = hosts.map(Vec::as_slice).unwrap_or_default();
    let mut all = hosts.iter().map(|one| host(one, file)).collect::<Result<Vec<_>>>()?;
    if let [only] = all.as_mut_slice() {
        only.name.clear();
    }
    Ok(all)
}

fn host(host: &Value, file: &str) -> Result<Benchmark> {
    let Some(statistics) = host.get("statistics").and_then(Value::as_array) else {
        return Err(Error::corrupt("a host of sadf without `statistics`"));
    };
    // The first report of iostat holds the means since the start of the machine.
    let skipped = usize::from(statistics.iter().any(is_of_iostat));
    if skipped == statistics.len() && skipped > 0 {
        return Err(Error::corrupt(iostat::NO_INTERVAL));
    }
    let mut samples: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for look in &statistics[skipped..] {
        for (report, content) in look.as_object().into_iter().flatten() {
            if report != "timestamp" {
                collect(report, content, &mut samples);
            }
        }
    }
    let facts = facts(host, &FACTS);
    let name = facts.get("host").map_or("", |name| clipped(name)).to_owned();
    let mut run = Run { facts: facts.into(), ..Run::new(file) };
    for (name, samples) in samples {
        run.add(&name, Metric::levels(samples));
    }
    Ok(Benchmark { name, runs: vec![run] })
}

fn is_of_iostat(look: &Value) -> bool {
    look.get("avg-cpu").is_some() || look.pointer("/disk/0/disk_device").is_some()
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
