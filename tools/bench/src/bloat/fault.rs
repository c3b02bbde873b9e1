//! The first touch of each page on fragmented memory: base pages, huge pages and pages of 64 KiB at the fault, and base
//! pages that `cowslip promote` makes huge later.

use std::fs;

use crate::report::{Latencies, Row};

use super::daemon::Daemon;
use super::fragment::Fragmented;
use super::policy::HugePagePolicy;
use super::process::{Command, Said};
use super::settings::{Settings, System};
use super::target::{Target, mapped};
use super::{Bench, Options, Result};
use crate::error::{Error, during};

pub(super) const METRIC: &str = "first_touch";
pub(super) const DIRECT: &str = "defrag always";
/// The kernel's default.
pub(super) const DEFAULT: &str = "defrag madvise";
/// A fault takes a base page if no huge page is free, and the kernel makes huge pages meanwhile.
pub(super) const DEFER: &str = "defrag defer";

const PORTIONS: u64 = 8;
/// The program pauses between its portions, which gives a promoter time.
const PAUSE_MS: u64 = 300;
const MOST_ROUNDS: u32 = 2;
/// Makes a run of a few seconds contain some looks.
const DAEMON: &str = "interval_ms = 500\nsettle_ms = 500\n";

struct Entry {
    policy: &'static str,
    variant: Option<&'static str>,
    settings: Settings,
    latencies: Latencies,
    huge: f64,
    compactions: u64,
}

impl Entry {
    fn new(policy: &'static str, variant: Option<&'static str>, settings: Settings) -> Self {
        let latencies = Latencies::new();
        Self { policy, variant, settings, latencies, huge: 0.0, compactions: 0 }
    }
}

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options, system: &System) -> Result<()> {
    let bytes = options.working_bytes() as u64;
    let always = Settings::ASLEEP;
    let mut entries = vec![
        Entry::new("thp-never", None, Settings::NEVER),
        Entry::new("thp-always", Some(DIRECT), Settings { defrag: "always", ..always }),
        Entry::new("thp-always", Some(DEFAULT), always),
        Entry::new("thp-always", Some(DEFER), Settings { defrag: "defer", ..always }),
        Entry::new("cowslip", None, Settings::ON_REQUEST),
    ];
    let mthp = HugePagePolicy::Mthp;
    match mthp.settings() {
        Ok(settings) => entries.push(Entry::new(mthp.name(), None, settings)),
        Err(why) => {
            let row = Row::skipped(mthp.name(), METRIC, why.to_string());
            bench.report.row(row.size_bytes(bytes / 2));
        }
    }
    let mut rounds = 0;
    for round in bench.clock.rounds(1.0, 1, options.runs.min(MOST_ROUNDS)) {
        for entry in &mut entries {
            let (policy, variant) = (entry.policy, entry.variant.unwrap_or_default());
            bench.progress.phase(&format!("faults, round {}: {policy} {variant}", round + 1));
            entry.measure(bench, bytes, system)?;
        }
        rounds = round + 1;
    }
    for entry in &entries {
        entry.latencies.push(bench.report, entry.policy, METRIC, Some(bytes / 2), entry.variant);
        let counts = [
            ("first_touch_huge_coverage", entry.huge / f64::from(rounds), "ratio"),
            ("first_touch_compactions", entry.compactions as f64, "count"),
        ];
        for (metric, value, unit) in counts {
            let row = Row::new(entry.policy, metric, "value", value, unit).size_bytes(bytes / 2);
            bench.report.row(row.variant(entry.variant).n(rounds.into()));
        }
    }
    bench.report.notes.push(
        "first_touch: of each page of 4 KiB, one after the other, for every policy; with huge pages 511 of 512 find \
         their page there already"
            .to_owned(),
    );
    system.set(&Settings::NEVER)
}

impl Entry {
    /// Has a process touch half of `bytes` while `bytes` of free memory are fragmented.
    fn measure(&mut self, bench: &mut Bench<'_>, bytes: u64, system: &System) -> Result<()> {
        let stop = bench.stop;
        system.set(&Settings::NEVER)?;
        let mut target = Target::start()?;
        let _fragmented = Fragmented::with(bench, bytes, 0)?;
        system.set(&self.settings)?;
        let daemon = match self.policy {
            "cowslip" => Some(Daemon::start(&[target.pid()], &[], DAEMON)?),
            _ => None,
        };
        let compactions = compaction_stalls()?;
        let portion = bytes / 2 / PORTIONS;
        let command = Command::Touch { portions: PORTIONS, bytes: portion, pause_ms: PAUSE_MS };
        let said = target.tell(command, stop)?;
        self.compactions += compaction_stalls()? - compactions;
        let Said::Touched(runs) = said else {
            return Err(Error::Failed(format!("it said {said:?} of its faults")));
        };
        runs.into_iter().for_each(|(ns, n)| self.latencies.record_many(ns, n));
        self.huge += mapped(target.pid())?.coverage();
        if let Some(daemon) = daemon {
            daemon.end(stop)?;
        }
        let like = Row::skipped(self.policy, METRIC, "").size_bytes(bytes / 2);
        target.push_changed(bench, &like.variant(self.variant))?;
        system.set(&Settings::NEVER)
    }
}

/// The number of times that a thread had to wait for memory compaction.
fn compaction_stalls() -> Result<u64> {
    let text = fs::read_to_string("/proc/vmstat").map_err(during("read /proc/vmstat"))?;
    let count = text.lines().find_map(|line| line.strip_prefix("compact_stall "));
    Ok(count.and_then(|count| count.parse().ok()).unwrap_or(0))
}
