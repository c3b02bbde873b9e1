//! The result of a bench or a demo: rows of measurements, ratios between rivals, series over time.
//!
//! The JSON form is stable: its `schema` names it, units are in the field names or in `unit`.

use serde::Serialize;
use serde_json::{Map, Value};

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

/// One measured value of one rival, or the reason why there is none.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    /// `cowslip`, `fork-4k`, `fork-thp`, `fork-hugetlb`, `uffd-wp`, or `seed-000` for published figures.
    pub(crate) rival: String,
    /// `pause`, `first_write`, …
    pub(crate) metric: String,
    /// `p50`, `p99`, `p999`, `max`, `mean`, `value`, …
    pub(crate) stat: String,
    /// Size of the memory measured, where the metric depends on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) size_bytes: Option<u64>,
    /// What else tells this row from its neighbours (`sparse`, `dense`, `save 3`, …).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) variant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<f64>,
    /// `ns`, `bytes`, `pages`, `1/s`, `ratio`, `count`.
    pub(crate) unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) n: Option<u64>,
    /// Why this rival has no value here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) skipped: Option<String>,
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
