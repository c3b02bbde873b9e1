//! An arena, a program that writes and forks, and a clock, as data: properties of the decisions.
//!
//! Prices are those of the benches: a move takes two milliseconds, a copied page some microseconds.

mod decisions;
mod properties;

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::Duration;

use cowslip_sys::Errno;
use cowslip_sys::units::{CHUNK_BYTES, page_size_bytes};

use super::facts::{Counts, Facts, Readers};
use super::settings::{self, density, moving};
use super::task::{Pace, Task, Work};
use super::{Plan, is_movable, next};
use crate::memory::chunk_map::{Chunk, ChunkMap, Event};

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

const MOVE_NS: u64 = 2 * MILLISECOND;
const THAW_NS: u64 = 60 * MICROSECOND;
const PAGE_NS: u64 = 3 * MICROSECOND;
const LOOK_NS_PER_CHUNK: u64 = 500;
const COLLAPSE_NS: u64 = MILLISECOND;
const WARM_NS: u64 = 3 * MILLISECOND;

/// Addresses that a program writes to: the chunk and the page, of one write after another.
type Writes = Box<dyn FnMut() -> (usize, usize)>;

struct Simulation {
    now_ns: Cell<u64>,
    plan: Plan,
    map: ChunkMap,
    /// Private pages of each chunk, and their number.
    private: Vec<Vec<bool>>,
    counts: Vec<u64>,
    writes: Writes,
    write_every_ns: u64,
    written_until_ns: u64,
    faults: u64,
    looked_ns: Cell<u64>,
    /// Time for which others have the processor during each look, and in all so far.
    preempted_ns: u64,
    /// The time for which a host has the processor during every third look. The guest does not know.
    stolen_ns: u64,
    looks: Cell<u64>,
    waited_ns: Cell<u64>,
    generation: u64,
    child_until_ns: u64,
    has_ended: bool,
    is_short: bool,
    is_held: bool,
    is_crowded: bool,
    old_views: usize,
    vacated: usize,
    /// Chunks of base pages that are full.
    dense: RefCell<Vec<usize>>,
    unmapped: usize,
    /// What the kernel refuses.
    refused: Option<Work>,
    /// Chunks that moved, with their private pages then.
    moved: Vec<(usize, u64)>,
    /// A chunk of which the kernel refuses each move and each thaw.
    immovable: Option<usize>,
    refuses_collapses: bool,
    /// Looks at the limit on copies: their pause, and the time of the last one.
    limit: Option<(u64, u64)>,
    longest_unlimited_ns: u64,
    tracks: bool,
    case: Case,
    done: Vec<(u64, Task)>,
}

/// Facts that are rarely true.
#[derive(Default)]
struct Case {
    has_no_service: bool,
    is_pinned: bool,
    keeps_places: bool,
    is_hugetlb: bool,
    keeps_borrowed: bool,
    has_several_files: bool,
    exposed: Option<usize>,
    filled: Vec<usize>,
    split_due: Option<usize>,
}

impl Simulation {
    fn new(chunks: usize, write_every_ns: u64, writes: Writes) -> Self {
        let pages = CHUNK_BYTES / page_size_bytes();
        Self {
            now_ns: Cell::new(SECOND),
            plan: Plan::default(),
            map: ChunkMap::new(chunks),
            private: vec![vec![false; pages]; chunks],
            counts: vec![0; chunks],
            writes,
            write_every_ns,
            written_until_ns: SECOND,
            faults: 0,
            looked_ns: Cell::new(0),
            preempted_ns: 0,
            stolen_ns: 0,
            looks: Cell::new(0),
            waited_ns: Cell::new(0),
            generation: 0,
            child_until_ns: 0,
            has_ended: false,
            is_short: false,
            is_held: false,
            is_crowded: true,
            old_views: 0,
            vacated: 0,
            dense: RefCell::default(),
            unmapped: 0,
            refused: None,
            moved: Vec::new(),
            immovable: None,
            refuses_collapses: false,
            limit: None,
            longest_unlimited_ns: 0,
            tracks: false,
            case: Case::default(),
            done: Vec::new(),
        }
    }

    /// Freezes all that is live, for a child that reads it for so long.
    fn fork(&mut self, child_ns: u64) {
        self.write();
        self.generation += 1;
        for chunk in 0..self.map.len() {
            if self.map.get(chunk) == Chunk::Live {
                self.map.apply(chunk..chunk + 1, Event::Freeze).unwrap();
                self.map.set_since(chunk, self.generation);
            }
        }
        self.plan.freeze();
        self.plan.residency.freeze();
        self.plan.thaw.fork();
        self.plan.quiet.begin(self.now_ns.get());
        self.child_until_ns = self.now_ns.get() + child_ns;
        self.has_ended = false;
    }

    fn is_read(&self) -> bool {
        self.now_ns.get() < self.child_until_ns
    }

    /// Lets the program write until now.
    fn write(&mut self) {
        while self.write_every_ns > 0 && self.written_until_ns < self.now_ns.get() {
            self.written_until_ns += self.write_every_ns;
            let (chunk, page) = (self.writes)();
            let state = self.map.get(chunk);
            let is_copied = state.is_private() || state == Chunk::Clean;
            if is_copied && !std::mem::replace(&mut self.private[chunk][page], true) {
                self.faults += 1;
                self.counts[chunk] += 1;
            }
        }
    }

    /// Works until then, or until nothing is left to do and no child reads.
    fn run_until(&mut self, end_ns: u64) {
        while self.now_ns.get() < end_ns {
            self.write();
            let mut plan = std::mem::take(&mut self.plan);
            let task = next(self, &mut plan);
            self.plan = plan;
            let pause_ns = match task {
                Task::Wait(pause) => Some(pause.as_nanos() as u64),
                Task::Idle => Some(u64::MAX),
                _ => None,
            };
            if let Some(pause_ns) = pause_ns {
                assert!(pause_ns > 0);
                let wake_ns = self.now_ns.get().saturating_add(pause_ns).min(end_ns);
                // The end of a child wakes the service thread.
                let child_ns = self.child_until_ns;
                let is_woken = self.is_read() && child_ns < wake_ns;
                self.now_ns.set(if is_woken { child_ns } else { wake_ns });
                continue;
            }
            let began_ns = self.now_ns.get();
            let outcome = self.perform(&task);
            self.write();
            let now_ns = self.now_ns.get();
            self.plan.note(&task, outcome, now_ns - began_ns, now_ns);
            self.done.push((now_ns, task));
        }
    }

    fn spend(&self, ns: u64) {
        self.now_ns.set(self.now_ns.get() + ns);
    }

    fn perform(&mut self, task: &Task) -> Result<bool, Errno> {
        if let Some(work) = task.work().filter(|work| self.refused == Some(*work)) {
            assert!(!matches!(task, Task::Failed(..)), "{work:?}");
            self.spend(THAW_NS);
            return Err(Errno::NOMEM);
        }
        let first = match task {
            Task::Move(chunk, _) => Some(*chunk),
            Task::Thaw(run, _) => Some(run.start),
            _ => None,
        };
        if first.is_some() && first == self.immovable {
            self.spend(THAW_NS);
            return Err(Errno::NOMEM);
        }
        match task {
            Task::UnmapView => {
                self.spend(THAW_NS);
                self.old_views -= 1;
            }
            Task::QueueFrozen => self.unmapped += 1,
            Task::Map => {
                self.spend(THAW_NS);
                self.unmapped -= 1;
            }
            Task::Finish { .. } => self.plan.finish(),
            Task::Thaw(run, _) => {
                let pages: u64 = run.clone().map(|chunk| self.count(chunk)).sum();
                self.spend(THAW_NS + pages * PAGE_NS);
                self.make_live(run.clone(), Event::Thaw);
            }
            Task::Move(chunk, pace) => {
                let pages = self.count(*chunk);
                let base_ns = if *pace == Pace::Held { 0 } else { pages * PAGE_NS };
                self.spend(MOVE_NS + base_ns);
                assert!(self.is_read(), "a move is for readers");
                self.moved.push((*chunk, pages));
                self.make_live(*chunk..*chunk + 1, Event::Move);
                self.vacated += 1;
            }
            Task::WarmPage => {
                self.spend(WARM_NS);
                self.plan.density.warmed(WARM_NS);
            }
            Task::Collapse(chunk) => {
                self.spend(COLLAPSE_NS);
                if self.refuses_collapses {
                    return Err(Errno::NOMEM);
                }
                self.dense.borrow_mut().retain(|dense| dense != chunk);
            }
            Task::Keep(run) => self.map.apply(run.clone(), Event::Keep).map(drop).unwrap(),
            Task::ThawClean(chunk, _) => {
                self.spend(THAW_NS + self.count(*chunk) * PAGE_NS);
                self.make_live(*chunk..*chunk + 1, Event::Thaw);
            }
            Task::Split(_) => self.case.split_due = None,
            Task::LookOn => self.spend(MICROSECOND),
            Task::Failed(_, errno) => return Err(*errno),
            task => panic!("{task:?}"),
        }
        Ok(true)
    }

    fn make_live(&mut self, run: Range<usize>, event: Event) {
        self.map.apply(run.clone(), event).unwrap();
        for chunk in run {
            self.private[chunk].fill(false);
            self.counts[chunk] = 0;
        }
    }

    fn count(&self, chunk: usize) -> u64 {
        self.counts[chunk]
    }

    fn count_done(&self, is_it: impl Fn(&Task) -> bool) -> usize {
        self.done.iter().filter(|(_, task)| is_it(task)).count()
    }

    fn moves(&self) -> usize {
        self.moved.len()
    }

    /// The time of the first such task.
    fn first_ns(&self, is_it: impl Fn(&Task) -> bool) -> Option<u64> {
        self.done.iter().find(|(_, task)| is_it(task)).map(|(ns, _)| *ns)
    }
}

impl Facts for Simulation {
    fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    fn used_ns(&self) -> u64 {
        self.now_ns.get() - self.waited_ns.get()
    }

    fn map(&self) -> &ChunkMap {
        &self.map
    }

    fn is_short(&self) -> bool {
        self.is_short && self.map.private() > 0
    }

    fn old_views(&self) -> usize {
        self.old_views
    }

    fn is_held(&self) -> bool {
        self.is_held
    }

    fn has_vacated(&self) -> bool {
        self.vacated > 0
    }

    fn keeps_borrowed(&self) -> bool {
        self.case.keeps_borrowed
    }

    fn tracks_changes(&self) -> bool {
        self.tracks
    }

    fn is_hugetlb(&self) -> bool {
        self.case.is_hugetlb
    }

    fn is_served(&self) -> bool {
        !self.case.has_no_service
    }

    fn may_be_pinned(&self) -> bool {
        self.case.is_pinned
    }

    fn readers(&mut self) -> Readers {
        self.spend(5 * MICROSECOND);
        if self.is_read() {
            return Readers { read: Some(self.generation), has_ended: false };
        }
        self.vacated = 0;
        let has_ended = self.generation > 0 && !std::mem::replace(&mut self.has_ended, true);
        Readers { read: None, has_ended }
    }

    fn keep_limit(&mut self, may_end: bool) -> Option<u64> {
        assert!(!may_end || self.is_read(), "copies without a reader go back, and no child ends");
        let (pause_ns, last_ns) = self.limit.as_mut()?;
        let since_ns = self.now_ns.get() - std::mem::replace(last_ns, self.now_ns.get());
        self.longest_unlimited_ns = self.longest_unlimited_ns.max(since_ns);
        Some(*pause_ns)
    }

    fn process_private_pages(&self) -> Option<u64> {
        Some(self.counts.iter().sum())
    }

    fn used_pages(&self) -> u64 {
        (self.map.len() * CHUNK_BYTES / page_size_bytes()) as u64
    }

    fn faults(&self) -> Option<u64> {
        Some(self.faults)
    }

    fn private_pages(&self, chunk: usize, most: u64) -> Result<u64, Errno> {
        self.spend(LOOK_NS_PER_CHUNK);
        Ok(self.count(chunk).min(most + 1))
    }

    fn private_by_chunk(&self) -> Result<Counts, Errno> {
        let cost_ns = LOOK_NS_PER_CHUNK * self.map.len() as u64;
        self.spend(cost_ns);
        self.looked_ns.set(self.looked_ns.get() + cost_ns);
        self.looks.set(self.looks.get() + 1);
        if self.looks.get().is_multiple_of(3) {
            self.spend(self.stolen_ns);
        }
        self.spend(self.preempted_ns);
        self.waited_ns.set(self.waited_ns.get() + self.preempted_ns);
        let least = settings::pages(moving::FRONT_BYTES) as usize;
        let mut counts = Counts::default();
        for (chunk, private) in self.private.iter().enumerate() {
            let is_counted = is_movable(self.map.get(chunk));
            counts.pages.push(if is_counted { self.count(chunk) as u16 } else { 0 });
            let mut runs = private.chunk_by(|a, b| a == b);
            let may_be = is_counted && self.counts[chunk] >= least as u64;
            if may_be && runs.any(|run| run[0] && run.len() >= least) {
                counts.in_order.push(chunk);
            }
        }
        Ok(counts)
    }

    fn first_written(&self, chunks: Range<usize>) -> Result<Option<usize>, Errno> {
        Ok(chunks.into_iter().find(|chunk| self.count(*chunk) > 0))
    }

    fn pages_of_run(&self, chunk: usize) -> Result<Option<u64>, Errno> {
        self.spend(LOOK_NS_PER_CHUNK);
        let in_order = self.private[chunk].iter().take_while(|is_private| **is_private).count();
        let (in_order, all) = (in_order as u64, self.count(chunk));
        let has_begun = in_order >= settings::pages(moving::BEGUN_BYTES);
        Ok((has_begun && 2 * in_order >= all).then_some(all))
    }

    fn may_move(&self, _: usize) -> bool {
        !self.case.keeps_places
    }

    fn live_runs(&self) -> Vec<Range<usize>> {
        self.map.runs(|chunk| chunk == Chunk::Live).collect()
    }

    fn is_exposed(&self, chunk: usize) -> bool {
        self.case.exposed == Some(chunk)
    }

    fn is_filled(&self, chunk: usize) -> bool {
        self.case.filled.contains(&chunk)
    }

    fn has_one_file(&self) -> bool {
        !self.case.has_several_files
    }

    fn is_crowded(&self) -> bool {
        self.is_crowded
    }

    fn can_tend(&self) -> bool {
        !self.dense.borrow().is_empty()
    }

    fn held_bytes(&self) -> u64 {
        self.dense.borrow().len() as u64
    }

    fn is_any_split_due(&self) -> bool {
        self.case.split_due.is_some()
    }

    fn next_sparse(&self, from: usize) -> Option<usize> {
        self.dense.borrow().iter().copied().find(|chunk| *chunk >= from)
    }

    fn is_split_due(&self, chunk: usize) -> bool {
        self.case.split_due == Some(chunk)
    }

    fn bytes_to_collapse(&self, _: usize) -> Option<u64> {
        Some(CHUNK_BYTES as u64)
    }

    fn has_unmapped(&self) -> bool {
        self.unmapped > 0
    }
}

/// A generator of numbers below a bound, the same at each run (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    /// Small numbers far more often than large ones, as keys of a store are asked for.
    fn zipf_below(&mut self, bound: usize) -> usize {
        let part = (self.below(1 << 20) + 1) as f64 / f64::from(1 << 20);
        ((bound as f64).powf(part) as usize).min(bound) - 1
    }
}

fn pages() -> usize {
    CHUNK_BYTES / page_size_bytes()
}

fn at_random(chunks: usize) -> Writes {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    Box::new(move || (random.below(chunks), random.below(pages())))
}

/// Keys by Zipf's law, each at a place of its own.
fn by_zipf(chunks: usize) -> Writes {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    Box::new(move || {
        let key = random.zipf_below(chunks * pages());
        // Keys that are asked for much lie beside one another, in a hundredth of the chunks.
        let place = match key {
            key if key % 4 == 0 => key / 4 % (chunks / 100 * pages()),
            _ => key.wrapping_mul(0x9e37_79b1) % (chunks * pages()),
        };
        (place / pages(), place % pages())
    })
}

fn in_order(chunks: usize, from: usize) -> Writes {
    let mut page = from * pages();
    Box::new(move || {
        page = (page + 1) % (chunks * pages());
        (page / pages(), page % pages())
    })
}
