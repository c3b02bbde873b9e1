//! Clones of a template: mapping one, resetting it, and what many children weigh.

use std::fs;
use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use cowslip::units::{ByteCount, CHUNK_BYTES, page_size_bytes};
use cowslip::{Arena, ArenaSlice, Place, Template, TemplateClone};
use cowslip_report::{Latencies, Row};

use super::{Bench, GIB, Options, library};
use crate::child::{Child, Children};
use crate::error::{Error, Result, during};
use crate::memory::{Anonymous, Memory};
use crate::rivals::Kind;

/// Back to the template, after so many pages were written at random.
pub(super) const RESET: &str = "template_reset";
/// The same as a rate.
pub(super) const RATE: &str = "template_reset_rate";
/// As a rate, with the writes.
const CYCLES: &str = "template_cycle_rate";
const CLONE: &str = "template_clone";
/// Private memory and page tables of one of so many children that each wrote [`TYPICAL_PAGES`].
const CHILD: &str = "child_private_bytes";

const COWSLIP: &str = "cowslip";
const TYPICAL_PAGES: usize = 100;
/// Pages written, their variant, and how many resets.
const WRITTEN: [(usize, &str, u32); 3] =
    [(1, "1 page", 1_000), (TYPICAL_PAGES, TYPICAL, 1_000), (10_000, "10,000 pages", 30)];
pub(super) const TYPICAL: &str = "100 pages";
const CLONES: u32 = 300;
const CHILDREN: [(usize, &str); 3] = [(1, "1 child"), (10, "10 children"), (100, "100 children")];

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let bytes = options.working_bytes();
    let size = bytes as u64;
    let stock = [library::FIRST, library::AGAIN].map(|variant| {
        bench.report.find(Kind::Fork4k.rival(), library::METRIC, "p50", Some(size), Some(variant))
    });
    if stock.contains(&None) {
        bench.progress.phase(&format!("fork at {}, to compare", ByteCount(size)));
        let runs = options.runs.min(if size >= GIB { 5 } else { options.runs });
        library::measure_together(bench, &[Kind::Fork4k], size, runs)?;
    }
    bench.progress.phase(&format!("template of {}: filling an arena", ByteCount(size)));
    let arena = Arena::new(ByteCount(size))?;
    let mut words = arena.slice::<u64>(bytes / size_of::<u64>())?;
    words.iter_mut().enumerate().for_each(|(i, word)| *word = i as u64);
    let template = arena.freeze()?.into_template()?;
    measure_resets(bench, &template, &words)?;
    measure_clones(bench, &template, size)?;
    let mut clone = template.map(Place::Anywhere)?;
    push_children(bench, COWSLIP, size, || {
        write_pages(&mut clone, &words, TYPICAL_PAGES, &mut Scatter(1));
    })?;
    drop((clone, template, words, arena));
    let memory = Memory::anonymous(bytes, Anonymous::Base)?;
    memory.touch(bench.stop)?;
    memory.offer_to_children(true)?;
    push_children(bench, Kind::Fork4k.rival(), size, || {
        let mut scatter = Scatter(1);
        (0..TYPICAL_PAGES)
            .for_each(|_| memory.page(scatter.below(memory.pages())).store(1, Relaxed));
    })
}

fn measure_resets(
    bench: &mut Bench<'_>,
    template: &Template,
    words: &ArenaSlice<u64>,
) -> Result<()> {
    let size = words.range().len as u64;
    for (pages, variant, runs) in WRITTEN {
        bench.progress.phase(&format!("resets, {variant} written"));
        let mut clone = template.map(Place::Anywhere)?;
        let mut resets = Latencies::new();
        let (mut writing, mut resetting) = (Duration::ZERO, Duration::ZERO);
        let mut scatter = Scatter(1);
        // A tenth more, to warm up.
        for run in 0..runs + runs / 10 {
            bench.stop.check()?;
            // As in a worker that reads a lot: a huge entry for each chunk that can have one.
            clone.slice(words).iter().step_by(CHUNK_BYTES / 8).for_each(|word| _ = black_box(word));
            let began = Instant::now();
            write_pages(&mut clone, words, pages, &mut scatter);
            let written = began.elapsed();
            let began = Instant::now();
            clone.reset()?;
            let reset = began.elapsed();
            if run >= runs / 10 {
                resets.record(reset);
                writing += written;
                resetting += reset;
            }
        }
        if clone.slice(words).iter().enumerate().any(|(i, &word)| word != i as u64) {
            return Err(Error::Failed("a reset left something behind".to_owned()));
        }
        resets.push(bench.report, COWSLIP, RESET, Some(size), Some(variant));
        for (metric, time) in [(RATE, resetting), (CYCLES, writing + resetting)] {
            let rate = f64::from(runs) / time.as_secs_f64();
            let row = Row::new(COWSLIP, metric, "value", rate, "1/s").n(u64::from(runs));
            bench.report.row(row.size_bytes(size).variant(variant));
        }
    }
    Ok(())
}

fn measure_clones(bench: &mut Bench<'_>, template: &Template, size: u64) -> Result<()> {
    bench.progress.phase("clones in this process");
    let mut latencies = Latencies::new();
    for _ in 0..CLONES {
        bench.stop.check()?;
        let began = Instant::now();
        let clone = template.map(Place::Anywhere)?;
        latencies.record(began.elapsed());
        drop(clone);
    }
    latencies.push(bench.report, COWSLIP, CLONE, Some(size), None);
    Ok(())
}

struct Scatter(u64);

impl Scatter {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (((self.0 >> 32) * end as u64) >> 32) as usize
    }
}

fn write_pages(
    clone: &mut TemplateClone,
    words: &ArenaSlice<u64>,
    pages: usize,
    scatter: &mut Scatter,
) {
    let words = clone.slice_mut(words);
    let in_page = page_size_bytes() / size_of::<u64>();
    for _ in 0..pages {
        words[scatter.below(words.len() / in_page) * in_page] = u64::MAX;
    }
}

/// Weighs children, one, ten and a hundred at a time, that each do `work` on memory they were forked with.
fn push_children(
    bench: &mut Bench<'_>,
    rival: &str,
    size: u64,
    mut work: impl FnMut(),
) -> Result<()> {
    for (count, variant) in CHILDREN {
        bench.progress.phase(&format!("memory of {variant}: {rival}"));
        let mut children = Children::default();
        let mut pids = Vec::new();
        for _ in 0..count {
            bench.stop.check()?;
            children.push(Child::fork_and(&mut work)?);
            pids.extend(children.youngest_pid());
        }
        let mut bytes = 0.0;
        for pid in pids {
            let read = |name: &str| {
                fs::read_to_string(format!("/proc/{pid}/{name}")).map_err(during("weigh a child"))
            };
            let (status, memory) = (read("status")?, read("smaps_rollup")?);
            bytes += library::kib_of(&status, "VmPTE:")
                + library::kib_of(&memory, "Private_Clean:")
                + library::kib_of(&memory, "Private_Dirty:");
        }
        children.end()?;
        let row = Row::new(rival, CHILD, "mean", bytes / count as f64, "bytes").n(count as u64);
        bench.report.row(row.size_bytes(size).variant(variant));
    }
    Ok(())
}
