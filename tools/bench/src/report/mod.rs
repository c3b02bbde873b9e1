//! Results of measurements, shown as a table, as JSON or as one HTML page with charts.
//!
//! A [`Report`] collects [`Row`]s, [`Ratio`]s between systems, and [`Series`] over time. It begins with the facts of
//! the machine. Three writers show it:
//!
//! * [`table`] for people, on a terminal or in a log;
//! * [`cowslip_report::json`] for programs, with a schema that stays;
//! * [`html`] as one page that needs only a browser.
//!
//! [`summary`] makes one page of the results of many runs, [`figures`] fills figures into others.
//!
//! ```
//! use std::path::Path;
//!
//! use cowslip_bench::report::{Latencies, Report};
//! use cowslip_report::json;
//!
//! let mut report = Report::new("cow", serde_json::Map::new());
//! let mut pauses = Latencies::new();
//! pauses.record_ns(1_500);
//! pauses.push(&mut report, "cowslip", "pause", Some(64 << 20), None);
//! let pause_ns = report.find("cowslip", "pause", "max", Some(64 << 20), None);
//! report.ratio_at_most("pause_ms", pause_ns.map(|ns| ns / 1e6), 1.0);
//! json::write(&report, Path::new("-"))?;
//! # Ok::<(), std::io::Error>(())
//! ```

mod charts;
mod groups;
mod latency;
mod machine;
mod origin;
mod results;
mod svg;

pub mod figures;
pub mod html;
pub mod summary;
pub mod table;

#[cfg(test)]
mod example;

pub use latency::Latencies;
pub use results::{HostState, Ratio, Report, Row, SCHEMA, Series};
