//! Reports in text, recognized by their lines.

use super::{Benchmark, go_bench, wrk};
use crate::Result;

/// Reads a report; `None` for any other text.
pub(super) fn parse(text: &str, name: &str) -> Option<Result<Vec<Benchmark>>> {
    if wrk::is_report(text) {
        return Some(wrk::parse(text, name));
    }
    go_bench::is_report(text).then(|| go_bench::parse(text, name))
}
