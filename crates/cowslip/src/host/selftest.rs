//! Tests Cowslip itself on a small arena: freeze and thaw while threads write, and fork.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::thread::Builder;
use std::time::Duration;

use cowslip_sys::process;
use cowslip_sys::units::{ByteCount, CHUNK_BYTES, page_size_bytes};

use super::Answer;
use super::capability::{Capability, Need};
use super::outcome::{ProbeResult, Proof, Refusal, median, middle};
use super::privileges::usage_of;
use crate::arena::Arena;
use crate::fork_calls::fork_watching;
use crate::freeze::{FreezeMethod, Frozen};
use crate::thaw;
use crate::timing::Stopwatch;
use crate::values::ArenaWords;

const CHUNKS: usize = 8;
const WRITERS: usize = 2;
/// The word of a page that only forks use.
const FORK_WORD: usize = WRITERS;
/// Far longer than any step takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(5);
const WRITE_FOR: Duration = Duration::from_millis(1);

pub(super) fn probe(faults: &[Capability]) -> Vec<Capability> {
    let new = Capability::new;
    let tried = Bench::new().and_then(|bench| Ok((bench.freeze()?, bench)));
    let (freeze, thaw, fork) = match tried {
        Ok((seen, bench)) => (seen.freeze(), seen.thaw(faults), bench.fork(seen.method)),
        Err(no) => (Err(no.clone()), Err(no.clone()), Err(no)),
    };
    vec![
        new("freeze", Need::Essential, "a view of memory at one instant", freeze),
        new("thaw", Need::Full, "huge pages again, while threads write", thaw),
        new("fork", Need::Essential, "a child without copied page tables", fork),
    ]
}

/// Counters that threads write in an order that a snapshot must show: in each round, a writer's word of the first page,
/// then of one in between, then of the last.
struct Bench {
    arena: Arena,
    words: ArenaWords,
}

/// The results of freezing and thawing.
struct Seen {
    method: FreezeMethod,
    made_of: String,
    freeze_ns: u64,
    thaw_chunk_ns: u64,
    thaw_chunk_pages: u64,
    huge: ByteCount,
}

impl Bench {
    fn new() -> Result<Self, Refusal> {
        let len = CHUNKS * CHUNK_BYTES;
        let arena = Arena::new(ByteCount(len as u64))?;
        let mut words = arena.slice::<u64>(len / size_of::<u64>())?;
        words.fill(0);
        Ok(Self { arena, words: words.into_words() })
    }

    fn pages(&self) -> usize {
        self.words.range().len / page_size_bytes()
    }

    fn word(&self, page: usize, index: usize) -> &AtomicU64 {
        &self.words[page * page_size_bytes() / size_of::<u64>() + index]
    }

    fn write(&self, writer: usize, go: &AtomicBool) {
        let last_page = self.pages() - 1;
        let mut round = self.word(last_page, writer).load(SeqCst);
        while go.load(Relaxed) {
            round += 1;
            self.word(0, writer).store(round, SeqCst);
            let between = 1 + round as usize % (last_page - 1);
            self.word(between, writer).fetch_add(1, SeqCst);
            self.word(last_page, writer).store(round, SeqCst);
        }
    }

    fn freeze(&self) -> Result<Seen, Refusal> {
        let mut method = FreezeMethod::WithoutUserfaultfd;
        let (mut thaw_ns, mut thaw_pages) = (Vec::new(), Vec::new());
        let freeze_ns = median(|| {
            let before = self.arena.metrics();
            method = self.freeze_under_writers()?;
            let metrics = self.arena.metrics();
            let chunks = (metrics.thawed_chunks - before.thawed_chunks).max(1);
            thaw_ns.push(metrics.last_thaw_ns / chunks);
            thaw_pages.push((metrics.thawed_pages - before.thawed_pages) / chunks);
            Ok::<_, Refusal>(metrics.last_freeze_ns)
        })?;
        for page in 0..self.pages() {
            self.word(page, FORK_WORD).store(0, Relaxed);
        }
        let huge = ByteCount(usage_of(self.arena.range()).shmem_huge_bytes);
        let made_of = self.arena.pages().to_string();
        let (thaw_chunk_ns, thaw_chunk_pages) = (middle(thaw_ns), middle(thaw_pages));
        Ok(Seen { method, made_of, freeze_ns, thaw_chunk_ns, thaw_chunk_pages, huge })
    }

    fn freeze_under_writers(&self) -> Result<FreezeMethod, Refusal> {
        let go = &AtomicBool::new(true);
        let (method, still_frozen) = std::thread::scope(|scope| {
            // Dropped before the scope waits for the writers, on every path out.
            let _stop = Stop(go);
            for writer in 0..WRITERS {
                Builder::new()
                    .spawn_scoped(scope, move || self.write(writer, go))
                    .map_err(|error| Refusal::unknown(0, format!("start a thread: {error}")))?;
            }
            std::thread::sleep(WRITE_FOR);
            let frozen = self.arena.freeze()?;
            let method = frozen.method();
            self.check_view(&frozen)?;
            if method == FreezeMethod::WithoutUserfaultfd {
                return Ok((method, Some(frozen)));
            }
            drop(frozen);
            if self.arena.wait_live(PATIENCE) {
                return Ok::<_, Refusal>((method, None));
            }
            let errno = self.arena.metrics().last_thaw_errno as i32;
            Err(Refusal::unknown(errno, "the thaw did not end"))
        })?;
        if let Some(frozen) = still_frozen {
            // The scope has waited for the writers, and no other code knows the arena.
            drop(frozen);
            let shared = self.arena.shared();
            thaw::unattended(shared, &mut shared.lock())?;
        }
        self.check_writers(|page, writer| self.word(page, writer).load(SeqCst), 0)?;
        Ok(method)
    }

    /// Checks that the cut is causal, and that the view does not change.
    fn check_view(&self, frozen: &Frozen) -> Result<(), Refusal> {
        let words_a_page = page_size_bytes() / size_of::<u64>();
        let view: &[u64] = frozen.values(self.words.range());
        let sum = || black_box(view).iter().fold(0u64, |a, &b| a.wrapping_add(b));
        let before = sum();
        self.check_writers(|page, writer| view[page * words_a_page + writer], 1)?;
        std::thread::sleep(WRITE_FOR);
        if sum() != before {
            return Err(Refusal::unknown(0, "a frozen view changed"));
        }
        Ok(())
    }

    /// Checks the writers' counters; a writer may be in `open` unfinished rounds.
    fn check_writers(&self, word: impl Fn(usize, usize) -> u64, open: u64) -> Result<(), Refusal> {
        let last_page = self.pages() - 1;
        for writer in 0..WRITERS {
            let (first, last) = (word(0, writer), word(last_page, writer));
            let between: u64 = (1..last_page).map(|page| word(page, writer)).sum();
            if !(last <= between && between <= first && first <= last + open) {
                let seen = format!("{first}, {between}, {last}");
                return Err(Refusal::unknown(0, format!("stores lost or out of order: {seen}")));
            }
        }
        Ok(())
    }

    fn fork(&self, method: FreezeMethod) -> ProbeResult {
        let word = self.word(1, FORK_WORD);
        let ns = median(|| {
            let before = word.load(SeqCst);
            let watch = Stopwatch::start();
            let pid = fork_watching(&self.arena, word, before, WRITE_FOR)?;
            let ns = watch.elapsed_ns();
            word.store(before + 1, SeqCst);
            if process::wait_for(pid)? != 0 {
                return Err(Refusal::unknown(0, "a child did not see memory as it was"));
            }
            let is_live =
                method == FreezeMethod::WithoutUserfaultfd || self.arena.wait_live(PATIENCE);
            if !is_live || word.load(SeqCst) != before + 1 {
                return Err(Refusal::unknown(
                    0,
                    "the thaw after a fork did not end, or lost a store",
                ));
            }
            Ok(ns)
        })?;
        Ok(Proof::saw("of this small process; the child saw memory as it was")
            .costing(ns, "a fork"))
    }
}

impl Seen {
    fn freeze(&self) -> ProbeResult {
        let method = match self.method {
            FreezeMethod::Userfaultfd => "in constant time",
            FreezeMethod::WithoutUserfaultfd => "without userfaultfd: longer for larger memory",
        };
        let detail = format!("{method}; {}; {WRITERS} threads wrote", self.made_of);
        Ok(Proof::saw(detail).costing(self.freeze_ns, "a freeze"))
    }

    fn thaw(&self, faults: &[Capability]) -> ProbeResult {
        if self.method == FreezeMethod::Userfaultfd {
            let all = ByteCount((CHUNKS * CHUNK_BYTES) as u64);
            let detail = format!(
                "{} pages written in a chunk, no store lost; {} of {all} huge afterwards",
                self.thaw_chunk_pages, self.huge
            );
            return Ok(Proof::saw(detail).costing(self.thaw_chunk_ns, "a chunk"));
        }
        let detail = "nothing holds writers off, so that memory stays frozen";
        let is_lacking = |capability: &&Capability| {
            capability.need == Need::Full && !capability.answer.is_available()
        };
        match faults.iter().find(is_lacking) {
            Some(lacking) => Err(Refusal::because(&lacking.answer, detail)),
            None => Err(Refusal::because(&Answer::Unknown { errno: 0 }, detail)),
        }
    }
}

/// Makes the writers end.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Relaxed);
    }
}
