//! What the command prints: one report, shown as a table, as JSON or as one HTML page.

mod charts;
mod groups;
mod machine;
mod sink;
mod svg;
mod text;
mod units;

pub(crate) mod html;
pub(crate) mod json;
pub(crate) mod latency;
pub(crate) mod progress;
pub(crate) mod report;
pub(crate) mod table;

#[cfg(test)]
mod example;
