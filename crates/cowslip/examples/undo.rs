//! A store that keeps its last instants: a view from time to time, answers "as of", and undo.
//!
//! ```text
//!   cargo run --release --example undo -- [MIB] [VIEWS]
//! ```

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use cowslip::units::ByteCount;
use cowslip::{Arena, ArenaSlice, Frozen, MOST_VIEWS};

/// A table of words, and the views of its last instants.
struct History {
    arena: Arena,
    table: ArenaSlice<u64>,
    views: VecDeque<(Instant, Frozen)>,
    most: usize,
}

impl History {
    fn new(mib: u64, most: usize) -> cowslip::Result<Self> {
        let arena = Arena::new(ByteCount::mib(2 * mib))?;
        let mut table = arena.slice::<u64>((mib << 20) as usize / 8)?;
        table.fill(1);
        Ok(Self { arena, table, views: VecDeque::new(), most: most.min(MOST_VIEWS) })
    }

    /// Keeps this instant; returns the time of the freeze, which other threads could notice.
    fn keep(&mut self) -> cowslip::Result<Duration> {
        if self.views.len() == self.most {
            self.views.pop_front();
        }
        self.arena.prepare_freeze()?;
        let began = Instant::now();
        self.views.push_back((began, self.arena.freeze()?));
        Ok(began.elapsed())
    }

    /// The table at the last instant kept before `when`.
    fn at(&self, when: Instant) -> Option<&[u64]> {
        let mut before = self.views.iter().rev().filter(|(taken, _)| *taken <= when);
        before.next().map(|(_, view)| view.slice(&self.table))
    }

    /// Restores the table of the `back`-th last instant.
    fn undo(&mut self, back: usize) -> cowslip::Result<Duration> {
        let (_, view) = &self.views[self.views.len() - 1 - back];
        let began = Instant::now();
        // SAFETY: only this thread uses the arena.
        #[allow(unsafe_code)]
        unsafe {
            self.arena.roll_back(view)?;
        }
        Ok(began.elapsed())
    }
}

fn main() -> cowslip::Result<()> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse().unwrap_or(64));
    let (mib, most) = (arguments.next().unwrap_or(64), arguments.next().unwrap_or(8));
    let mut history = History::new(mib, most as usize)?;
    let began = Instant::now();
    let pages = history.table.len() / 512;
    for round in 0..most {
        let kept = history.keep()?;
        // A tenth of the pages change, all over the table.
        (0..pages / 10).for_each(|i| history.table[(i * 7919 % pages) * 512] = round + 2);
        println!("instant {round}: kept in {:.2} ms", kept.as_secs_f64() * 1e3);
    }
    let first = history.at(began + Duration::from_secs(3600)).expect("a view");
    println!("the last kept instant says {}, the table says {}", first[0], history.table[0]);
    let back = history.views.len() - 1;
    let took = history.undo(back)?;
    let is_first = history.table.iter().all(|&word| word == 1);
    println!("undone in {:.2} ms; the table is what it was: {is_first}", took.as_secs_f64() * 1e3);
    let took = history.undo(0)?;
    println!("and forth again in {:.2} ms: {}", took.as_secs_f64() * 1e3, history.table[0]);
    Ok(())
}
