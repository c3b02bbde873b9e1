//! Results of measurements, shown as a table, as JSON or as one HTML page with charts.
//!
//! A [`Report`] collects [`Row`]s, [`Ratio`]s between systems, and [`Series`] over time. It begins with the facts of
//! the machine. Three writers show it:
//!
//! * [`table`] for people, on a terminal or in a log;
//! * [`json`] for programs, with a schema that stays;
//! * [`html`] as one page that needs only a browser.
//!
//! [`summary`] makes one page of the results of many runs, [`figures`] fills tables in others.
//!
//! ```
//! use std::path::Path;
//!
//! use cowslip_report::{Latencies, Report, json};
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
//!
//! Other output of a command that measures is here too: [`Progress`] on standard error, [`units`] and [`text`] for
//! lines of its own, [`Paint`] for their colours, [`sink`] and [`Stream`] for files that are whole or absent.
//!
//! Its interface may change in any release.

mod charts;
mod groups;
mod latency;
mod machine;
mod paint;
mod progress;
mod report;
mod stream;
mod svg;

pub mod figures;
pub mod html;
pub mod json;
pub mod sink;
pub mod summary;
pub mod table;
pub mod text;
pub mod units;

#[cfg(test)]
mod example;

pub use latency::Latencies;
pub use paint::{BAD, BOLD, DIM, GOOD, Paint, WARN};
pub use progress::Progress;
pub use report::{HostState, Ratio, Report, Row, SCHEMA, Series};
pub use stream::Stream;
