//! An arena, a program that writes and forks, and a clock, as data: properties of the decisions.
//!
//! Prices are those of the benches: a move takes two milliseconds, a copied page some microseconds.

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
    done: Vec<(u64, Task)>,
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
        false
    }

    fn tracks_changes(&self) -> bool {
        self.tracks
    }

    fn is_hugetlb(&self) -> bool {
        false
    }

    fn is_served(&self) -> bool {
        true
    }

    fn may_be_pinned(&self) -> bool {
        false
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

    fn keep_limit(&mut self) -> Option<u64> {
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
        true
    }

    fn live_runs(&self) -> Vec<Range<usize>> {
        self.map.runs(|chunk| chunk == Chunk::Live).collect()
    }

    fn is_exposed(&self, _: usize) -> bool {
        false
    }

    fn is_filled(&self, _: usize) -> bool {
        false
    }

    fn has_one_file(&self) -> bool {
        true
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
        false
    }

    fn next_sparse(&self, from: usize) -> Option<usize> {
        self.dense.borrow().iter().copied().find(|chunk| *chunk >= from)
    }

    fn is_split_due(&self, _: usize) -> bool {
        false
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

#[test]
fn few_writes_at_random_move_nothing() {
    // 4,000 requests a second, 20 % of them writes, for a save of two seconds: some 15 pages in a chunk.
    let mut arena = Simulation::new(500, SECOND / 4_000, at_random(500));
    arena.fork(2 * SECOND);
    arena.run_until(4 * SECOND);
    assert_eq!(arena.moves(), 0);
    assert_eq!(arena.map.private(), 0, "thawed after the child's end");
}

#[test]
fn writes_by_zipf_with_pauses_move_only_chunks_above_the_threshold() {
    let mut arena = Simulation::new(500, SECOND / 40_000, by_zipf(500));
    let hot = settings::pages(moving::HOT_BYTES);
    for save in 0..5 {
        arena.moved.clear();
        arena.fork(2 * SECOND);
        arena.run_until(arena.child_until_ns);
        assert!(!arena.moved.is_empty() && arena.moves() < 10, "save {save}: {:?}", arena.moved);
        let is_hot = |(chunk, private): &(usize, u64)| *chunk < 5 && *private >= hot;
        assert!(arena.moved.iter().all(is_hot), "save {save}: {:?}", arena.moved);
        // The program rests.
        arena.write_every_ns = 0;
        arena.run_until(arena.now_ns.get() + 4 * SECOND);
        assert_eq!(arena.map.private(), 0, "save {save}");
        arena.write_every_ns = SECOND / 40_000;
        arena.written_until_ns = arena.now_ns.get();
    }
}

#[test]
fn hot_neighbours_are_no_run() {
    // Four chunks beside one another that are written everywhere, and none behind them.
    let mut random = Random(88172645463325252);
    let writes = Box::new(move || (100 + random.below(4), random.below(pages())));
    let mut arena = Simulation::new(500, SECOND / 20_000, writes);
    arena.fork(5 * SECOND);
    arena.run_until(6 * SECOND);
    assert_eq!(arena.moves(), 4, "these, and no chunk behind them");
}

#[test]
fn a_chunk_that_is_written_much_moves_soon() {
    let mut random = Random(88172645463325252);
    let writes = Box::new(move || (7, random.below(pages())));
    let mut arena = Simulation::new(2_000, SECOND / 50_000, writes);
    arena.fork(10 * SECOND);
    let began_ns = arena.now_ns.get();
    arena.run_until(began_ns + SECOND);
    let moved_ns = arena.first_ns(|task| matches!(task, Task::Move(7, _))).unwrap() - began_ns;
    assert!(moved_ns < 100 * MILLISECOND, "{:?}", Duration::from_nanos(moved_ns));
}

#[test]
fn a_run_of_writes_finds_the_chunks_ahead_of_it_moved() {
    // A page in 5 us: a chunk in 2.5 ms, a little more than a move takes.
    let mut arena = Simulation::new(400, 5 * MICROSECOND, in_order(400, 0));
    arena.fork(10 * SECOND);
    arena.run_until(arena.now_ns.get() + SECOND);
    let written = SECOND / (5 * MICROSECOND);
    assert!(arena.faults * 4 < written, "{} of {written} pages were copied", arena.faults);
}

#[test]
fn all_is_live_a_while_after_the_last_child() {
    for (chunks, write_every_ns) in [(4, 0), (500, 0), (500, SECOND / 20_000), (4_000, 50_000)] {
        let mut arena = Simulation::new(chunks, write_every_ns, at_random(chunks));
        for _ in 0..3 {
            arena.fork(SECOND / 2);
            let end_ns = arena.child_until_ns;
            arena.run_until(end_ns + 6 * SECOND);
            let live_ns =
                arena.done.iter().rev().find(|(_, task)| matches!(task, Task::Finish { .. }));
            let live_ns = live_ns.expect("it ends").0 - end_ns;
            assert!(live_ns < 5 * SECOND, "{:?}", Duration::from_nanos(live_ns));
            assert_eq!(arena.map.private(), 0);
        }
    }
}

#[test]
fn a_program_that_forks_often_stays_frozen_between_forks() {
    let mut arena = Simulation::new(500, SECOND / 4_000, at_random(500));
    // The first thaw tells what one costs: some 60 ms.
    arena.fork(SECOND);
    arena.run_until(4 * SECOND);
    assert_eq!(arena.map.private(), 0);
    arena.done.clear();
    for _ in 0..50 {
        arena.fork(10 * MILLISECOND);
        // Longer than the least time of lingering.
        arena.run_until(arena.child_until_ns + 60 * MILLISECOND);
    }
    assert_eq!(arena.count_done(|task| matches!(task, Task::Thaw(..))), 0);
    // One that has copied much does not linger.
    for chunk in 0..500 {
        arena.private[chunk][..80].fill(true);
        arena.counts[chunk] = 80;
    }
    arena.fork(10 * MILLISECOND);
    arena.run_until(arena.child_until_ns + 60 * MILLISECOND);
    assert!(arena.count_done(|task| matches!(task, Task::Thaw(..))) > 0);
}

#[test]
fn short_memory_ends_the_lingering() {
    let thaw_begins = |is_short| {
        let mut arena = Simulation::new(500, SECOND / 4_000, at_random(500));
        // The last thaw was dear, so that this one would linger.
        arena.fork(SECOND);
        arena.run_until(4 * SECOND);
        arena.done.clear();
        arena.fork(SECOND);
        arena.is_short = is_short;
        let end_ns = arena.child_until_ns;
        arena.run_until(end_ns + 3 * SECOND);
        arena.first_ns(|task| matches!(task, Task::Thaw(..))).unwrap() - end_ns
    };
    let (short_ns, long_ns) = (thaw_begins(true), thaw_begins(false));
    assert!(short_ns < 2 * MILLISECOND, "{short_ns}");
    assert!(long_ns > 3 * settings::thaw::LINGER_NS, "{long_ns}");
}

#[test]
fn a_thaw_ends_at_once_though_a_fork_is_being_finished() {
    let mut arena = Simulation::new(50, SECOND / 4_000, at_random(50));
    arena.is_short = true;
    for _ in 0..20 {
        arena.fork(2 * MILLISECOND);
        arena.run_until(arena.now_ns.get() + 5 * MILLISECOND);
        let done = arena.count_done(|task| matches!(task, Task::Finish { .. }));
        let thawed = arena.map.private() == 0;
        assert!(!thawed || done > 0 && arena.plan.thaw.finish_now(&arena).is_none());
    }
    assert!(arena.count_done(|task| matches!(task, Task::Finish { .. })) > 5);
}

#[test]
fn clean_chunks_that_are_written_become_live_soon_and_others_stay() {
    let mut random = Random(88172645463325252);
    let writes = Box::new(move || (10 + random.below(5), random.below(pages())));
    let mut arena = Simulation::new(500, 0, writes);
    arena.tracks = true;
    arena.fork(SECOND);
    arena.run_until(4 * SECOND);
    assert_eq!(arena.map.count(Chunk::Clean), 500);
    (arena.write_every_ns, arena.written_until_ns) = (MILLISECOND, arena.now_ns.get());
    arena.run_until(arena.now_ns.get() + SECOND);
    assert_eq!(arena.map.count(Chunk::Clean), 495);
    assert_eq!(arena.map.next_run(0, 500, |chunk| chunk == Chunk::Live), Some(10..15));
}

#[test]
fn short_memory_moves_nothing() {
    let mut random = Random(88172645463325252);
    let writes = Box::new(move || (7, random.below(pages())));
    let mut arena = Simulation::new(100, SECOND / 50_000, writes);
    arena.is_short = true;
    arena.fork(SECOND);
    arena.run_until(arena.child_until_ns);
    assert_eq!(arena.moves(), 0);
}

#[test]
fn nothing_starves_beside_a_child_that_reads_for_ever() {
    // It writes to another chunk every millisecond, so that there is always one to move.
    let mut random = Random(88172645463325252);
    let mut written = 0;
    let writes = Box::new(move || {
        written += 1;
        (3 + written / 500 % 10_000, random.below(pages()))
    });
    let mut arena = Simulation::new(10_100, 2 * MICROSECOND, writes);
    arena.fork(u64::MAX / 2);
    arena.old_views = 3;
    *arena.dense.borrow_mut() = vec![0, 1, 2];
    arena.unmapped = 5;
    // They are live, as they were given out after the fork.
    arena.map.apply(0..3, Event::Move).unwrap();
    arena.run_until(arena.now_ns.get() + 5 * SECOND);
    assert!(arena.moves() > 500, "{}", arena.moves());
    assert_eq!((arena.old_views, arena.unmapped), (0, 0));
    assert!(arena.dense.borrow().is_empty(), "{:?}", arena.dense);
}

/// Less while others want the processors, and not in one go: each copy of 2 MiB is in the way of the program.
#[test]
fn huge_pages_are_made_with_a_share_of_a_processor() {
    for (is_crowded, rest) in [(true, density::REST), (false, density::REST_WHEN_FREE)] {
        let mut arena = Simulation::new(1_000, 0, at_random(1));
        arena.is_crowded = is_crowded;
        *arena.dense.borrow_mut() = (0..1_000).collect();
        let began_ns = arena.now_ns.get();
        arena.run_until(began_ns + 100 * SECOND);
        assert!(arena.dense.borrow().is_empty(), "{} are left", arena.dense.borrow().len());
        let ends = arena.done.iter().filter(|(_, task)| matches!(task, Task::Collapse(_)));
        let ends: Vec<u64> = ends.map(|(ns, _)| *ns).collect();
        let pauses = ends.windows(2).map(|pair| pair[1] - pair[0]);
        let whole_ns = (WARM_NS + COLLAPSE_NS) * (rest + 1);
        assert!(pauses.min() >= Some(whole_ns), "{is_crowded}");
        let took_ns = ends.last().unwrap() - began_ns;
        assert!(took_ns < 1_100 * whole_ns, "{is_crowded}: {took_ns}");
    }
}

#[test]
fn the_borders_between_moved_chunks_and_others_are_few() {
    // Every other chunk is hot.
    let mut random = Random(88172645463325252);
    let writes = Box::new(move || (2 * random.below(500), random.below(pages())));
    let mut arena = Simulation::new(1_000, MICROSECOND, writes);
    arena.fork(30 * SECOND);
    arena.run_until(arena.now_ns.get() + 5 * SECOND);
    let runs = arena.live_runs().len();
    assert!(runs > 8 && 2 * runs <= moving::MOST_BORDERS, "{runs} runs of moved chunks");
}

#[test]
fn work_that_the_kernel_refuses_is_tried_again_and_takes_no_processor() {
    for refused in [Work::Thaw, Work::Move] {
        let mut random = Random(88172645463325252);
        let writes = Box::new(move || (7, random.below(pages())));
        let mut arena = Simulation::new(100, SECOND / 50_000, writes);
        arena.refused = Some(refused);
        arena.fork(if refused == Work::Move { u64::MAX / 2 } else { SECOND });
        arena.run_until(arena.now_ns.get() + 60 * SECOND);
        let tries = arena.count_done(|task| task.work() == Some(refused));
        assert!((5..60).contains(&tries), "{refused:?}: {tries} times");
        arena.refused = None;
        arena.child_until_ns = arena.now_ns.get();
        arena.run_until(arena.now_ns.get() + 20 * SECOND);
        assert_eq!(arena.map.private(), 0, "{refused:?}");
    }
}

#[test]
fn a_chunk_that_cannot_move_does_not_keep_others_from_it() {
    let mut random = Random(88172645463325252);
    let writes = Box::new(move || (2 * random.below(5), random.below(pages())));
    let mut arena = Simulation::new(100, SECOND / 50_000, writes);
    arena.immovable = Some(0);
    arena.fork(u64::MAX / 2);
    arena.run_until(arena.now_ns.get() + 3 * SECOND);
    let mut moved: Vec<_> = arena.moved.iter().map(|(chunk, _)| *chunk).collect();
    moved.sort_unstable();
    assert_eq!(moved, [2, 4, 6, 8]);
}

#[test]
fn the_last_few_writes_to_a_hot_chunk_are_seen() {
    let hot_pages = settings::pages(moving::HOT_BYTES) as usize;
    // Every second page; the last forty come after a pause, in which the others are counted.
    for last in [10, 40] {
        let mut page = 0;
        let writes = Box::new(move || {
            page = (page + 2) % pages();
            (3, page)
        });
        let mut arena = Simulation::new(100, SECOND / 10_000, writes);
        arena.fork(u64::MAX / 2);
        for (pages, moves) in [(hot_pages - last, 0), (last, 1)] {
            arena.write_every_ns = SECOND / 10_000;
            arena.written_until_ns = arena.now_ns.get();
            arena.run_until(arena.now_ns.get() + pages as u64 * SECOND / 10_000);
            arena.write();
            arena.write_every_ns = 0;
            arena.run_until(arena.now_ns.get() + SECOND);
            assert_eq!(arena.moves(), moves, "{last}");
        }
    }
}

#[test]
fn a_chunk_that_cannot_be_thawed_does_not_keep_others_from_it() {
    let mut arena = Simulation::new(100, SECOND / 4_000, at_random(100));
    arena.immovable = Some(7);
    arena.fork(SECOND);
    arena.run_until(arena.now_ns.get() + 10 * SECOND);
    let frozen: Vec<usize> = arena.map.runs(Chunk::is_private).flatten().collect();
    assert_eq!(frozen, [7]);
    let tries = arena.count_done(|task| matches!(task, Task::Thaw(run, _) if run.start == 7));
    assert!((5..50).contains(&tries), "{tries}");
    arena.immovable = None;
    arena.run_until(arena.now_ns.get() + 10 * SECOND);
    assert_eq!(arena.map.private(), 0);
}

#[test]
fn copies_are_counted_however_often_the_program_forks() {
    let mut arena = Simulation::new(100, SECOND / 4_000, at_random(100));
    let began_ns = arena.now_ns.get();
    arena.limit = Some((2 * MILLISECOND, began_ns));
    for i in 1..=200 {
        // Each comes while the one before it is being finished.
        arena.fork(3 * SECOND);
        arena.run_until(began_ns + i * settings::thaw::QUIET_AFTER_FORK_NS * 9 / 10);
    }
    assert!(arena.longest_unlimited_ns < 10 * MILLISECOND, "{}", arena.longest_unlimited_ns);
}

#[test]
fn collapses_that_the_kernel_refuses_become_rare() {
    let mut arena = Simulation::new(100, 0, at_random(100));
    arena.dense = RefCell::new((0..100).collect());
    arena.refuses_collapses = true;
    arena.run_until(arena.now_ns.get() + 100 * SECOND);
    let tries = arena.count_done(|task| matches!(task, Task::Collapse(_)));
    assert!((5..20).contains(&tries), "{tries}");
    arena.refuses_collapses = false;
    arena.run_until(arena.now_ns.get() + 40 * SECOND);
    assert!(arena.dense.borrow().is_empty());
}

#[test]
fn a_held_arena_stays_as_it_is() {
    let mut arena = Simulation::new(100, SECOND / 4_000, at_random(100));
    arena.fork(SECOND);
    arena.is_held = true;
    arena.run_until(arena.now_ns.get() + 5 * SECOND);
    assert_eq!(arena.map.private(), 100);
    arena.is_held = false;
    arena.run_until(arena.now_ns.get() + 5 * SECOND);
    assert_eq!(arena.map.private(), 0);
}

#[test]
fn nothing_is_done_while_a_fork_is_being_finished() {
    let mut arena = Simulation::new(100, 0, at_random(100));
    arena.fork(0);
    let began_ns = arena.now_ns.get();
    arena.old_views = 2;
    arena.run_until(began_ns + SECOND);
    let first_ns = arena.done[0].0;
    assert!(first_ns >= began_ns + settings::thaw::QUIET_AFTER_FORK_NS);
    assert!(!arena.plan.quiet.forks_often);
    arena.fork(0);
    arena.fork(0);
    assert!(arena.plan.quiet.forks_often);
}

#[test]
fn looks_take_a_small_part_of_the_time() {
    // Writes that never make a chunk hot: each look is in vain.
    let mut arena = Simulation::new(4_000, SECOND / 20_000, at_random(4_000));
    arena.fork(10 * SECOND);
    let began_ns = arena.now_ns.get();
    arena.run_until(began_ns + 9 * SECOND);
    let looked_ns = arena.looked_ns.get();
    assert!(looked_ns > 0 && looked_ns < 9 * SECOND / 100, "{looked_ns}");
    assert_eq!(arena.moves(), 0);
}
