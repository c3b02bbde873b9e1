//! What the command prints: one report, shown as a table, as JSON or as one HTML page.

pub(crate) mod report;
