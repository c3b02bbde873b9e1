//! Text of mpstat: one run, a metric a processor and column, such as `cpu.all.%usr`.

use std::collections::BTreeMap;

use super::{Metric, Run, sysstat_text};
use crate::Result;

/// The first columns of its tables.
const LABELS: [&str; 2] = ["CPU", "NODE"];

/// True for the columns of a table of mpstat.
pub(super) fn is_header(columns: &[&str]) -> bool {
    columns.first().is_some_and(|first| LABELS.contains(first))
}

pub(super) fn parse(text: &str, file: &str) -> Result<Run> {
    let mut samples: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    sysstat_text::rows(text, is_header, |row| {
        let place = format!("{}.{}", row.columns[0].to_lowercase(), row.cells[0]);
        for (index, column) in row.columns.iter().enumerate().skip(1) {
            samples.entry(format!("{place}.{column}")).or_default().extend(row.value(index)?);
        }
        Ok(())
    })?;
    let mut run = Run::new(file);
    for (name, samples) in samples {
        run.add_or_count(&name, Metric::levels(samples));
    }
    Ok(run)
}
