//! A program that runs to its end under each policy, while free memory is in large pieces or fragmented. Its result has
//! to be the same each time.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use cowslip::units::{ByteCount, CHUNK_BYTES};

use super::daemon::Daemon;
use super::fragment::Fragmented;
use super::group::Group;
use super::policy::HugePagePolicy;
use super::settings::{Settings, System};
use super::target::children_ns;
use super::{BYTES_CHANGED, Bench, Result};
use crate::error::{Error, during};
use crate::host::warm;
use crate::program::{Folder, Running};
use crate::report::Row;
use crate::rows::median;

pub(super) const FRAGMENTED: &str = "fragmented memory";

/// Free memory that becomes fragmented, over that of the program.
const FRAGMENTED_SHARE: u64 = 3;
/// The program's memory, over the huge pages that are then left free.
const FREE_SHARE: u64 = 4;
const MOST_ROUNDS: u32 = 3;
const LOOK: Duration = Duration::from_millis(20);
/// An operator's script reclaims this often.
const RECLAIM: Duration = Duration::from_secs(1);
/// Makes a run of a few seconds contain some looks.
const DAEMON: &str = "interval_ms = 500\nsettle_ms = 500\n";

/// A program to measure.
pub(super) struct Job<'a> {
    /// The start of its metrics' names.
    pub(super) name: &'static str,
    /// Memory that it takes, roughly.
    pub(super) bytes: u64,
    pub(super) folder: &'a Folder,
    /// The program and its arguments.
    pub(super) words: Vec<String>,
    /// The packages that it needs.
    pub(super) needs: &'static str,
    /// Finds the result, given the printed text.
    pub(super) result: &'a dyn Fn(&str) -> Result<Outcome>,
}

/// The result of a run.
pub(super) struct Outcome {
    /// Bytes that are the same under every policy.
    pub(super) content: Vec<u8>,
    /// Parts of the result that are wrong in themselves.
    pub(super) wrong: u64,
    pub(super) figures: Vec<Figure>,
}

pub(super) struct Figure {
    /// The end of its metric's name.
    pub(super) metric: &'static str,
    pub(super) stat: &'static str,
    pub(super) value: f64,
    pub(super) unit: &'static str,
}

/// A policy and the runs under it.
struct Entry {
    policy: HugePagePolicy,
    variant: Option<&'static str>,
    runs: Vec<Vec<Figure>>,
    changed_bytes: u64,
}

impl Job<'_> {
    pub(super) fn measure(&self, bench: &mut Bench<'_>, runs: u32, system: &System) -> Result<()> {
        let variants: &[_] =
            if bench.clock.is_full() { &[None, Some(FRAGMENTED)] } else { &[None] };
        let entry = |policy, variant| Entry { policy, variant, runs: Vec::new(), changed_bytes: 0 };
        let of = |&variant| HugePagePolicy::RIVALS.map(|policy| entry(policy, variant));
        let mut entries: Vec<_> = variants.iter().flat_map(of).collect();
        let mut expected = None;
        for round in bench.clock.rounds(1.0, 1, runs.min(MOST_ROUNDS)) {
            let mut left = Vec::new();
            for mut entry in entries {
                let words = [Some(entry.policy.name()), entry.variant].into_iter().flatten();
                let words = words.collect::<Vec<_>>().join(", ");
                bench.progress.phase(&format!("{}, round {}: {words}", self.name, round + 1));
                match self.run(bench, &entry, system) {
                    Ok(outcome) => {
                        let expected = expected.get_or_insert_with(|| outcome.content.clone());
                        entry.changed_bytes +=
                            outcome.wrong + differing(expected, &outcome.content);
                        entry.runs.push(outcome.figures);
                        left.push(entry);
                    }
                    Err(Error::Failed(why)) => {
                        let metric = format!("{}_time", self.name);
                        let row = Row::skipped(entry.policy.name(), &metric, why);
                        bench.report.row(row.size_bytes(self.bytes).variant(entry.variant));
                    }
                    Err(error) => return Err(error),
                }
            }
            // The order alternates, which spreads a drift of the machine's speed over all.
            left.reverse();
            entries = left;
        }
        let place =
            |entry: &Entry| HugePagePolicy::RIVALS.iter().position(|rival| *rival == entry.policy);
        entries.sort_by_key(|entry| (entry.variant, place(entry)));
        entries.iter().for_each(|entry| self.push(bench, entry));
        system.set(&Settings::NEVER)
    }

    fn run(&self, bench: &Bench<'_>, entry: &Entry, system: &System) -> Result<Outcome> {
        let (policy, stop) = (entry.policy, bench.stop);
        let settings = policy.settings()?;
        system.set(&Settings::NEVER)?;
        let free = self.bytes / FREE_SHARE / CHUNK_BYTES as u64;
        let _fragmented = match entry.variant {
            Some(_) => Some(Fragmented::with(bench, self.bytes * FRAGMENTED_SHARE, free)?),
            None => {
                warm(ByteCount(self.bytes), stop)?;
                None
            }
        };
        system.set(&settings)?;
        let group = Group::new()?;
        let daemon = match policy {
            HugePagePolicy::Cowslip => {
                let directory = group.directory().display().to_string();
                Some(Daemon::start(&[], &["--cgroup", &directory], DAEMON)?)
            }
            _ => None,
        };
        let [out, err] = ["out", "err"].map(|name| self.folder.path().join(name));
        let mut command = group.command(&self.words[0]);
        command.args(&self.words[1..]).envs(policy.environment().iter().copied());
        let cpu_before = children_ns()?;
        let mut running = Running::start(&mut command, &out, &err)?;
        let began = Instant::now();
        let (mut memory_bytes, mut huge_bytes, mut reclaimed) = (0, 0, began);
        let status = loop {
            stop.check()?;
            if let Some(status) = running.ended()? {
                break status;
            }
            memory_bytes = memory_bytes.max(group.bytes_without_files()?);
            huge_bytes = huge_bytes.max(group.huge_bytes()?);
            if policy == HugePagePolicy::Reclaim && reclaimed.elapsed() >= RECLAIM {
                group.reclaim()?;
                reclaimed = Instant::now();
            }
            thread::sleep(LOOK);
        };
        let (took, cpu_ns) = (began.elapsed(), children_ns()? - cpu_before);
        if let Some(daemon) = daemon {
            daemon.end(stop)?;
        }
        if !status.success() {
            let said = fs::read_to_string(&err).unwrap_or_default();
            let last = said.lines().last().unwrap_or_default();
            let why = format!("{} ended with {status}: {last}; {}", self.words[0], self.needs);
            return Err(Error::Failed(why));
        }
        let text = fs::read(&out).map_err(during("read the printed text of a program"))?;
        let mut outcome = (self.result)(&String::from_utf8_lossy(&text))?;
        let measured = [
            ("time", took.as_nanos() as f64, "ns"),
            ("cpu", cpu_ns as f64, "ns"),
            ("memory", memory_bytes as f64, "bytes"),
            ("huge", huge_bytes as f64, "bytes"),
        ];
        outcome.figures.extend(measured.map(|(metric, value, unit)| Figure {
            metric,
            stat: "p50",
            value,
            unit,
        }));
        Ok(outcome)
    }

    /// Adds the median of each figure.
    fn push(&self, bench: &mut Bench<'_>, entry: &Entry) {
        let Some(first) = entry.runs.first() else { return };
        let name = entry.policy.name();
        for (at, Figure { metric, stat, unit, .. }) in first.iter().enumerate() {
            let values: Vec<_> = entry.runs.iter().map(|run| run[at].value).collect();
            let metric = format!("{}_{metric}", self.name);
            let value = median(&values).unwrap_or(f64::NAN);
            let row = Row::new(name, &metric, stat, value, unit).size_bytes(self.bytes);
            bench.report.row(row.variant(entry.variant).n(values.len() as u64));
        }
        let variant = [Some(self.name), entry.variant].into_iter().flatten();
        let variant = variant.collect::<Vec<_>>().join(", ");
        let changed = entry.changed_bytes as f64;
        let row = Row::new(name, BYTES_CHANGED, "value", changed, "bytes").size_bytes(self.bytes);
        bench.report.row(row.variant(variant.as_str()));
    }
}

/// The number of bytes that differ, or are missing on one side.
pub(super) fn differing(expected: &[u8], found: &[u8]) -> u64 {
    let differing = expected.iter().zip(found).filter(|(a, b)| a != b).count();
    (differing + expected.len().abs_diff(found.len())) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_other_byte_counts() {
        assert_eq!(differing(b"a model", b"a model"), 0);
        assert_eq!(differing(b"a model", b"a nodel"), 1);
        assert_eq!(differing(b"a model", b"a mo"), 3);
        assert_eq!(differing(b"", b"ab"), 2);
    }
}
