//! A tenth of the memory, touched in the way of a program that comes back to work.
//!
//! Programs touch little of their memory at first, again and again, and related data lies together: a tenth of the
//! pages, in an eighth of the chunks, which are scattered. The next page to touch is drawn by Zipf's law (the page of
//! rank r with weight 1 / r, the pages of a chunk in neighbouring ranks); only a page's first touch counts, so it is
//! drawn without replacement. Each run draws anew: the recording is the set, not the order.

use std::time::Instant;

use crate::report::Row;
use cowslip::units::{CHUNK_BYTES, page_size_bytes};

use super::method::{Cache, Job, RestoreMethod};
use super::observed::{Observed, Touching, Work};
use super::sample::{Sample, View, word};
use super::{Bench, Error, Result};
use crate::rows::{median, push_durations};

pub(super) const WHOLE: &str = "working_set_whole";
pub(super) const WRONG: &str = "working_set_wrong_bytes";
/// Hybrid restores from a cold cache, with the record of an earlier run.
pub(super) const RECORDED: &str = "cold, recorded";
pub(super) const UNRECORDED: &str = "cold";

const LEAST_ROUNDS: u32 = 1;
/// One page in this many is in the set.
const PAGES: usize = 10;
/// The set lies in one chunk in this many.
const CHUNKS: usize = 8;
const WHAT: &str = "a tenth of the pages in an eighth of the chunks, scattered; first touches drawn by \
                    Zipf's law with exponent 1, by another draw each run";

/// Any page of the memory, with equal probability.
pub(super) fn random_page(bytes: usize, draw: u32) -> usize {
    word(draw as usize + (1 << 40)) as usize % (bytes / page_size_bytes())
}

/// The pages of the set, in the order of a draw.
pub(super) fn order(bytes: usize, draw: u32) -> Vec<usize> {
    let in_chunk = CHUNK_BYTES / page_size_bytes();
    let chunks = bytes / CHUNK_BYTES;
    let hot_chunks = (chunks / CHUNKS).max(1);
    let hot_pages = (chunks * in_chunk / PAGES / hot_chunks).clamp(1, in_chunk);
    // The same set for every draw.
    let picked = |of: usize, count: usize, salt: usize| {
        let mut all: Vec<usize> = (0..of).collect();
        all.sort_by_key(|&i| word(i + (salt << 32)));
        all.truncate(count);
        all
    };
    let hot = picked(chunks, hot_chunks, 1).into_iter();
    let pages: Vec<usize> = hot
        .flat_map(|chunk| {
            let pages = picked(in_chunk, hot_pages, 2 + chunk).into_iter();
            pages.map(move |page| chunk * in_chunk + page)
        })
        .collect();
    // Efraimidis and Spirakis: the smallest of the exponential variables first.
    let time = |rank: usize| {
        let uniform = (word(rank + ((draw as usize) << 24)) >> 11) as f64 / (1u64 << 53) as f64;
        -(1.0 - uniform).ln() * (rank + 1) as f64
    };
    let mut drawn: Vec<(f64, usize)> =
        pages.into_iter().enumerate().map(|(rank, page)| (time(rank), page)).collect();
    drawn.sort_by(|a, b| a.0.total_cmp(&b.0));
    drawn.into_iter().map(|(_, page)| page).collect()
}

/// Touches the pages in `order`; `began` is the start of the restore.
pub(super) fn touch(view: View, order: &[usize], began: Instant) -> Touching {
    let ns = |from: Instant| from.elapsed().as_nanos() as f64;
    let mut touching =
        Touching { first_ns: 0.0, tenth_ns: 0.0, whole_ns: 0.0, longest_ns: 0.0, wrong_bytes: 0 };
    for (i, &page) in order.iter().enumerate() {
        let before = Instant::now();
        let (is, should) = view.page(page);
        touching.longest_ns = touching.longest_ns.max(ns(before));
        touching.wrong_bytes += if is == should { 0 } else { size_of::<u64>() as u64 };
        if i == 0 {
            touching.first_ns = ns(began);
        }
        if i == order.len() / 10 {
            touching.tenth_ns = ns(began);
        }
    }
    touching.whole_ns = ns(began);
    touching
}

/// A method, with or without a record, and its results.
struct Entry {
    method: RestoreMethod,
    cache: Cache,
    recorded: bool,
    seen: std::result::Result<Vec<Observed>, String>,
}

pub(super) fn measure(bench: &mut Bench<'_>, sample: &Sample, rounds: u32) -> Result<()> {
    bench.report.params.insert("working_set".into(), WHAT.into());
    let mut entries = Vec::new();
    let is_full = bench.clock.is_full();
    for cache in Cache::ALL {
        // A served template has no file to read from. Methods that cannot win from a cold cache are left out of both.
        let methods = RestoreMethod::all().filter(|method| {
            *method != RestoreMethod::Resident && method.is_measured(Cache::Cold, is_full)
        });
        for method in methods {
            for recorded in [false, true] {
                if !recorded || method == RestoreMethod::HYBRID {
                    entries.push(Entry { method, cache, recorded, seen: Ok(Vec::new()) });
                }
            }
        }
    }
    bench.progress.phase("restore: recording a working set");
    sample.link("unrecorded")?;
    let path = sample.link("recorded")?;
    let recording = Job {
        sample,
        method: RestoreMethod::HYBRID,
        cache: Cache::Hot,
        work: Work::WorkingSet,
        path,
        socket: None,
        record: true,
        order: 0,
    };
    let recorded = match recording.run(bench.stop) {
        Err(Error::Failed(why)) => Err(why),
        recorded => Ok(recorded?),
    };
    for round in bench.clock.rounds(1.0, LEAST_ROUNDS.min(rounds), rounds) {
        bench.progress.phase(&format!("restore: a working set, round {} of {rounds}", round + 1));
        let count = entries.len() as u64;
        for (done, entry) in entries.iter_mut().enumerate() {
            bench.progress.set(done as u64, count);
            if let (true, Err(why)) = (entry.recorded, &recorded) {
                entry.seen = Err(why.clone());
            }
            entry.measure(bench, sample, round + 1)?;
        }
    }
    entries.iter().for_each(|entry| entry.push(bench, sample.bytes()));
    Ok(())
}

impl Entry {
    fn measure(&mut self, bench: &Bench<'_>, sample: &Sample, order: u32) -> Result<()> {
        let Ok(seen) = &mut self.seen else { return Ok(()) };
        let name = if self.recorded { "recorded" } else { "unrecorded" };
        let job = Job {
            sample,
            method: self.method,
            cache: self.cache,
            work: Work::WorkingSet,
            path: sample.folder.path().join(name),
            socket: None,
            record: false,
            order,
        };
        match job.run(bench.stop) {
            Ok(observed) => seen.push(observed),
            Err(Error::Failed(why)) => self.seen = Err(why),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn variant(&self) -> &'static str {
        match (self.cache, self.recorded) {
            (Cache::Hot, false) => "hot",
            (Cache::Hot, true) => "hot, recorded",
            (Cache::Cold, false) => UNRECORDED,
            (Cache::Cold, true) => RECORDED,
        }
    }

    fn push(&self, bench: &mut Bench<'_>, bytes: u64) {
        let name = self.method.name();
        let row = |metric| {
            let row = Row::new(name, metric, "", 0.0, "ns").size_bytes(bytes);
            row.variant(self.variant())
        };
        let seen = match &self.seen {
            Ok(seen) => seen,
            Err(why) => {
                let skipped = Row::skipped(name, WHOLE, why.as_str()).size_bytes(bytes);
                return bench.report.row(skipped.variant(self.variant()));
            }
        };
        type Duration = fn(&Touching) -> f64;
        let durations: [(&str, Duration); 4] = [
            ("working_set_first_touch", |touch| touch.first_ns),
            ("working_set_tenth", |touch| touch.tenth_ns),
            (WHOLE, |touch| touch.whole_ns),
            ("working_set_longest_access", |touch| touch.longest_ns),
        ];
        let touching: Vec<Touching> =
            seen.iter().filter_map(|observed| observed.working_set).collect();
        for (metric, duration) in durations {
            let values: Vec<f64> = touching.iter().map(duration).collect();
            push_durations(bench.report, &row(metric), &values);
        }
        let complete: Vec<f64> = seen.iter().map(|observed| observed.complete_ns).collect();
        if let Some(ns) = median(&complete) {
            let row = Row { stat: "p50".into(), value: Some(ns), ..row("working_set_complete") };
            bench.report.row(row.n(complete.len() as u64));
        }
        let wrong: u64 = seen.iter().map(|observed| observed.wrong_bytes).sum();
        let wrong = wrong + touching.iter().map(|touch| touch.wrong_bytes).sum::<u64>();
        let row = Row { value: Some(wrong as f64), unit: "bytes", ..row(WRONG) };
        bench.report.row(Row { stat: "value".into(), ..row }.n(seen.len() as u64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn draws_differ_in_order_but_not_in_what_they_draw() {
        let bytes = 128 * CHUNK_BYTES;
        let (first, second) = (order(bytes, 1), order(bytes, 2));
        let set = |order: &[usize]| order.iter().copied().collect::<BTreeSet<_>>();
        assert_eq!(set(&first), set(&second));
        assert_ne!(first, second);
        assert_eq!(first.len(), set(&first).len(), "each once");
        let in_chunk = CHUNK_BYTES / page_size_bytes();
        let share = first.len() as f64 / (128 * in_chunk) as f64;
        assert!((0.095..=0.1).contains(&share), "{share}");
        let chunks: BTreeSet<_> = first.iter().map(|page| page / in_chunk).collect();
        assert_eq!(chunks.len(), 16);
        assert!(first.iter().all(|&page| page < 128 * in_chunk));
    }
}
