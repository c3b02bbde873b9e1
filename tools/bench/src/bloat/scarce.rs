//! Programs with weights of one and nine, where huge pages are scarce and stay so: pages that the kernel cannot move lie
//! everywhere. Those of weight one start first. All read and write at random all the time.

use cowslip::units::CHUNK_BYTES;

use super::daemon::Daemon;
use super::fragment::Fragmented;
use super::policy::HugePagePolicy;
use super::process::{Command, Said};
use super::settings::{Settings, System};
use super::target::{Target, huge_bytes};
use super::{Bench, Options, Result};
use crate::error::Error;
use crate::report::Row;
use crate::rows::median;

/// The part of all huge pages that the wrong programs hold, by the weights.
pub(super) const ERROR: &str = "scarce_share_error";
/// Steps of all programs a second.
pub(super) const STEPS: &str = "scarce_steps";
const HUGE: &str = "scarce_huge";

const WEIGHTS: [u32; 2] = [1, 9];
pub(super) const NUMBERS: [usize; 2] = [2, 8];
/// Memory of all programs, over the huge pages that are there.
const FREE_SHARE: u64 = 4;
/// Time that the early programs are alone, and that promoters have.
const ALONE_MS: u64 = 3_000;
const SETTLING_MS: u64 = 20_000;
const MEASURED_MS: u64 = 5_000;
const MOST_ROUNDS: u32 = 3;
/// Makes a run of seconds contain some looks.
const DAEMON: &str = "interval_ms = 500\nsettle_ms = 500\n";

const POLICIES: [HugePagePolicy; 8] = [
    HugePagePolicy::Never,
    HugePagePolicy::Always,
    HugePagePolicy::Direct,
    HugePagePolicy::Defer,
    HugePagePolicy::Eager,
    HugePagePolicy::TenthAbsent,
    HugePagePolicy::Mthp,
    HugePagePolicy::Cowslip,
];

struct Entry {
    policy: HugePagePolicy,
    number: usize,
    runs: Vec<Outcome>,
}

struct Outcome {
    error: f64,
    steps: f64,
    /// Huge memory of the programs of each weight.
    huge_bytes: [u64; 2],
    changed_words: u64,
    free_huge_pages: u64,
}

pub(super) fn variant(number: usize) -> String {
    format!("{number} programs")
}

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options, system: &System) -> Result<()> {
    let bytes = options.working_bytes() as u64;
    let entry = |number| POLICIES.map(|policy| Entry { policy, number, runs: Vec::new() });
    let mut entries: Vec<_> = NUMBERS.into_iter().flat_map(entry).collect();
    for round in bench.clock.rounds(1.0, 1, options.runs.min(MOST_ROUNDS)) {
        for entry in &mut entries {
            let (name, number) = (entry.policy.name(), entry.number);
            bench.progress.phase(&format!("scarce, round {}: {number} on {name}", round + 1));
            match one_round(bench, entry, bytes, system) {
                Ok(outcome) => entry.runs.push(outcome),
                Err(Error::Failed(why)) if round == 0 => {
                    let row = Row::skipped(name, ERROR, why).size_bytes(bytes);
                    bench.report.row(row.variant(variant(number).as_str()));
                }
                Err(error) => return Err(error),
            }
        }
        // The order alternates, which spreads a drift of the machine's speed over all.
        entries.reverse();
    }
    entries.sort_by_key(|entry| {
        (entry.number, POLICIES.iter().position(|policy| *policy == entry.policy))
    });
    entries
        .iter()
        .filter(|entry| !entry.runs.is_empty())
        .for_each(|entry| push(bench, entry, bytes));
    bench.report.notes.push(format!(
        "scarce: {ERROR} is the part of all huge pages that the wrong programs hold, by the weights of 1 and 9; 0 is \
         right, 0.4 is what equal shares give while both want more, 0.9 is all in the hands of the early programs of weight 1. Only Cowslip \
         knows weights"
    ));
    system.set(&Settings::NEVER)
}

fn one_round(bench: &Bench<'_>, entry: &Entry, bytes: u64, system: &System) -> Result<Outcome> {
    let (stop, number) = (bench.stop, entry.number);
    let settings = entry.policy.settings()?;
    let mut targets =
        (0..number).map(|_| Target::known(system, stop)).collect::<Result<Vec<_>>>()?;
    let fragmented = Fragmented::pinned(bench, bytes / CHUNK_BYTES as u64 / FREE_SHARE)?;
    system.set(&settings)?;
    let weight = |index: usize| WEIGHTS[index * WEIGHTS.len() / number];
    let weighted: Vec<_> = targets
        .iter()
        .enumerate()
        .map(|(index, target)| format!("{}={}", target.pid(), weight(index)))
        .collect();
    let options: Vec<_> = weighted.iter().flat_map(|rule| ["--pid", rule.as_str()]).collect();
    let daemon = match entry.policy {
        HugePagePolicy::Cowslip => Some(Daemon::start(&[], &options, DAEMON)?),
        _ => None,
    };
    let fill = Command::Fill { bytes: bytes / number as u64, base: false };
    let (early, late) = targets.split_at_mut(number / 2);
    for target in &mut *early {
        target.tell(fill, stop)?;
    }
    work(early, ALONE_MS, bench)?;
    for target in late {
        target.tell(fill, stop)?;
    }
    work(&mut targets, SETTLING_MS, bench)?;
    let steps = work(&mut targets, MEASURED_MS, bench)?;
    let huge = targets.iter().map(|target| huge_bytes(target.pid())).collect::<Result<Vec<_>>>()?;
    if let Some(daemon) = daemon {
        daemon.end(stop)?;
    }
    let free_huge_pages = fragmented.free_huge_pages;
    drop(fragmented);
    let mut changed_words = 0;
    for target in &mut targets {
        match target.tell(Command::Check, stop)? {
            Said::Wrong(words) => changed_words += words,
            other => return Err(Error::Failed(format!("it said {other:?} of its content"))),
        }
    }
    system.set(&Settings::NEVER)?;
    let weights: Vec<_> = (0..number).map(|index| f64::from(weight(index))).collect();
    let (early, late) = huge.split_at(number / 2);
    let huge_bytes = [early.iter().sum(), late.iter().sum()];
    Ok(Outcome {
        error: in_wrong_hands(&huge, &weights, bytes / number as u64),
        steps,
        huge_bytes,
        changed_words,
        free_huge_pages,
    })
}

/// Has all of them work at the same time; returns their steps a second.
fn work(targets: &mut [Target], ms: u64, bench: &Bench<'_>) -> Result<f64> {
    for target in &mut *targets {
        target.ask(Command::Work { ms })?;
    }
    let mut sum = 0.0;
    for target in targets {
        match target.answer(bench.stop)? {
            Said::Worked { steps, ns } => sum += steps as f64 / ns as f64 * 1e9,
            other => return Err(Error::Failed(format!("it said {other:?} of its work"))),
        }
    }
    Ok(sum)
}

/// The part of the pages that has to change hands for shares by weight, of which a program has at most `most`; 1 if there
/// are no pages.
fn in_wrong_hands(held: &[u64], weights: &[f64], most: u64) -> f64 {
    let all = held.iter().sum::<u64>() as f64;
    if all == 0.0 {
        return 1.0;
    }
    let most = most as f64;
    let mut right = vec![0.0; held.len()];
    // A program that has all of its memory huge leaves its share to the others.
    loop {
        let open = |index: &usize| right[*index] < most;
        let wanting: Vec<_> = (0..held.len()).filter(open).collect();
        let left = all - right.iter().filter(|bytes| **bytes >= most).sum::<f64>();
        let sum: f64 = wanting.iter().map(|index| weights[*index]).sum();
        let mut is_full = true;
        for index in wanting {
            right[index] = left * weights[index] / sum;
            if right[index] > most {
                (right[index], is_full) = (most, false);
            }
        }
        if is_full {
            break;
        }
    }
    let excess = |(held, right): (&u64, &f64)| (*held as f64 - right).max(0.0);
    held.iter().zip(&right).map(excess).sum::<f64>() / all
}

fn push(bench: &mut Bench<'_>, entry: &Entry, bytes: u64) {
    let (name, variant, runs) = (entry.policy.name(), variant(entry.number), &entry.runs);
    let middle = |value: &dyn Fn(&Outcome) -> f64| {
        median(&runs.iter().map(value).collect::<Vec<_>>()).unwrap_or(f64::NAN)
    };
    let mut row = |metric: &str, variant: &str, value, unit| {
        let row = Row::new(name, metric, "value", value, unit).size_bytes(bytes);
        bench.report.row(row.variant(variant).n(runs.len() as u64));
    };
    row(ERROR, &variant, middle(&|run| run.error), "ratio");
    row(STEPS, &variant, middle(&|run| run.steps), "1/s");
    for (index, weight) in WEIGHTS.iter().enumerate() {
        let variant = format!("{variant}, those of weight {weight}");
        row(HUGE, &variant, middle(&|run| run.huge_bytes[index] as f64), "bytes");
    }
    row("scarce_free_huge_pages", &variant, middle(&|run| run.free_huge_pages as f64), "count");
    let changed_bytes: u64 = runs.iter().map(|run| run.changed_words * 8).sum();
    row(super::BYTES_CHANGED, &format!("scarce, {variant}"), changed_bytes as f64, "bytes");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_to_change_hands_is_counted_once() {
        let wrong = |held: &[u64], weights: &[f64], most: u64| {
            (in_wrong_hands(held, weights, most) * 100.0).round()
        };
        assert_eq!(wrong(&[10, 90], &[1.0, 9.0], 100), 0.0);
        assert_eq!(wrong(&[50, 50], &[1.0, 9.0], 100), 40.0);
        assert_eq!(wrong(&[100, 0], &[1.0, 9.0], 100), 90.0);
        assert_eq!(wrong(&[0, 0, 10, 30], &[1.0, 1.0, 1.0, 1.0], 40), 50.0);
        assert_eq!(wrong(&[0, 0], &[1.0, 9.0], 100), 100.0);
        assert_eq!(wrong(&[50, 50], &[1.0, 9.0], 50), 0.0, "both have all they want");
        assert_eq!(wrong(&[50, 40], &[1.0, 9.0], 50), 11.0, "10 of 90");
    }
}
