//! `bench bloat-process`: reads commands for its memory from standard input, one a line, and answers each with a line.

use std::fs;
use std::hint::black_box;
use std::io::{self, BufRead, Write};
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::pinned::PinnedPages;
use crate::demo::redis::value::Random;
use crate::error::{Error, Result, during};
use crate::memory::{Anonymous, Memory};

/// A command.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Command {
    /// Takes memory and writes all of it, on pages that the system's settings choose, or on base pages.
    Fill { bytes: u64, base: bool },
    /// Compares every word with the expected one.
    Check,
    /// Writes words at random for this long, each with its present value.
    Work { ms: u64 },
    /// Takes memory in portions, with a pause after each, and touches it page by page.
    Touch { portions: u64, bytes: u64, pause_ms: u64 },
    /// Gives back all pages but one in this many.
    Thin { keep_one_in: usize },
    /// Pins one page in this many, and gives back all others.
    Pin { keep_one_in: usize },
}

/// An answer.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) enum Said {
    Done,
    /// The number of words that differ from the expected ones.
    Wrong(u64),
    /// Words written, and the nanoseconds that this took.
    Worked {
        steps: u64,
        ns: u64,
    },
    /// The first touch of each page: nanoseconds, and the number of pages that took as long.
    Touched(Vec<(u64, u64)>),
    Failed(String),
}

/// `cowslip-bench bloat-process`: reads commands from standard input until it ends.
///
/// # Errors
/// [`Error::Failed`] if a line is no command, or cannot be read or answered.
pub fn run() -> Result<()> {
    // Makes the kernel choose this process if memory runs out.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    let (mut all, mut pins) = (Vec::new(), PinnedPages::default());
    for line in io::stdin().lock().lines() {
        let line = line.map_err(during("read a command"))?;
        let command: Command = serde_json::from_str(&line).map_err(during("read a command"))?;
        let said = obey(command, &mut all, &mut pins);
        let said = said.unwrap_or_else(|error| Said::Failed(error.to_string()));
        let text = serde_json::to_string(&said).map_err(during("answer"))?;
        writeln!(io::stdout(), "{text}").map_err(during("answer"))?;
    }
    Ok(())
}

/// Memory that holds the next of `numbers` at the start of each page, and zeros elsewhere.
struct Written {
    memory: Memory,
    numbers: Random,
}

impl Written {
    fn new(bytes: u64, pages: Anonymous, index: usize) -> Result<Self> {
        let memory = Memory::anonymous(bytes as usize, pages)?;
        Ok(Self { memory, numbers: Random(index as u64) })
    }

    /// Writes every page once, in order.
    fn write(&self, mut written: impl FnMut(&dyn Fn())) {
        let mut numbers = self.numbers.clone();
        for page in 0..self.memory.pages() {
            let number = numbers.next();
            written(&|| self.memory.page(page).store(number, Relaxed));
        }
    }

    fn wrong_words(&self) -> u64 {
        let mut numbers = self.numbers.clone();
        let page_bytes = self.memory.bytes() / self.memory.pages();
        let wrong = (0..self.memory.bytes()).step_by(8).filter(|&at| {
            let wanted = if at.is_multiple_of(page_bytes) { numbers.next() } else { 0 };
            self.memory.word(at).load(Relaxed) != wanted
        });
        wrong.count() as u64
    }
}

fn obey(command: Command, all: &mut Vec<Written>, pins: &mut PinnedPages) -> Result<Said> {
    match command {
        Command::Fill { bytes, base } => {
            let pages = if base { Anonymous::Base } else { Anonymous::Any };
            let written = Written::new(bytes, pages, all.len())?;
            written.write(|write| write());
            all.push(written);
            Ok(Said::Done)
        }
        Command::Check => Ok(Said::Wrong(all.iter().map(Written::wrong_words).sum())),
        Command::Work { ms } => {
            let none = || Error::Failed("it has no memory yet".to_owned());
            let memory = &all.last().ok_or_else(none)?.memory;
            Ok(work(memory, Duration::from_millis(ms)))
        }
        Command::Touch { portions, bytes, pause_ms } => {
            let mut latencies = Vec::new();
            for _ in 0..portions {
                let written = Written::new(bytes, Anonymous::Any, all.len())?;
                latencies.reserve(written.memory.pages());
                // The time includes the cost of the clock itself.
                written.write(|write| {
                    let began = Instant::now();
                    write();
                    latencies.push(began.elapsed().as_nanos() as u64);
                });
                all.push(written);
                thread::sleep(Duration::from_millis(pause_ms));
            }
            latencies.sort_unstable();
            let runs = latencies.chunk_by(|a, b| a == b).map(|run| (run[0], run.len() as u64));
            Ok(Said::Touched(runs.collect()))
        }
        Command::Thin { keep_one_in } => {
            all.iter().try_for_each(|written| written.memory.thin_out(keep_one_in))?;
            Ok(Said::Done)
        }
        Command::Pin { keep_one_in } => {
            for mut written in all.drain(..) {
                pins.pin(written.memory.bytes_mut(), keep_one_in)?;
            }
            Ok(Said::Done)
        }
    }
}

/// Reads and writes words at random, and leaves their values as they are.
fn work(memory: &Memory, time: Duration) -> Said {
    const STEPS_A_LOOK: u64 = 1 << 14;
    let words = (memory.bytes() / 8) as u64;
    let mut random = Random(words);
    let mut word = || memory.word((random.next() % words) as usize * 8);
    let (began, mut steps) = (Instant::now(), 0);
    while began.elapsed() < time {
        for _ in 0..STEPS_A_LOOK {
            let word = word();
            word.store(black_box(word.load(Relaxed)), Relaxed);
        }
        steps += STEPS_A_LOOK;
    }
    Said::Worked { steps, ns: began.elapsed().as_nanos() as u64 }
}
