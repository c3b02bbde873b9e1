//! Measures the cost of an arena made from a template: until it can be touched, until it was read, until it is
//! independent.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use cowslip::units::{ByteCount, page_size_bytes};
use cowslip::{Arena, Place};

const ROUNDS: usize = 9;
const PATIENCE: Duration = Duration::from_secs(60);

fn read(words: &[u64]) -> u64 {
    words.iter().step_by(page_size_bytes() / 8).fold(0, |sum, word| sum ^ word)
}

/// Processor time of all threads, as the kernel counts it.
fn processor_time() -> Duration {
    let of = |entry: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(entry.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    Duration::from_nanos(tasks.filter_map(of).sum())
}

fn main() -> cowslip::Result<()> {
    let size = ByteCount::mib(512);
    let arena = Arena::new(size)?;
    let mut words = arena.slice::<u64>(size.0 as usize / 8)?;
    words.iter_mut().enumerate().for_each(|(i, word)| *word = i as u64);
    let template = arena.freeze()?.into_template()?;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        // Otherwise the measurement would only show how long the host takes to find memory.
        let warm = Arena::new(size)?;
        let mut target = warm.slice::<u64>(words.len())?;
        target.fill(1);
        let began = Instant::now();
        target.copy_from_slice(&words);
        let copy = began.elapsed();
        drop((target, warm));

        let began = Instant::now();
        let again = template.restore(template.arena_builder(Place::Anywhere)?)?;
        // SAFETY: no other code has this memory.
        let mine =
            unsafe { again.adopt_slice::<u64>(template.range_in(&again, words.value_range())) }?;
        let made = began.elapsed();
        black_box(mine[0]);
        let touched = began.elapsed();
        let began_reading = Instant::now();
        black_box(read(&mine));
        let has_read = began_reading.elapsed();
        let (began_waiting, used) = (Instant::now(), processor_time());
        assert!(again.wait_live(PATIENCE));
        let (own, waited) = (began.elapsed(), began_waiting.elapsed());
        let used = processor_time() - used;
        rounds.push([copy, made, touched, has_read, own, waited, used]);
    }
    let names = [
        "memory copy, warm",
        "arena made",
        "first touch",
        "read in order",
        "its own",
        "of which after the read",
        "processor time of that",
    ];
    for (i, name) in names.iter().enumerate() {
        let mut column: Vec<_> = rounds.iter().map(|round| round[i]).collect();
        column.sort();
        println!("{name:24} p50 {:?}, fastest {:?}", column[ROUNDS / 2], column[0]);
    }
    Ok(())
}
