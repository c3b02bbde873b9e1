//! Cost of saving an image for a program that writes at random meanwhile.
//!
//! It is measured beside the same program with nothing else going on, and with a frozen view that is not saved: the
//! first write to a page copies it then, saved or not.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::report::Latencies;
use cowslip::image::{SaveOptions, save};

use super::{Bench, Error, PATIENCE, Result, Sample};
use crate::restore::proceed;
use crate::restore::sample::word;

const METRIC: &str = "write_while_saving";
/// The time of a save, or this.
const SHORTEST: Duration = Duration::from_millis(100);

#[derive(Clone, Copy)]
enum Meanwhile {
    Nothing,
    Frozen,
    Saving,
}

pub(super) fn measure(bench: &mut Bench<'_>, sample: &Sample, rounds: u32) -> Result<()> {
    let meanwhile = [
        (Meanwhile::Saving, "saving"),
        (Meanwhile::Frozen, "frozen"),
        (Meanwhile::Nothing, "nothing"),
    ];
    let mut seen = meanwhile.map(|_| Latencies::new());
    let mut scatter = 1;
    for round in bench.clock.rounds(1.0, 1, rounds) {
        let round = round + 1;
        bench.progress.phase(&format!("save: random writes meanwhile, round {round} of {rounds}"));
        let mut span = SHORTEST;
        for ((meanwhile, _), latencies) in meanwhile.iter().zip(&mut seen) {
            bench.stop.check()?;
            let began = Instant::now();
            write(sample, *meanwhile, span, latencies, &mut scatter)?;
            span = span.max(began.elapsed());
        }
    }
    for ((_, variant), latencies) in meanwhile.iter().zip(&seen) {
        latencies.push(bench.report, "cowslip", METRIC, Some(sample.bytes()), Some(variant));
    }
    Ok(())
}

fn write(
    sample: &Sample,
    meanwhile: Meanwhile,
    span: Duration,
    latencies: &mut Latencies,
    scatter: &mut u64,
) -> Result<()> {
    // Waits until all chunks that an earlier part froze are live.
    if !sample.arena.wait_live(PATIENCE) {
        return Err(Error::Failed(format!("it was not thawed within {PATIENCE:?}")));
    }
    let frozen = match meanwhile {
        Meanwhile::Nothing => None,
        Meanwhile::Frozen | Meanwhile::Saving => Some(sample.arena.freeze()?),
    };
    let is_saved = AtomicBool::new(false);
    let target = sample.folder.path().join("meanwhile");
    let saved = thread::scope(|scope| {
        let saving = frozen.as_ref().filter(|_| matches!(meanwhile, Meanwhile::Saving));
        let saving = saving.map(|frozen| {
            scope.spawn(|| {
                let saved = save(&[frozen], &target, &SaveOptions::default(), &mut proceed);
                is_saved.store(true, Relaxed);
                saved
            })
        });
        let began = Instant::now();
        let mut last = began;
        while if saving.is_some() { !is_saved.load(Relaxed) } else { last - began < span } {
            *scatter = scatter.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let i = (((*scatter >> 32) * (sample.bytes() / 8)) >> 32) as usize;
            // Stores the same value: other parts find the content as it was.
            sample.memory.word(i * 8).store(word(i), Relaxed);
            let now = Instant::now();
            latencies.record(now - last);
            last = now;
        }
        saving.map(|saving| saving.join().expect("it does not panic"))
    });
    let _ = std::fs::remove_file(&target);
    saved.transpose()?;
    Ok(())
}
