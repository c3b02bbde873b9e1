//! Recordings of metrics: JSON Lines, one [`Event`] a line (`docs/compare.md`).

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::Prices;

/// The name of the lines' format; the first line contains it.
pub const SCHEMA: &str = "cowslip.recording/1";

/// The total in the recording of a command that ended by itself.
pub const EXIT_CODE: &str = "exit_code";

/// One line.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The first line.
    Start {
        /// [`SCHEMA`]
        schema: String,
        /// Start of the recording, in nanoseconds since 1970 UTC.
        created_unix_ns: u64,
        /// Facts about the machine and the run that a reader needs.
        facts: BTreeMap<String, String>,
    },
    /// The prices of the kernel's events on the machine before the run.
    Prices(Prices),
    /// The columns of the samples from here on.
    Metrics(Vec<Definition>),
    /// One look at all of them.
    Sample {
        /// Nanoseconds since the start.
        at_ns: u64,
        /// Values in the order of the metrics; null if one could not be read.
        values: Vec<Option<f64>>,
    },
    /// Values of the run as a whole; the last line.
    Totals(BTreeMap<String, f64>),
}

/// The definition of a column of the samples.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Definition {
    /// Such as `vmstat.pgfault`; a unit, if there is one, is its end: `meminfo.active_bytes`.
    pub name: String,
    /// The meaning of its values.
    pub kind: MetricKind,
}

/// The meaning of values.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricKind {
    /// Only grows; compared by its growth in the run, or a second.
    Counter,
    /// Seconds that only grow; compared by their share in all time.
    Share,
    /// A level, compared as it is.
    Gauge,
}

/// Writes a recording.
#[derive(Debug)]
pub struct RecordingWriter<W: Write> {
    to: W,
    metrics: Vec<Definition>,
}

impl<W: Write> RecordingWriter<W> {
    /// Begins a recording.
    pub fn start(to: W, facts: &BTreeMap<String, String>) -> io::Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut writer = Self { to, metrics: Vec::new() };
        writer.line(&Event::Start {
            schema: SCHEMA.to_owned(),
            created_unix_ns: now.as_nanos() as u64,
            facts: facts.clone(),
        })?;
        Ok(writer)
    }

    /// Adds the prices of the kernel's events.
    pub fn prices(&mut self, prices: Prices) -> io::Result<()> {
        self.line(&Event::Prices(prices))
    }

    /// Adds a sample, after its columns if they changed.
    pub fn sample(&mut self, at_ns: u64, values: Vec<(Definition, Option<f64>)>) -> io::Result<()> {
        let (metrics, values): (Vec<_>, Vec<_>) = values.into_iter().unzip();
        if metrics != self.metrics {
            self.line(&Event::Metrics(metrics.clone()))?;
            self.metrics = metrics;
        }
        self.line(&Event::Sample { at_ns, values })
    }

    /// Ends it with the values of the whole run.
    pub fn finish(mut self, totals: BTreeMap<String, f64>) -> io::Result<W> {
        self.line(&Event::Totals(totals))?;
        Ok(self.to)
    }

    fn line(&mut self, event: &Event) -> io::Result<()> {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        self.to.write_all(&line)?;
        self.to.flush()
    }
}
