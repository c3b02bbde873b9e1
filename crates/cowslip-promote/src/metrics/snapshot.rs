//! Metrics in Prometheus' text format, read back.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

const PREFIX: &str = "cowslip_promote_";

/// The content of a text.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The processes, in the order of the text.
    pub processes: Vec<Process>,
    /// Metrics of no single process, by name.
    pub whole: BTreeMap<String, f64>,
    /// The time it was read.
    pub at_ns: u64,
}

/// One process.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// Its name.
    pub name: String,
    values: BTreeMap<String, f64>,
    /// Regions by reason.
    pub regions: BTreeMap<String, f64>,
    /// Refusals by error number.
    pub refusals: BTreeMap<String, f64>,
}

impl Process {
    /// The value of a metric; 0 if it is not there.
    pub fn value(&self, name: &str) -> f64 {
        self.get(name).unwrap_or(0.0)
    }

    /// The value of a metric, if it is there.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.values.get(name).copied()
    }

    /// Refusals by the kernel, of all error numbers.
    pub fn refused(&self) -> f64 {
        // Not `sum`: it returns -0 for nothing.
        self.refusals.values().fold(0.0, |sum, count| sum + count)
    }
}

impl Snapshot {
    /// Reads a text; `None` if no metric is ours.
    pub fn parse(text: &str) -> Option<Self> {
        let mut snapshot = Self { at_ns: cowslip_sys::process::now_ns(), ..Self::default() };
        for (name, labels, value) in text.lines().filter_map(sample) {
            let Some(name) = name.strip_prefix(PREFIX) else { continue };
            let Some(pid) = labels.get("pid").and_then(|text| text.parse().ok()) else {
                if labels.is_empty() {
                    snapshot.whole.insert(name.to_owned(), value);
                }
                continue;
            };
            let process = snapshot.process(pid, labels.get("name"));
            match (labels.get("reason"), labels.get("errno")) {
                (Some(reason), _) => process.regions.insert(reason.clone(), value),
                (_, Some(errno)) => process.refusals.insert(errno.clone(), value),
                _ => process.values.insert(name.to_owned(), value),
            };
        }
        snapshot.whole.contains_key("looks_total").then_some(snapshot)
    }

    fn process(&mut self, pid: i32, name: Option<&String>) -> &mut Process {
        let index = match self.processes.iter().position(|process| process.pid == pid) {
            Some(index) => index,
            None => {
                let name = name.cloned().unwrap_or_default();
                self.processes.push(Process { pid, name, ..Process::default() });
                self.processes.len() - 1
            }
        };
        &mut self.processes[index]
    }

    /// The metrics as JSON; `source` names their origin.
    pub fn to_json(&self, source: &str) -> Value {
        let processes: Vec<Value> = self.processes.iter().map(Process::to_json).collect();
        json!({
            "schema": "cowslip.promote.top/1",
            "source": source,
            "whole": self.whole,
            "processes": processes,
        })
    }
}

impl Process {
    fn to_json(&self) -> Value {
        let mut all = Map::new();
        all.insert("pid".into(), json!(self.pid));
        all.insert("name".into(), json!(self.name));
        all.extend(self.values.iter().map(|(name, value)| (name.clone(), json!(value))));
        all.insert("regions_by_reason".into(), json!(self.regions));
        all.insert("refusals_by_errno".into(), json!(self.refusals));
        Value::Object(all)
    }
}

pub(crate) type Labels = BTreeMap<String, String>;

/// One line: the name, the labels, the value. `None` for comments.
pub(crate) fn sample(line: &str) -> Option<(&str, Labels, f64)> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (labels, value) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Labels::new(), rest),
    };
    // A time may follow the value.
    Some((name, labels, value.split_ascii_whitespace().next()?.parse().ok()?))
}

/// The labels up to the closing brace, and the rest after it.
pub(crate) fn labels(mut rest: &str) -> Option<(Labels, &str)> {
    let mut labels = Labels::new();
    loop {
        rest = rest.trim_start_matches(',');
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, other) => value.push(other),
            }
        };
        labels.insert(name.to_owned(), value);
        rest = &after[end + 1..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::text;
    use crate::model::ProcessId;
    use crate::policy::Reason;
    use crate::session::{ProcessTally, Tally};

    #[test]
    fn what_is_told_is_read_back_whatever_the_name() {
        let mut tally = Tally::default();
        let name = "a\"},\\ b=\"{\n";
        let process = ProcessTally {
            name: name.into(),
            promotions: 3,
            regions: [(Reason::Shared, 2)].into(),
            refusals: [(22, 5)].into(),
            heat_percent: Some(40),
            ..ProcessTally::default()
        };
        tally.processes.insert(ProcessId { pid: 7, start_ticks: 1 }, process);
        tally.looks = 9;
        let read = Snapshot::parse(&text(&tally)).unwrap();
        assert_eq!(read.processes.len(), 1);
        let process = &read.processes[0];
        assert_eq!((process.pid, process.name.as_str()), (7, name));
        assert_eq!((process.value("promotions_total"), process.regions["shared"]), (3.0, 2.0));
        assert_eq!((process.refused(), process.get("heat_ratio")), (5.0, Some(0.4)));
        assert_eq!(read.whole["looks_total"], 9.0);
    }

    #[test]
    fn what_is_not_ours_is_nothing() {
        assert!(Snapshot::parse("node_load1 0.5\n# HELP cowslip_promote_x\n").is_none());
        for line in ["cowslip_promote_a{pid=\"7", "cowslip_promote_a{pid} 1", "cowslip_promote_a x"]
        {
            assert!(sample(line).is_none(), "{line}");
        }
    }
}
