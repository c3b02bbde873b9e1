//! Cost of writes while a forked child lives, by the share of written pages: time, and memory besides the child's. Then
//! a second fork while the first child, which shares nothing with its parent any more, lives on.

use std::fs;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use crate::report::Row;
use cowslip::units::{ByteCount, CHUNK_BYTES, page_size_bytes};
use cowslip_sys::process;

use super::{Bench, MIB, Options, mix};
use crate::demo::redis::memory::used_bytes;
use crate::error::{Result, during};
use crate::host::warm;
use crate::interleaved::{Entry, Interleaved};
use crate::interrupt::Interrupt;
use crate::mechanisms::MechanismKind;
use crate::memory::Memory;
use crate::rows::{median, push_durations};

/// Processor time of the writing thread, processor time of all threads, and elapsed time, each for all writes.
pub(super) const WRITER_CPU: &str = "fork_curve_writer_cpu";
pub(super) const CPU: &str = "fork_curve_cpu";
const TIME: &str = "fork_curve_time";
/// The most memory that was not there before the fork.
pub(super) const EXTRA: &str = "fork_curve_extra_bytes";
/// Time of a fork after all memory was rewritten under another child.
pub(super) const REWRITTEN: &str = "fork_pause_rewritten";

const KINDS: [MechanismKind; 4] = [
    MechanismKind::Fork4k,
    MechanismKind::ForkThp,
    MechanismKind::ForkHugetlb,
    MechanismKind::CowslipFork,
];
/// Larger memory shows nothing more.
const MOST_BYTES: u64 = 512 * MIB;
/// Shares of a run with `--full`, in hundredths of a percent.
const ALL_SHARES: [u32; 8] = [1, 10, 100, 500, 1000, 2500, 5000, ALL];
const SHARES: [u32; 4] = [10, 100, 1000, ALL];
const ALL: u32 = 10_000;
const LEAST_ROUNDS: u32 = 1;
const MOST_ROUNDS: u32 = 5;
/// The number of times that memory use is read between the writes. The time of writes excludes the reading.
const LOOKS: usize = 16;
/// Time that other threads go on after the last write.
const REST: Duration = Duration::from_millis(100);

/// The written pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Case {
    in_order: bool,
    /// The share of the pages, in hundredths of a percent.
    share: u32,
}

impl Case {
    pub(super) const ALL_IN_ORDER: Self = Self { in_order: true, share: ALL };

    /// Random writes of shares from this percentage on.
    pub(super) fn random(from_percent: u32) -> impl Iterator<Item = Self> {
        let all = ALL_SHARES.into_iter().map(|share| Self { in_order: false, share });
        all.filter(move |case| case.share >= from_percent * 100)
    }

    pub(super) fn every() -> impl Iterator<Item = Self> {
        Self::all(&ALL_SHARES)
    }

    fn all(shares: &[u32]) -> impl Iterator<Item = Self> {
        let both = |in_order| shares.iter().map(move |&share| Self { in_order, share });
        both(false).chain(both(true))
    }

    pub(super) fn variant(self) -> String {
        let order = if self.in_order { "in order" } else { "random" };
        format!("{order} {} %", f64::from(self.share) / 100.0)
    }

    /// The pages, each once.
    fn pages(self, pages: usize) -> Vec<u32> {
        let written = (pages * self.share as usize / ALL as usize).max(1);
        let mut order: Vec<u32> = (0..pages as u32).collect();
        if !self.in_order {
            for at in 0..written {
                let other = at + (mix(at as u64 + 1) % (pages - at) as u64) as usize;
                order.swap(at, other);
            }
        }
        order.truncate(written);
        order
    }
}

/// Results of a case, one value a round.
#[derive(Default)]
struct Log {
    writer_cpu_ns: Vec<f64>,
    cpu_ns: Vec<f64>,
    time_ns: Vec<f64>,
    extra_bytes: Vec<f64>,
    rewritten_ns: Vec<f64>,
}

/// Memory of the curve, for a bench with this working memory.
pub(super) fn bytes(working_bytes: u64) -> u64 {
    working_bytes.min(MOST_BYTES)
}

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let bytes = bytes(options.working_bytes() as u64) as usize;
    let shares = if bench.clock.is_full() { &ALL_SHARES[..] } else { &SHARES };
    let cases: Vec<_> = Case::all(shares).collect();
    bench.progress.phase("writes by their share: filling memory");
    let mut entries = Interleaved::open(bench, &KINDS, |_| CPU.to_owned(), bytes, Vec::<Log>::new)?;
    for (i, &case) in cases.iter().enumerate() {
        bench.progress.phase(&format!("writes by their share: {}", case.variant()));
        let pages = case.pages(bytes / page_size_bytes());
        entries.each(bench, |entry, _| {
            entry.log.push(Log::default());
            Ok(())
        })?;
        let share = 1.0 / (cases.len() - i) as f64;
        // The first round warms up.
        for round in bench.clock.rounds(share, 1 + LEAST_ROUNDS, 1 + MOST_ROUNDS) {
            entries
                .each(bench, |entry, stop| measure_once(entry, case, &pages, round > 0, stop))?;
        }
    }
    for (kind, logs) in entries.finish() {
        for (case, log) in cases.iter().zip(&logs) {
            push(bench, kind, bytes as u64, *case, log);
        }
    }
    Ok(())
}

fn measure_once(
    entry: &mut Entry<Vec<Log>>,
    case: Case,
    pages: &[u32],
    counts: bool,
    stop: &Interrupt,
) -> Result<()> {
    entry.mechanism.renew()?;
    entry.mechanism.memory().touch(stop)?;
    // The most that is copied.
    let chunks = pages.len().min(entry.mechanism.memory().chunks());
    warm(ByteCount((chunks * CHUNK_BYTES) as u64), stop)?;
    let before = in_use_bytes()?;
    entry.mechanism.snapshot()?;
    let written = write(entry.mechanism.memory(), pages)?;
    let again = match case {
        Case { share: ALL, in_order: false } => Some(entry.mechanism.snapshot()?),
        _ => None,
    };
    let log = entry.log.last_mut().filter(|_| counts);
    if let Some(log) = log {
        log.writer_cpu_ns.push(written.writer_cpu_ns as f64);
        log.cpu_ns.push(written.cpu_ns as f64);
        log.time_ns.push(written.time_ns as f64);
        log.extra_bytes.push(written.most_bytes.saturating_sub(before) as f64);
        log.rewritten_ns.extend(again.map(|paused| paused.as_nanos() as f64));
    }
    entry.mechanism.release()
}

/// Cost of writing.
#[derive(Default)]
struct Written {
    writer_cpu_ns: u64,
    cpu_ns: u64,
    time_ns: u64,
    most_bytes: u64,
}

/// Writes a word of each page, and looks at the machine's memory now and then.
fn write(memory: &Memory, pages: &[u32]) -> Result<Written> {
    let mut written = Written::default();
    let (all_began, own_began) = (process::cpu_ns(), process::thread_cpu_ns());
    for part in pages.chunks(pages.len().div_ceil(LOOKS)) {
        let (began, writer) = (Instant::now(), process::thread_cpu_ns());
        for &page in part {
            memory.page(page as usize).fetch_add(1, Relaxed);
        }
        written.writer_cpu_ns += process::thread_cpu_ns() - writer;
        written.time_ns += began.elapsed().as_nanos() as u64;
        written.most_bytes = written.most_bytes.max(in_use_bytes()?);
    }
    // Other threads go on for a while after the writes.
    thread::sleep(REST);
    written.most_bytes = written.most_bytes.max(in_use_bytes()?);
    let (all, own) = (process::cpu_ns() - all_began, process::thread_cpu_ns() - own_began);
    written.cpu_ns = written.writer_cpu_ns + all.saturating_sub(own);
    Ok(written)
}

/// Memory of all processes that is in no file, page tables, and the allocated pages of the pool of huge pages.
fn in_use_bytes() -> Result<u64> {
    let path = "/proc/meminfo";
    let text = fs::read_to_string(path).map_err(during(path))?;
    let number = |field: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(field));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok())
    };
    let pool = (|| Some(number("HugePages_Total:")? - number("HugePages_Free:")?))();
    Ok(used_bytes()? + pool.unwrap_or(0) * CHUNK_BYTES as u64)
}

fn push(bench: &mut Bench<'_>, kind: MechanismKind, size_bytes: u64, case: Case, log: &Log) {
    let variant = case.variant();
    let row = |metric, unit| {
        let row = Row::new(kind.name(), metric, "", 0.0, unit).size_bytes(size_bytes);
        row.variant(variant.as_str())
    };
    for (metric, ns) in [
        (WRITER_CPU, &log.writer_cpu_ns),
        (CPU, &log.cpu_ns),
        (TIME, &log.time_ns),
        (REWRITTEN, &log.rewritten_ns),
    ] {
        push_durations(bench.report, &row(metric, "ns"), ns);
    }
    if let Some(bytes) = median(&log.extra_bytes) {
        let row = Row { stat: "p50".to_owned(), value: Some(bytes), ..row(EXTRA, "bytes") };
        bench.report.row(row.n(log.extra_bytes.len() as u64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_is_written_once_and_as_many_as_were_asked_for() {
        const PAGES: usize = 5_000;
        for case in Case::every() {
            let mut pages = case.pages(PAGES);
            let is_in_order = pages.is_sorted();
            assert_eq!(is_in_order, case.in_order || pages.len() == 1, "{case:?}");
            assert_eq!(pages.len(), (PAGES * case.share as usize / 10_000).max(1));
            pages.sort_unstable();
            pages.dedup();
            assert_eq!(pages.len(), (PAGES * case.share as usize / 10_000).max(1));
            assert!(pages.iter().all(|&page| (page as usize) < PAGES));
        }
        let many: Vec<_> = Case::random(10).map(Case::variant).collect();
        assert_eq!(many, ["random 10 %", "random 25 %", "random 50 %", "random 100 %"]);
    }
}
