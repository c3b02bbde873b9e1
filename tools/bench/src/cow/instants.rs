#![allow(unsafe_code)]
//! A second view while the first lives, and the way back to the first.
//!
//! # Safety
//! A single thread uses the arena.

use std::time::{Duration, Instant};

use crate::report::Row;
use cowslip::Arena;
use cowslip::units::ByteCount;

use super::{Bench, Options, write_some};
use crate::error::Result;
use crate::host::warm;
use crate::memory::Memory;
use crate::rows::push_durations;

/// Time of a freeze beside an earlier view, after [`Arena::prepare_freeze`].
pub(super) const SECOND_VIEW: &str = "second_view";
/// Time of [`Arena::prepare_freeze`].
const PREPARED: &str = "second_view_prepared";
/// Time of [`Arena::roll_back`] to the first view, past a second one.
pub(super) const ROLL_BACK: &str = "roll_back";

const LEAST_ROUNDS: u32 = 3;
const MOST_ROUNDS: u32 = 7;
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let bytes = options.working_bytes();
    bench.progress.phase("views at two instants");
    let arena = Arena::new(ByteCount(2 * bytes as u64))?;
    let memory = Memory::in_arena(&arena, bytes)?;
    memory.touch(bench.stop)?;
    let (mut prepared, mut views, mut backs) = (Vec::new(), Vec::new(), Vec::new());
    // The first round warms up.
    for round in bench.clock.rounds(1.0, 1 + LEAST_ROUNDS, 1 + MOST_ROUNDS) {
        let first = arena.freeze_timeout(PATIENCE)?;
        write_some(&memory, u64::from(2 * round), bench.stop)?;
        warm(ByteCount(bytes as u64), bench.stop)?;
        let began = Instant::now();
        arena.prepare_freeze()?;
        let after_ns = began.elapsed().as_nanos() as f64;
        let began = Instant::now();
        let second = arena.freeze()?;
        let view_ns = began.elapsed().as_nanos() as f64;
        write_some(&memory, u64::from(2 * round + 1), bench.stop)?;
        let began = Instant::now();
        // SAFETY: see the module.
        unsafe { arena.roll_back(&first) }?;
        let back_ns = began.elapsed().as_nanos() as f64;
        drop((first, second));
        arena.wait_live(PATIENCE);
        if round > 0 {
            prepared.push(after_ns);
            views.push(view_ns);
            backs.push(back_ns);
        }
    }
    for (metric, ns) in [(PREPARED, &prepared), (SECOND_VIEW, &views), (ROLL_BACK, &backs)] {
        let row = Row::new("cowslip", metric, "", 0.0, "ns").size_bytes(bytes as u64);
        push_durations(bench.report, &row, ns);
    }
    Ok(())
}
