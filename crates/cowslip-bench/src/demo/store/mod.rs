//! A small in-memory store of our own, saved under write load: by fork on pages of each kind, and by Cowslip.
//!
//! One thread does `SET` after `SET` while another takes snapshots and has them written to a file. Each file is
//! compared, byte by byte, with its allowed content (`consistency`).

mod consistency;
mod load;
mod memory;
mod rows;
mod running_store;
mod table;

use cowslip::units::{ByteCount, CHUNK_BYTES, round_up};
use cowslip_report::Report;

use crate::interrupt::Interrupt;
use memory::{MemoryKind, during};
use running_store::{RunningStore, Writer};

type Result<T> = std::result::Result<T, String>;
/// Receives the progress: a label, the amount done, and the whole.
pub type Progress<'a> = &'a mut dyn FnMut(&str, u64, u64);

/// Options of a run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Size of the table.
    pub size_bytes: u64,
    /// Saves of each store under load; one more has a still writer.
    pub saves: usize,
}

/// Runs all stores and adds their results to `report`. It ends soon after `stop` becomes true, with the results so far,
/// and leaves no process and no file behind on any exit path.
///
/// # Errors
/// If the size cannot work. A store that cannot start is a skipped row; one that fails later a note and a failed save.
pub fn run(
    options: &Options,
    stop: &Interrupt,
    progress: Progress<'_>,
    report: &mut Report,
) -> Result<()> {
    let available = available_bytes()?;
    let bytes = usize::try_from(options.size_bytes).ok();
    let bytes = bytes.filter(|&bytes| bytes > 0).and_then(|bytes| round_up(bytes, CHUNK_BYTES));
    // Room for the store, its copies, and the comparison.
    let room = bytes.map_or(0, |bytes| available / bytes as u64);
    let Some(bytes) = bytes.filter(|_| room >= 3) else {
        return Err(format!(
            "a store of {} needs three times as much memory, and {} are available",
            ByteCount(options.size_bytes),
            ByteCount(available)
        ));
    };
    let together = room >= MemoryKind::ALL.len() as u64 + 3;
    if !together {
        let why = "memory does not hold all stores at once: they ran one after another";
        report.notes.push(why.to_owned());
    }
    for group in MemoryKind::ALL.chunks(if together { MemoryKind::ALL.len() } else { 1 }) {
        run_group(group, bytes, options.saves, stop, progress, report);
    }
    if stop.is_set() {
        report.notes.push("own store: interrupted, the results are not complete".to_owned());
    }
    Ok(())
}

/// Fills a store of each kind, then saves them in turns.
fn run_group(
    kinds: &[MemoryKind],
    bytes: usize,
    saves: usize,
    stop: &Interrupt,
    progress: Progress<'_>,
    report: &mut Report,
) {
    let mut stores = Vec::new();
    for &kind in kinds {
        match RunningStore::start(kind, bytes, stop, progress) {
            Ok(store) => stores.push(store),
            Err(_) if stop.is_set() => {}
            Err(why) => report.skip(kind.name(), "fork", why),
        }
    }
    let busy = (1..=saves).map(|n| (format!("save {n}"), Writer::Busy));
    for (label, writer) in busy.chain([("still save".to_owned(), Writer::Still)]) {
        for store in stores.iter_mut().filter(|store| store.failed_saves == 0) {
            if stop.is_set() {
                break;
            }
            progress(&format!("{label} of {}", store.name), 0, 1);
            match store.save(&label, writer, stop) {
                Ok(save) => store.saves.push(save),
                Err(_) if stop.is_set() => {}
                Err(why) => {
                    store.failed_saves += 1;
                    report.notes.push(format!("{} failed in {label}: {why}", store.name));
                }
            }
        }
    }
    for store in stores.iter().filter(|c| !c.saves.is_empty() || c.failed_saves > 0) {
        rows::push(report, store, bytes as u64);
    }
}

fn available_bytes() -> Result<u64> {
    let path = "/proc/meminfo";
    let text = std::fs::read_to_string(path).map_err(during(format!("read {path}")))?;
    let value = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = value.and_then(|value| value.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| format!("{path} has no MemAvailable"))
}
