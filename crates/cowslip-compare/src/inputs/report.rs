//! Reports in text, recognized by their lines.

use super::{Benchmark, go_bench};
use crate::Result;

/// Reads a report; `None` for any other text.
pub(super) fn parse(text: &str, name: &str) -> Option<Result<Vec<Benchmark>>> {
    go_bench::is_report(text).then(|| go_bench::parse(text, name))
}
