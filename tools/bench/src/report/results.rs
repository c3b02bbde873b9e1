//! The result of a bench or a demo: rows of measurements, ratios between systems, series over time.
//!
//! The JSON form is stable: its `schema` names it, units are in the field names or in `unit`.

use std::time::Instant;

use serde::Serialize;
use serde_json::{Map, Value};

use super::machine;

/// The JSON schema this module writes.
pub const SCHEMA: &str = "cowslip.bench/1";

/// All measurements of one run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// `cow`, `demo`, …
    pub bench: String,
    /// Kernel, processors, memory and settings; a fact that cannot be read is null.
    pub machine: Map<String, Value>,
    /// The options of the run: sizes, repetitions, versions.
    pub params: Map<String, Value>,
    /// The measurements, in the order in which they were made.
    pub rows: Vec<Row>,
    /// The promises, and whether they hold.
    pub ratios: Vec<Ratio>,
    /// Measurements over time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Series>,
    /// Sentences a reader should know before believing the numbers (interrupted, noisy, …).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    #[serde(skip)]
    began: Instant,
}

impl Report {
    /// A report of `bench` without results yet; the facts of the machine are read now.
    pub fn new(bench: &str, params: Map<String, Value>) -> Self {
        Self {
            schema: SCHEMA,
            bench: bench.to_owned(),
            machine: machine::facts(),
            params,
            rows: Vec::new(),
            ratios: Vec::new(),
            series: Vec::new(),
            notes: Vec::new(),
            began: Instant::now(),
        }
    }

    /// Records the time that the run took.
    pub fn end(&mut self) {
        self.params.insert("seconds".to_owned(), self.began.elapsed().as_secs().into());
    }

    /// Adds a row.
    pub fn row(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Records that `system` could not run, and why.
    pub fn skip(&mut self, system: &str, metric: &str, why: impl Into<String>) {
        self.rows.push(Row::skipped(system, metric, why));
    }

    /// The value of the row that these five name together.
    pub fn find(
        &self,
        system: &str,
        metric: &str,
        stat: &str,
        size_bytes: Option<u64>,
        variant: Option<&str>,
    ) -> Option<f64> {
        self.find_row(system, metric, stat, size_bytes, variant)?.value
    }

    /// The row that these five name together.
    pub fn find_row(
        &self,
        system: &str,
        metric: &str,
        stat: &str,
        size_bytes: Option<u64>,
        variant: Option<&str>,
    ) -> Option<&Row> {
        self.rows.iter().find(|row| {
            row.system == system
                && row.metric == metric
                && row.stat == stat
                && row.size_bytes == size_bytes
                && row.variant.as_deref() == variant
        })
    }

    /// Like [`Self::ratio`], with a lower bound.
    pub fn ratio_at_least(&mut self, name: &str, value: Option<f64>, bound: f64) {
        self.ratio(name, value, Some(bound), None);
    }

    /// Like [`Self::ratio`], with an upper bound.
    pub fn ratio_at_most(&mut self, name: &str, value: Option<f64>, bound: f64) {
        self.ratio(name, value, None, Some(bound));
    }

    /// Adds a ratio with its promised bounds, if any; a quotient by zero counts as unmeasured.
    pub fn ratio(
        &mut self,
        name: &str,
        value: Option<f64>,
        at_least: Option<f64>,
        at_most: Option<f64>,
    ) {
        let value = value.filter(|value| value.is_finite());
        let promised = at_least.is_some() || at_most.is_some();
        let holds = value.filter(|_| promised).map(|value| {
            at_least.is_none_or(|low| value >= low) && at_most.is_none_or(|high| value <= high)
        });
        let name = name.to_owned();
        self.ratios.push(Ratio { name, value, at_least, at_most, holds, host_fit: None });
    }
}

/// One measured value of one system, or the reason why there is none.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// `cowslip`, `fork-4k`, `fork-thp`, `fork-hugetlb`, `uffd-wp`, or a name with a year for published figures.
    pub system: String,
    /// `pause`, `first_write`, …
    pub metric: String,
    /// `p50`, `p99`, `p999`, `max`, `mean`, `value`, …; `all` in a skipped row.
    pub stat: String,
    /// Size of the measured memory, if the metric depends on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Distinguishes this row from its neighbours (`sparse`, `dense`, `save 3`, …).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// The value in `unit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// `ns`, `bytes`, `pages`, `1/s`, `ratio`, `count`; empty in a skipped row.
    pub unit: &'static str,
    /// The number of events or repetitions behind the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    /// Why this system has no value here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// The host's state meanwhile; none for values that it cannot spoil.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostState>,
}

/// The state of a virtual machine's host during a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HostState {
    /// Nanoseconds of a first write to a free page of 4 KiB: many times as many if the host took the page back.
    pub touch_ns_per_page: f64,
    /// Processor time that the host gave to others, as a share of all processors'.
    pub stolen_share: f64,
    /// True if a value that was measured in this state can be believed.
    pub host_fit: bool,
}

impl HostState {
    /// The worse of each.
    pub fn worse(self, other: Self) -> Self {
        Self {
            touch_ns_per_page: self.touch_ns_per_page.max(other.touch_ns_per_page),
            stolen_share: self.stolen_share.max(other.stolen_share),
            host_fit: self.host_fit && other.host_fit,
        }
    }
}

impl Row {
    /// A row that these three name alone.
    pub fn new(system: &str, metric: &str, stat: &str, value: f64, unit: &'static str) -> Self {
        Self {
            system: system.to_owned(),
            metric: metric.to_owned(),
            stat: stat.to_owned(),
            size_bytes: None,
            variant: None,
            value: Some(value),
            unit,
            n: None,
            skipped: None,
            host: None,
        }
    }

    /// A row in place of every stat of a metric that could not be measured.
    pub fn skipped(system: &str, metric: &str, why: impl Into<String>) -> Self {
        let skipped = Some(why.into());
        Self { value: None, skipped, ..Self::new(system, metric, "all", 0.0, "") }
    }

    /// The same, for memory of that size.
    pub fn size_bytes(self, size_bytes: impl Into<Option<u64>>) -> Self {
        Self { size_bytes: size_bytes.into(), ..self }
    }

    /// The same, distinguished from its neighbours by `variant`.
    pub fn variant<'a>(self, variant: impl Into<Option<&'a str>>) -> Self {
        Self { variant: variant.into().map(str::to_owned), ..self }
    }

    /// The same, with the number of events or repetitions behind it.
    pub fn n(self, n: u64) -> Self {
        Self { n: Some(n), ..self }
    }
}

/// A figure with a promise, and whether the promise was kept.
#[derive(Debug, Clone, Serialize)]
pub struct Ratio {
    /// The comparison, such as `first_write_p50_hugetlb_over_cowslip`.
    pub name: String,
    /// None if it was not measured.
    pub value: Option<f64>,
    /// The promised lower bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    /// The promised upper bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
    /// True if the value is within the bounds; none without a value or without bounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holds: Option<bool>,
    /// True if all that it compares was measured while the host was fit; none if that is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_fit: Option<bool>,
}

impl Ratio {
    /// The promised bounds, as an inequality.
    pub(super) fn bound(&self) -> String {
        match (self.at_least, self.at_most) {
            (Some(low), Some(high)) => format!("{low} … {high}"),
            (Some(low), None) => format!("≥ {low}"),
            (None, Some(high)) => format!("≤ {high}"),
            (None, None) => String::new(),
        }
    }

    /// The standing of the promise, in a word or two.
    pub(super) fn verdict(&self) -> &'static str {
        match self.holds {
            Some(true) => "holds",
            Some(false) => "MISSED",
            None if self.value.is_none() => "not measured",
            None => "",
        }
    }
}

/// A measurement over time, for the charts.
#[derive(Debug, Clone, Serialize)]
pub struct Series {
    /// The system, as in a [`Row`].
    pub system: String,
    /// The metric, as in a [`Row`].
    pub metric: String,
    /// The unit, as in a [`Row`].
    pub unit: &'static str,
    /// Seconds since the run of this system began, and the value then.
    pub points: Vec<(f64, f64)>,
    /// Spans of time to shade (the saves): from, to, label.
    pub marks: Vec<(f64, f64, String)>,
}

#[cfg(test)]
mod tests {
    use std::{fs, process};

    use cowslip_report::json::write;
    use serde_json::json;

    use super::*;
    use crate::report::example;

    #[test]
    fn the_file_has_the_documented_shape_and_replaces_the_old_one() {
        let directory = std::env::temp_dir().join(format!("cowslip-json-{}", process::id()));
        fs::create_dir(&directory).unwrap();
        let path = directory.join("report.json");
        fs::write(&path, "old").unwrap();
        write(&example::report(), &path).unwrap();

        let text = fs::read_to_string(&path).unwrap();
        assert!(text.ends_with("}\n"));
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["schema"], "cowslip.bench/1");
        assert!(value["machine"]["memory_bytes"].is_u64());
        assert_eq!(value["rows"][0]["system"], "cowslip");
        assert_eq!(value["rows"][0]["unit"], "ns");
        let skipped =
            value["rows"].as_array().unwrap().iter().find(|row| row["skipped"] != json!(null));
        assert_eq!(skipped.unwrap().get("value"), None);
        assert_eq!(value["ratios"][0]["holds"], true);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn ratios_are_judged_only_against_promised_bounds() {
        let mut report = Report::new("cow", Map::new());
        report.ratio_at_least("a", Some(10.0), 10.0);
        report.ratio_at_most("b", Some(1.06), 1.05);
        report.ratio("c", Some(1.0), Some(0.95), Some(1.05));
        report.ratio_at_least("d", Some(1.0 / 0.0), 2.0);
        report.ratio("e", Some(3.0), None, None);
        let holds: Vec<_> = report.ratios.iter().map(|ratio| ratio.holds).collect();
        assert_eq!(holds, [Some(true), Some(false), Some(true), None, None]);
        assert_eq!(report.ratios[3].value, None);
    }

    #[test]
    fn find_needs_every_part_of_the_name() {
        let mut report = Report::new("cow", Map::new());
        report.row(Row::new("cowslip", "pause", "p50", 90.0, "ns").size_bytes(64).variant("dense"));
        let find = |size, variant| report.find("cowslip", "pause", "p50", size, variant);
        assert_eq!(find(Some(64), Some("dense")), Some(90.0));
        assert_eq!(find(Some(64), None), None);
        assert_eq!(find(None, Some("dense")), None);
    }
}
