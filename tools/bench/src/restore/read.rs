//! The table of Vansa 2023 (see [`super`]): set up, then read a word of every page in order. Then the state after that.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use crate::report::{Report, Row};
use cowslip::TemplateServer;
use cowslip::image::{Image, RestoreOptions, Strategy};

use super::method::{Cache, Job, RestoreMethod};
use super::observed::{Observed, Reading, Work};
use super::sample::{Sample, View};
use super::{Bench, Error, MIB, Result, proceed};
use crate::error::during;
use crate::rows::{median, push_durations};

pub(super) const TOTAL: &str = "restore_total";
/// Touch of a page picked at random, another each round.
pub(super) const FIRST_TOUCH: &str = "restore_first_touch";
pub(super) const COVERAGE: &str = "restore_huge_coverage";
pub(super) const WRONG: &str = "restore_wrong_bytes";
const LEAST_ROUNDS: u32 = 1;
pub(super) const SETUP: &str = "restore_setup";
/// Time until no work is left: for an arena of a template, until it is independent of the template.
pub(super) const COMPLETE: &str = "restore_complete";
const READ: &str = "restore_read";
const PAGE: &str = "restore_page";

/// Reads page `first`, then all in order. One clock reading a page: a page's time includes it, as Vansa's does.
pub(super) fn read(view: View, first: usize) -> Reading {
    let began = Instant::now();
    black_box(view.page_word(first));
    let mut last = Instant::now();
    let first_ns = (last - began).as_nanos() as f64;
    let (mut min_ns, mut max_ns) = (f64::MAX, 0.0f64);
    for page in 0..view.pages() {
        black_box(view.page_word(page));
        let now = Instant::now();
        let ns = (now - last).as_nanos() as f64;
        last = now;
        min_ns = min_ns.min(ns);
        max_ns = max_ns.max(ns);
    }
    let total_ns = (last - began).as_nanos() as f64;
    Reading { first_ns, total_ns, min_ns, max_ns, pages: view.pages() as f64 }
}

/// Results of the processes of one method, with one state of the cache.
struct Entry {
    method: RestoreMethod,
    cache: Cache,
    seen: std::result::Result<Vec<Observed>, String>,
}

pub(super) fn measure(bench: &mut Bench<'_>, sample: &Sample, rounds: u32) -> Result<()> {
    bench.progress.phase("restore: loading the resident image");
    let options = RestoreOptions { strategy: Strategy::Eager, ..RestoreOptions::default() };
    let began = Instant::now();
    let loaded = Image::open(&sample.image())?.restore(0, &options, &mut proceed)?.into_arena();
    let template = loaded.freeze()?.into_template()?;
    let load_ns = began.elapsed().as_nanos() as f64;
    drop(loaded);
    let row = Row::new("resident", "restore_resident_load", "value", load_ns, "ns");
    bench.report.row(row.size_bytes(sample.bytes()));
    let socket = sample.folder.path().join("socket");
    let serving = TemplateServer::start(template, &socket).map_err(during("serve a template"))?;

    let is_full = bench.clock.is_full();
    let mut entries = Vec::new();
    for method in RestoreMethod::all() {
        let caches = Cache::ALL.into_iter().filter(|&cache| method.is_measured(cache, is_full));
        entries.extend(caches.map(|cache| Entry { method, cache, seen: Ok(Vec::new()) }));
    }
    for round in bench.clock.rounds(1.0, LEAST_ROUNDS.min(rounds), rounds) {
        bench.progress.phase(&format!("restore: reading all, round {} of {rounds}", round + 1));
        let count = entries.len() as u64;
        for (done, entry) in entries.iter_mut().enumerate() {
            bench.progress.set(done as u64, count);
            entry.measure(bench, sample, &socket, round)?;
        }
    }
    drop(serving);
    entries.iter().for_each(|entry| entry.push(bench.report, sample.bytes()));
    let size = Some(sample.bytes());
    let huge = bench.report.find("mmap-huge", COVERAGE, "value", size, Some(Cache::Hot.name()));
    if huge.is_some_and(|huge| huge < 0.5) {
        bench.report.notes.push(format!(
            "mmap-huge: the file system of {} gave the page cache too few folios of 2 MiB",
            sample.folder.path().display()
        ));
    }
    Ok(())
}

impl Entry {
    fn measure(
        &mut self,
        bench: &Bench<'_>,
        sample: &Sample,
        socket: &Path,
        round: u32,
    ) -> Result<()> {
        let Ok(seen) = &mut self.seen else { return Ok(()) };
        let job = Job {
            sample,
            method: self.method,
            cache: self.cache,
            work: Work::Read,
            // A name of its own, because the process saves to it.
            path: sample.link("image-of-this-round")?,
            socket: self.method.is_of_template().then_some(socket),
            record: false,
            order: round,
        };
        match job.run(bench.stop) {
            Ok(observed) => seen.push(observed),
            Err(Error::Failed(why)) => self.seen = Err(why),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn push(&self, report: &mut Report, bytes: u64) {
        let (name, variant) = (self.method.name(), self.cache.name());
        let row = |metric| Row::new(name, metric, "", 0.0, "ns").size_bytes(bytes).variant(variant);
        let seen = match &self.seen {
            Ok(seen) => seen,
            Err(why) => {
                let skipped = Row::skipped(name, TOTAL, why.as_str());
                return report.row(skipped.size_bytes(bytes).variant(variant));
            }
        };
        type Duration = fn(&Observed) -> Option<f64>;
        let durations: [(&str, Duration); 7] = [
            (SETUP, |observed| Some(observed.setup_ns)),
            (FIRST_TOUCH, |observed| Some(observed.setup_ns + observed.reading?.first_ns)),
            (READ, |observed| Some(observed.reading?.total_ns)),
            (TOTAL, |observed| Some(observed.setup_ns + observed.reading?.total_ns)),
            (COMPLETE, |observed| Some(observed.complete_ns)),
            ("checkpoint_again_freeze", |observed| Some(observed.again.as_ref()?.freeze_ns)),
            ("checkpoint_again", |observed| Some(observed.again.as_ref()?.save_ns)),
        ];
        for (metric, duration) in durations {
            let values: Vec<f64> = seen.iter().filter_map(duration).collect();
            push_durations(report, &row(metric), &values);
        }
        if seen.iter().all(|observed| observed.again.is_none()) {
            let why = "the memory is in no arena: it would have to be copied before it is saved";
            let skipped = Row::skipped(name, "checkpoint_again", why);
            report.row(skipped.size_bytes(bytes).variant(variant));
        }
        let n = seen.len() as u64;
        let pages: Vec<Reading> = seen.iter().filter_map(|observed| observed.reading).collect();
        let means: Vec<f64> =
            pages.iter().map(|reading| reading.total_ns / reading.pages).collect();
        let stats = [
            ("avg", median(&means)),
            ("min", pages.iter().map(|reading| reading.min_ns).reduce(f64::min)),
            ("max", pages.iter().map(|reading| reading.max_ns).reduce(f64::max)),
        ];
        for (stat, value) in stats {
            if let Some(value) = value {
                report.row(Row { stat: stat.into(), value: Some(value), ..row(PAGE) }.n(n));
            }
        }
        let data = bytes as f64;
        type Value = (&'static str, &'static str, fn(&Observed, f64) -> f64);
        let values: [Value; 7] = [
            (COVERAGE, "ratio", |observed, data| observed.state.huge_bytes as f64 / data),
            ("restore_rss_over_data", "ratio", |observed, data| {
                observed.state.rss_bytes as f64 / data
            }),
            ("restore_shmem_over_data", "ratio", |observed, data| {
                observed.state.shmem_bytes as f64 / data
            }),
            ("restore_memory_over_data", "ratio", |observed, data| {
                (observed.state.rss_bytes + observed.state.shmem_bytes) as f64 / data
            }),
            (WRONG, "bytes", |observed, _| observed.wrong_bytes as f64),
            ("restore_is_registered", "count", |observed, _| {
                f64::from(u8::from(observed.state.is_registered))
            }),
            ("restore_is_tied_to_file", "count", |observed, _| {
                f64::from(u8::from(observed.state.maps_file))
            }),
        ];
        for (metric, unit, value) in values {
            let values: Vec<f64> = seen.iter().map(|observed| value(observed, data)).collect();
            // The mean would hide values that must never occur.
            let worst = metric == WRONG;
            let value = if worst { values.into_iter().reduce(f64::max) } else { median(&values) };
            if let Some(value) = value {
                report.row(
                    Row { unit, stat: "value".into(), value: Some(value), ..row(metric) }.n(n),
                );
            }
        }
    }
}

/// Vansa's second table, nanoseconds: set up, TOTAL, AVG, MIN, MAX. (Its AVG is below TOTAL / pages; the average here
/// is the printed one.)
pub(super) fn push_published(report: &mut Report) {
    const TABLE: [(&str, Option<f64>, [f64; 4]); 6] = [
        ("mapped file", Some(872.0), [35_825_555.0, 258.0, 12.0, 31_720.0]),
        ("mapped file, populated", Some(20_329_669.0), [8_158_203.0, 47.0, 12.0, 8_432.0]),
        ("uffd 4 KiB, copy", None, [673_848_374.0, 5_122.0, 4_305.0, 285_817.0]),
        ("uffd 4 KiB, remap", None, [1_126_162_943.0, 8_573.0, 7_070.0, 203_940.0]),
        ("uffd hugetlb, copy", None, [105_654_950.0, 412_537.0, 356_688.0, 2_008_166.0]),
        ("uffd hugetlb, remap", None, [165_370_794.0, 645_807.0, 575_171.0, 3_516_155.0]),
    ];
    for (variant, setup, [total, avg, min, max]) in TABLE {
        let mut push = |metric, stat, ns| {
            let row = Row::new("Vansa 2023", metric, stat, ns, "ns").size_bytes(512 * MIB);
            report.row(row.variant(variant));
        };
        if let Some(setup) = setup {
            push(SETUP, "value", setup);
        }
        push(READ, "value", total);
        for (stat, ns) in [("avg", avg), ("min", min), ("max", max)] {
            push(PAGE, stat, ns);
        }
    }
    let note = "Vansa 2023 (https://mail.openjdk.org/pipermail/crac-dev/2023-May/thread.html): published figures of another machine, hot cache; on hugetlb its pages are of \
                2 MiB, so that its average, min and max are of 2 MiB";
    report.notes.push(note.to_owned());
}
