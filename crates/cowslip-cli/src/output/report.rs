//! The result of a bench or a demo: rows of measurements, ratios between rivals, series over time.
//!
//! The JSON form is stable: its `schema` names it, units are in the field names or in `unit`.

use serde::Serialize;
use serde_json::{Map, Value};

use super::machine;

/// The JSON schema this module writes.
pub(crate) const SCHEMA: &str = "cowslip.bench/1";

/// Everything one run measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) schema: &'static str,
    /// `cow`, `demo`, …
    pub(crate) bench: String,
    pub(crate) machine: Map<String, Value>,
    pub(crate) params: Map<String, Value>,
    pub(crate) rows: Vec<Row>,
    pub(crate) ratios: Vec<Ratio>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) series: Vec<Series>,
    /// Sentences a reader should know before believing the numbers (interrupted, noisy, …).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) notes: Vec<String>,
}

impl Report {
    pub(crate) fn new(bench: &str, params: Map<String, Value>) -> Self {
        Self {
            schema: SCHEMA,
            bench: bench.to_owned(),
            machine: machine::facts(),
            params,
            rows: Vec::new(),
            ratios: Vec::new(),
            series: Vec::new(),
            notes: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Records that `rival` could not run, and why.
    pub(crate) fn skip(&mut self, rival: &str, metric: &str, why: impl Into<String>) {
        self.rows.push(Row::skipped(rival, metric, why));
    }

    /// The value of the row that these five name together.
    pub(crate) fn find(
        &self,
        rival: &str,
        metric: &str,
        stat: &str,
        size_bytes: Option<u64>,
        variant: Option<&str>,
    ) -> Option<f64> {
        let row = self.rows.iter().find(|row| {
            row.rival == rival
                && row.metric == metric
                && row.stat == stat
                && row.size_bytes == size_bytes
                && row.variant.as_deref() == variant
        })?;
        row.value
    }

    pub(crate) fn ratio_at_least(&mut self, name: &str, value: Option<f64>, bound: f64) {
        self.ratio(name, value, Some(bound), None);
    }

    pub(crate) fn ratio_at_most(&mut self, name: &str, value: Option<f64>, bound: f64) {
        self.ratio(name, value, None, Some(bound));
    }

    pub(crate) fn ratio_between(&mut self, name: &str, value: Option<f64>, low: f64, high: f64) {
        self.ratio(name, value, Some(low), Some(high));
    }

    /// A ratio with the bounds that were promised, if any; a quotient by zero counts as unmeasured.
    pub(crate) fn ratio(
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
        self.ratios.push(Ratio { name: name.to_owned(), value, at_least, at_most, holds });
    }
}

/// One measured value of one rival, or the reason why there is none.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    /// `cowslip`, `fork-4k`, `fork-thp`, `fork-hugetlb`, `uffd-wp`, or `seed-000` for published figures.
    pub(crate) rival: String,
    /// `pause`, `first_write`, …
    pub(crate) metric: String,
    /// `p50`, `p99`, `p999`, `max`, `mean`, `value`, …; `all` in a skipped row.
    pub(crate) stat: String,
    /// Size of the memory measured, where the metric depends on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) size_bytes: Option<u64>,
    /// What else tells this row from its neighbours (`sparse`, `dense`, `save 3`, …).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) variant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<f64>,
    /// `ns`, `bytes`, `pages`, `1/s`, `ratio`, `count`; empty in a skipped row.
    pub(crate) unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) n: Option<u64>,
    /// Why this rival has no value here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) skipped: Option<String>,
}

impl Row {
    pub(crate) fn new(
        rival: &str,
        metric: &str,
        stat: &str,
        value: f64,
        unit: &'static str,
    ) -> Self {
        Self {
            rival: rival.to_owned(),
            metric: metric.to_owned(),
            stat: stat.to_owned(),
            size_bytes: None,
            variant: None,
            value: Some(value),
            unit,
            n: None,
            skipped: None,
        }
    }

    /// Stands for every stat of a metric that could not be measured.
    pub(crate) fn skipped(rival: &str, metric: &str, why: impl Into<String>) -> Self {
        let skipped = Some(why.into());
        Self { value: None, skipped, ..Self::new(rival, metric, "all", 0.0, "") }
    }

    pub(crate) fn size_bytes(self, size_bytes: impl Into<Option<u64>>) -> Self {
        Self { size_bytes: size_bytes.into(), ..self }
    }

    pub(crate) fn variant<'a>(self, variant: impl Into<Option<&'a str>>) -> Self {
        Self { variant: variant.into().map(str::to_owned), ..self }
    }

    pub(crate) fn n(self, n: u64) -> Self {
        Self { n: Some(n), ..self }
    }
}

/// A figure a promise is made about, and whether it was kept.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Ratio {
    pub(crate) name: String,
    pub(crate) value: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at_least: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at_most: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holds: Option<bool>,
}

/// A measurement over time, for the charts.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Series {
    pub(crate) rival: String,
    pub(crate) metric: String,
    pub(crate) unit: &'static str,
    /// Seconds since the run of this rival began, and the value then.
    pub(crate) points: Vec<(f64, f64)>,
    /// Spans of time to shade (the saves): from, to, label.
    pub(crate) marks: Vec<(f64, f64, String)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_judged_only_against_promised_bounds() {
        let mut report = Report::new("cow", Map::new());
        report.ratio_at_least("a", Some(10.0), 10.0);
        report.ratio_at_most("b", Some(1.06), 1.05);
        report.ratio_between("c", Some(1.0), 0.95, 1.05);
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
