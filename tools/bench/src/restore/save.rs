//! Saving: its speed beside `dd` and `cp`, the size of increments, and the effect on a program that writes meanwhile.

mod effect;
mod tracked;

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::report::{Report, Row};
use cowslip::image::{SaveOptions, save};
use cowslip::units::{ByteCount, CHUNK_BYTES};

use super::sample::Sample;
use super::{Bench, Error, Result};
use crate::error::during;
use crate::host::warm;
use crate::restore::proceed;
use crate::rows::{median, push_durations};

pub(super) const SAVE: &str = "save";
pub(super) const DD: &str = "dd-direct";
pub(super) const CP: &str = "cp";
pub(super) const INCREMENTAL: &str = "incremental_bytes_over_changed_bytes";
/// The longest time until an earlier freeze is thawed.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn measure(bench: &mut Bench<'_>, sample: &Sample, rounds: u32) -> Result<()> {
    beside_others(bench, sample, rounds)?;
    incrementally(bench.report, sample)?;
    tracked::measure(bench, sample)?;
    effect::measure(bench, sample, rounds)
}

type Saver = fn(&Sample, &Path) -> Result<Duration>;

/// Every result is durable in the end.
fn beside_others(bench: &mut Bench<'_>, sample: &Sample, rounds: u32) -> Result<()> {
    let savers: [(&str, Saver); 3] = [("cowslip", ours), (DD, dd), (CP, cp)];
    let mut seen = savers.map(|_| Ok(Vec::new()));
    let target = sample.folder.path().join("saved");
    for round in bench.clock.rounds(0.4, 2, 1 + rounds) {
        bench.progress.phase(&format!("save: cowslip, dd, cp; round {round} of {rounds}"));
        for ((_, saver), seen) in savers.iter().zip(&mut seen) {
            bench.stop.check()?;
            let Ok(times) = seen else { continue };
            warm(ByteCount((sample.bytes() as usize) as u64), bench.stop)?;
            let saved = saver(sample, &target);
            let _ = fs::remove_file(&target);
            match saved {
                // The first round warms up.
                Ok(time) if round > 0 => times.push(time.as_nanos() as f64),
                Ok(_) => {}
                Err(Error::Failed(why)) => *seen = Err(why),
                Err(error) => return Err(error),
            }
        }
    }
    let bytes = sample.bytes();
    for ((name, _), seen) in savers.iter().zip(seen) {
        match seen {
            Ok(times) => {
                let row = Row::new(name, SAVE, "", 0.0, "ns").size_bytes(bytes);
                push_durations(bench.report, &row, &times);
                if let Some(ns) = median(&times) {
                    let rate = bytes as f64 / ns * 1e9;
                    let row = Row::new(name, "save_bytes_per_second", "p50", rate, "1/s");
                    bench.report.row(row.size_bytes(bytes).n(times.len() as u64));
                }
            }
            Err(why) => bench.report.row(Row::skipped(name, SAVE, why).size_bytes(bytes)),
        }
    }
    Ok(())
}

fn ours(sample: &Sample, target: &Path) -> Result<Duration> {
    let began = Instant::now();
    let frozen = sample.arena.freeze_timeout(PATIENCE)?;
    save(&[&frozen], target, &SaveOptions::default(), &mut proceed)?;
    Ok(began.elapsed())
}

fn dd(sample: &Sample, target: &Path) -> Result<Duration> {
    let [from, to] = [("if", &*sample.flat()), ("of", target)]
        .map(|(name, path)| format!("{name}={}", path.display()));
    let began = Instant::now();
    run(Command::new("dd").args([&from, &to]).args(["bs=4M", "oflag=direct", "conv=fsync"]))?;
    Ok(began.elapsed())
}

fn cp(sample: &Sample, target: &Path) -> Result<Duration> {
    let began = Instant::now();
    run(Command::new("cp").arg("--reflink=never").arg(sample.flat()).arg(target))?;
    let synced = File::open(target).and_then(|file| file.sync_all());
    synced.map_err(during("sync a copy"))?;
    Ok(began.elapsed())
}

fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let ended = command.output().map_err(during(format!("run {program}")))?;
    if ended.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
    Err(Error::Failed(format!("{program} failed ({}): {said}", ended.status)))
}

/// Saves an increment after a word changed in one chunk of a hundred.
fn incrementally(report: &mut Report, sample: &Sample) -> Result<()> {
    let (parent, child) = (sample.link("parent")?, sample.folder.path().join("increment"));
    let chunks = sample.bytes() as usize / CHUNK_BYTES;
    let changed = chunks.div_ceil(100);
    let places = (0..changed).map(|i| sample.memory.word(i * (chunks / changed) * CHUNK_BYTES));
    places.clone().for_each(|word| _ = word.fetch_add(1, Relaxed));
    let options = SaveOptions { parent: Some(parent), ..sample.options() };
    let frozen = sample.arena.freeze_timeout(PATIENCE)?;
    let saved = save(&[&frozen], &child, &options, &mut proceed);
    drop(frozen);
    places.for_each(|word| _ = word.fetch_sub(1, Relaxed));
    let saved = saved?;
    let bytes = saved.file_bytes as f64;
    let row = Row::new("cowslip", "incremental_image", "value", bytes, "bytes");
    report.row(row.size_bytes(sample.bytes()).n(saved.chunks));
    let ratio = bytes / (changed * CHUNK_BYTES) as f64;
    let row = Row::new("cowslip", INCREMENTAL, "value", ratio, "ratio");
    report.row(row.size_bytes(sample.bytes()).n(changed as u64));
    Ok(())
}
