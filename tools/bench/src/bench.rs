//! State that all measurements of a run share, and a watch of the host around one of them.

use std::fmt::Display;

use crate::report::Report;
use cowslip::units::ByteCount;
use cowslip_report::{Progress, units};

use super::clock::Clock;
use super::error::Result;
use super::host::{self, Span};
use super::interrupt::Interrupt;

/// Memory touched in the beginning, to measure how the host treats free memory.
const TOUCHED_FIRST: ByteCount = ByteCount::gib(1);

/// State that all measurements of a run share.
pub struct Bench<'a> {
    /// Gets the results.
    pub report: &'a mut Report,
    /// Shows the present measurement.
    pub progress: &'a mut Progress,
    /// Looked at now and then.
    pub stop: &'a Interrupt,
    /// The time limit of the whole run.
    pub clock: Clock,
}

impl Bench<'_> {
    /// Records the cost of a touch of free memory on this host before anything is warm, and afterwards.
    pub(crate) fn look_at_host(&mut self) -> Result<()> {
        self.progress.phase("what a touch of free memory costs here");
        let available = ByteCount(available_bytes() / 4);
        let before = host::measure(TOUCHED_FIRST.min(available))?;
        let warm = host::measure(TOUCHED_FIRST.min(available))?;
        let prices = [("host_touch_ns_per_page", before), ("host_warm_touch_ns_per_page", warm)];
        for (name, state) in prices {
            self.report.params.insert(name.to_owned(), state.touch_ns_per_page.round().into());
        }
        let [before, warm] = prices.map(|(_, state)| units::human(state.touch_ns_per_page, "ns"));
        self.report.notes.push(format!(
            "the host: a first touch of a free page cost {before} in the beginning, {warm} of memory in use a moment ago"
        ));
        Ok(())
    }

    /// Calls `measure`; the rows that it adds get the host's state meanwhile.
    pub(crate) fn watched<T>(&mut self, measure: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let first = self.report.rows.len();
        let span = Span::begin()?;
        let measured = measure(self);
        let state = span.end()?;
        let rows = self.report.rows.iter_mut().skip(first);
        rows.filter(|row| row.value.is_some()).for_each(|row| _ = row.host.get_or_insert(state));
        measured
    }

    /// Shows the progress of the whole: this part of `parts`, and the time.
    pub(crate) fn begin_stage(&mut self, part: usize, parts: usize, name: &dyn Display) {
        let passed = self.clock.elapsed().as_secs();
        let stage = format!("[{part}/{parts} {name}, {}:{:02}]", passed / 60, passed % 60);
        self.progress.stage(&stage);
    }
}

/// Memory that the kernel estimates to be available without swapping; 0 if it does not tell.
fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
