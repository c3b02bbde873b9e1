//! Clones of a template: mapping one, resetting it, and the memory of many children.

use std::fs::{self, File};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::report::{Latencies, Row};
use cowslip::units::{ByteCount, CHUNK_BYTES, page_size_bytes};
use cowslip::{Arena, ArenaSlice, Place, Template, TemplateClone};
use cowslip_sys::memory::Advice;
use cowslip_sys::tmpfs;

use super::{Bench, Options, library};
use crate::child::{Child, Children};
use crate::error::{Error, Result, during};
use crate::host::warm;
use crate::mechanisms::MechanismKind;
use crate::memory::{Anonymous, Memory};

/// Time to go back to the template after random writes.
pub(super) const RESET: &str = "template_reset";
/// The same as a rate.
pub(super) const RATE: &str = "template_reset_rate";
/// The rate of whole cycles, with the reads and writes of the work.
pub(super) const CYCLES: &str = "template_cycle_rate";
const CLONE: &str = "template_clone";
/// Mean private memory and page tables of children that each wrote [`TYPICAL_PAGES`].
const CHILD: &str = "child_private_bytes";

const COWSLIP: &str = "cowslip";
pub(super) const MAPPED: &str = "tmpfs-huge";
const WORD: usize = size_of::<u64>();
const TYPICAL_PAGES: usize = 100;
/// Pages written, their variant, and the number of resets.
const WRITTEN: [(usize, &str, u32); 3] =
    [(1, "1 page", 1_000), (TYPICAL_PAGES, TYPICAL, 1_000), (10_000, "10,000 pages", 30)];
pub(super) const TYPICAL: &str = "100 pages";
const CLONES: u32 = 300;
const CHILDREN: [(usize, &str); 3] = [(1, "1 child"), (10, "10 children"), (100, "100 children")];

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let bytes = options.working_bytes();
    let size = bytes as u64;
    let stock = [library::FIRST, library::AGAIN].map(|variant| {
        bench.report.find(
            MechanismKind::Fork4k.name(),
            library::METRIC,
            "p50",
            Some(size),
            Some(variant),
        )
    });
    if stock.contains(&None) {
        bench.progress.phase(&format!("fork at {}, to compare", ByteCount(size)));
        let rounds = bench.clock.rounds(0.2, 3, 1 + options.runs);
        library::measure_together(bench, &[MechanismKind::Fork4k], size, rounds)?;
    }
    bench.progress.phase(&format!("template of {}: filling an arena", ByteCount(size)));
    let arena = Arena::new(ByteCount(size))?;
    let mut words = arena.slice::<u64>(bytes / WORD)?;
    words.iter_mut().enumerate().for_each(|(i, word)| *word = i as u64);
    let template = arena.freeze()?.into_template()?;
    let clone = template.map(Place::Anywhere)?;
    measure_resets(bench, &mut ClonedWorker { clone, template: &template, words: &words })?;
    measure_clones(bench, &template, size)?;
    let mut clone = template.map(Place::Anywhere)?;
    push_children(bench, COWSLIP, size, || {
        write_pages(clone.slice_mut(&words), TYPICAL_PAGES, &mut Scatter(1));
    })?;
    drop((clone, template, words, arena));
    bench.progress.phase("a tmpfs with huge pages, to compare");
    match MappedWorker::new(bytes).and_then(|mut mapped| measure_resets(bench, &mut mapped)) {
        Err(Error::Failed(why)) => {
            bench.report.row(Row::skipped(MAPPED, RESET, why).size_bytes(size));
        }
        done => done?,
    }
    let memory = Memory::anonymous(bytes, Anonymous::Base)?;
    memory.touch(bench.stop)?;
    memory.offer_to_children(true)?;
    push_children(bench, MechanismKind::Fork4k.name(), size, || {
        let mut scatter = Scatter(1);
        (0..TYPICAL_PAGES)
            .for_each(|_| memory.page(scatter.below(memory.pages())).store(1, Relaxed));
    })
}

/// Memory that is worked on, and reset afterwards.
trait Worker {
    fn name(&self) -> &'static str;

    /// Replaces it by a new one.
    fn renew(&mut self) -> Result<()>;

    fn reset(&mut self) -> Result<()>;

    fn words(&self) -> &[u64];

    fn words_mut(&mut self) -> &mut [u64];
}

/// A clone of a template.
struct ClonedWorker<'a> {
    clone: TemplateClone,
    template: &'a Template,
    words: &'a ArenaSlice<u64>,
}

impl Worker for ClonedWorker<'_> {
    fn name(&self) -> &'static str {
        COWSLIP
    }

    fn renew(&mut self) -> Result<()> {
        self.clone = self.template.map(Place::Anywhere)?;
        Ok(())
    }

    fn reset(&mut self) -> Result<()> {
        Ok(self.clone.reset()?)
    }

    fn words(&self) -> &[u64] {
        self.clone.slice(self.words)
    }

    fn words_mut(&mut self) -> &mut [u64] {
        self.clone.slice_mut(self.words)
    }
}

/// A file of a tmpfs with huge pages, mapped privately: `MADV_DONTNEED` drops the writes, as WebAssembly runtimes do it.
struct MappedWorker {
    file: File,
    memory: Memory,
}

impl MappedWorker {
    fn new(bytes: usize) -> Result<Self> {
        let file =
            tmpfs::huge_file(bytes as u64).map_err(during("mount a tmpfs with huge pages"))?;
        let file = File::from(file);
        for at in (0..bytes).step_by(CHUNK_BYTES) {
            let first = (at / WORD) as u64;
            let content: Vec<u8> =
                (0..(CHUNK_BYTES / WORD) as u64).flat_map(|i| (first + i).to_ne_bytes()).collect();
            let content = &content[..CHUNK_BYTES.min(bytes - at)];
            file.write_all_at(content, at as u64).map_err(during("fill a tmpfs"))?;
        }
        let memory = Self::map(&file, bytes)?;
        Ok(Self { file, memory })
    }

    fn map(file: &File, bytes: usize) -> Result<Memory> {
        let file = file.try_clone().map_err(during("copy a descriptor"))?;
        let memory = Memory::private_file(file, bytes)?;
        memory.advise(Advice::HugePage)?;
        Ok(memory)
    }
}

impl Worker for MappedWorker {
    fn name(&self) -> &'static str {
        MAPPED
    }

    fn renew(&mut self) -> Result<()> {
        self.memory = Self::map(&self.file, self.memory.bytes())?;
        Ok(())
    }

    fn reset(&mut self) -> Result<()> {
        self.memory.drop_writes()
    }

    fn words(&self) -> &[u64] {
        self.memory.words()
    }

    fn words_mut(&mut self) -> &mut [u64] {
        self.memory.words_mut()
    }
}

fn measure_resets(bench: &mut Bench<'_>, worker: &mut dyn Worker) -> Result<()> {
    let size = (worker.words().len() * WORD) as u64;
    for (pages, variant, runs) in WRITTEN {
        bench.progress.phase(&format!("resets, {variant} written: {}", worker.name()));
        worker.renew()?;
        warm(ByteCount((2 * pages * page_size_bytes()) as u64), bench.stop)?;
        let mut resets = Latencies::new();
        let (mut working, mut resetting) = (Duration::ZERO, Duration::ZERO);
        let mut scatter = Scatter(1);
        // A tenth more, to warm up.
        for run in 0..runs + runs / 10 {
            bench.stop.check()?;
            let began = Instant::now();
            // Reads like a worker that reads a lot: a huge entry for each chunk that can have one.
            worker.words().iter().step_by(CHUNK_BYTES / WORD).for_each(|word| _ = black_box(word));
            write_pages(worker.words_mut(), pages, &mut scatter);
            let worked = began.elapsed();
            let began = Instant::now();
            worker.reset()?;
            let reset = began.elapsed();
            if run >= runs / 10 {
                resets.record(reset);
                working += worked;
                resetting += reset;
            }
        }
        if worker.words().iter().enumerate().any(|(i, &word)| word != i as u64) {
            return Err(Error::Failed("a reset left something behind".to_owned()));
        }
        resets.push(bench.report, worker.name(), RESET, Some(size), Some(variant));
        for (metric, time) in [(RATE, resetting), (CYCLES, working + resetting)] {
            let rate = f64::from(runs) / time.as_secs_f64();
            let row = Row::new(worker.name(), metric, "value", rate, "1/s").n(u64::from(runs));
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

fn write_pages(words: &mut [u64], pages: usize, scatter: &mut Scatter) {
    let in_page = page_size_bytes() / WORD;
    for _ in 0..pages {
        words[scatter.below(words.len() / in_page) * in_page] = u64::MAX;
    }
}

/// Weighs children, one, ten and a hundred at a time, that each do `work` on memory that they were forked with.
fn push_children(
    bench: &mut Bench<'_>,
    name: &str,
    size: u64,
    mut work: impl FnMut(),
) -> Result<()> {
    for (count, variant) in CHILDREN {
        bench.progress.phase(&format!("memory of {variant}: {name}"));
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
        let row = Row::new(name, CHILD, "mean", bytes / count as f64, "bytes").n(count as u64);
        bench.report.row(row.size_bytes(size).variant(variant));
    }
    Ok(())
}
