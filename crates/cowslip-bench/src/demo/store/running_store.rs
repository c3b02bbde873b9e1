//! One store at work: its filling and its saves, each of them verified.

use std::fs::{self, File};
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{env, io, process, thread};

use cowslip::units::ByteCount;

use super::consistency::{Cut, Model, Violations};
use super::load::{Log, Phase, Shared, under_load};
use super::memory::{Mapped, Memory, MemoryKind, Snapshot, during};
use super::table::{SLOT_BYTES, Slot, Table, compose};
use super::{Progress, Result};
use crate::host::warm;
use crate::interrupt::Interrupt;

/// Time that the load runs before and after a save.
const QUIET: Duration = Duration::from_millis(300);
/// The least share of a store on huge pages, if it needs them.
const MIN_COVERAGE: f64 = 0.5;
/// Keys between two reports of the filling's progress.
const FILL_STEP: u64 = 1 << 17;

/// The writer's activity while the snapshot is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writer {
    /// It writes on: the measured case.
    Busy,
    /// It waits until the snapshot exists, which must hold one state, to the byte.
    Still,
}

/// Costs of one save, and its verification.
#[derive(Debug)]
pub(crate) struct Save {
    pub(crate) label: String,
    pub(crate) writer: Writer,
    pub(crate) paused: Duration,
    pub(crate) duration: Duration,
    pub(crate) cow_bytes: u64,
    pub(crate) mapped_before: Mapped,
    pub(crate) mapped_after: Mapped,
    pub(crate) log: Log,
    /// Seconds since the load of this store first began: the start of this load, and the save.
    pub(crate) began: f64,
    pub(crate) span: (f64, f64),
    /// Violations of the file, and of the live store.
    pub(crate) saved: Violations,
    pub(crate) live: Violations,
}

/// Facts about a snapshot that was taken and written.
struct Taken {
    paused: Duration,
    cut: Cut,
    began: Instant,
    duration: Duration,
    cow_bytes: u64,
    method: cowslip::FreezeMethod,
}

/// A store, from its first key to its last save.
#[derive(Debug)]
pub(crate) struct RunningStore {
    pub(crate) name: &'static str,
    pub(crate) saves: Vec<Save>,
    pub(crate) failed_saves: u64,
    memory: Memory,
    model: Model,
    sets: u64,
    /// Time that the load has run in all saves so far.
    loaded_seconds: f64,
}

impl RunningStore {
    /// Fills a store, which also touches all of its memory.
    pub(crate) fn start(
        kind: MemoryKind,
        bytes: usize,
        stop: &Interrupt,
        progress: Progress<'_>,
    ) -> Result<Self> {
        let (name, memory) = (kind.name(), Memory::new(kind, bytes)?);
        let table = Table::new(memory.words());
        for key in 1..=table.keys() {
            if key % FILL_STEP == 1 {
                check(stop)?;
                progress(&format!("fill {name}"), key, table.keys());
            }
            table.set(&compose(key, 0));
        }
        let model = Model::new(table);
        let coverage = memory.mapped()?.huge_bytes as f64 / bytes as f64;
        if kind == MemoryKind::ForkThp && coverage < MIN_COVERAGE {
            let percent = coverage * 100.0;
            return Err(format!("huge pages map only {percent:.0} % of its memory"));
        }
        let saves = Vec::new();
        Ok(Self { name, saves, failed_saves: 0, memory, model, sets: 0, loaded_seconds: 0.0 })
    }

    /// Saves once, and verifies the save.
    pub(crate) fn save(&mut self, label: &str, writer: Writer, stop: &Interrupt) -> Result<Save> {
        let Self { memory, model, sets, loaded_seconds, .. } = self;
        let table = Table::new(memory.words());
        // If a host gives memory on first touch, the copies must not pay for that.
        let bytes = ByteCount(size_of_val(memory.words()) as u64);
        warm(bytes, stop).map_err(during("touch free memory"))?;
        let mapped_before = memory.mapped()?;
        let file = scratch_file().map_err(during("make a file in the temporary directory"))?;
        let copy = || file.try_clone().map_err(during("duplicate a descriptor"));

        let shared = Shared::new(*sets);
        let clock = Instant::now();
        let (taken, log) = match writer {
            Writer::Busy => under_load(table, &shared, || {
                thread::sleep(QUIET);
                shared.enter(Phase::Saving);
                let began = Instant::now();
                let taken = Taking::begin(memory, copy()?, &shared, stop)?.finish(began, stop);
                shared.enter(Phase::Aftermath);
                thread::sleep(QUIET);
                taken
            }),
            Writer::Still => {
                under_load(table, &shared, || thread::sleep(QUIET));
                let began = Instant::now();
                let taking = Taking::begin(memory, copy()?, &shared, stop);
                shared.enter(Phase::Saving);
                under_load(table, &shared, || {
                    let taken = taking?.finish(began, stop);
                    thread::sleep(QUIET);
                    taken
                })
            }
        };
        let loaded = clock.elapsed().as_secs_f64();
        *sets = shared.completed();
        let taken = taken?;
        memory.wait_thawed(taken.method)?;

        let saved = model.compare(slots(file)?, taken.cut);
        check(stop)?;
        // Reading all of it also maps it again, as in a store that goes on: huge pages are counted after that.
        let live = Cut { completed: *sets, begun: *sets };
        let live = model.compare((0..table.slots()).map(|slot| table.get(slot)), live);
        let began = *loaded_seconds;
        *loaded_seconds += loaded;
        let from = began + (taken.began - clock).as_secs_f64();
        Ok(Save {
            label: label.to_owned(),
            writer,
            paused: taken.paused,
            duration: taken.duration,
            cow_bytes: taken.cow_bytes,
            mapped_before,
            mapped_after: memory.mapped()?,
            log,
            began,
            span: (from, from + taken.duration.as_secs_f64()),
            saved,
            live,
        })
    }
}

/// A snapshot that was taken and is to be written.
struct Taking<'a> {
    memory: &'a Memory,
    snapshot: Snapshot<'a>,
    cut: Cut,
}

impl<'a> Taking<'a> {
    fn begin(memory: &'a Memory, file: File, shared: &Shared, stop: &Interrupt) -> Result<Self> {
        check(stop)?;
        let completed = shared.completed();
        let snapshot = memory.snapshot(file, stop)?;
        Ok(Self { memory, snapshot, cut: Cut { completed, begun: shared.begun() } })
    }

    fn finish(self, began: Instant, stop: &Interrupt) -> Result<Taken> {
        let Self { memory, mut snapshot, cut } = self;
        snapshot.write(stop)?;
        let duration = began.elapsed();
        let cow_bytes = memory.mapped()?.own_bytes;
        let (paused, method) = (snapshot.paused, snapshot.method());
        snapshot.end()?;
        Ok(Taken { paused, cut, began, duration, cow_bytes, method })
    }
}

/// A file without a name: it is gone with its last descriptor, whatever ends this process.
fn scratch_file() -> io::Result<File> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Relaxed);
        let path = env::temp_dir().join(format!("cowslip-store-{}-{number}", process::id()));
        match File::options().read(true).write(true).create_new(true).open(&path) {
            Ok(file) => return fs::remove_file(path).map(|()| file),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

/// The slots of a saved file.
fn slots(mut file: File) -> Result<impl Iterator<Item = Slot>> {
    file.seek(SeekFrom::Start(0)).map_err(during("read the save"))?;
    let mut file = BufReader::with_capacity(1 << 20, file);
    let mut bytes = [0; SLOT_BYTES];
    // A file that is too short lacks keys.
    Ok(std::iter::from_fn(move || {
        file.read_exact(&mut bytes).ok()?;
        let (words, _) = bytes.as_chunks::<8>();
        Some(std::array::from_fn(|word| u64::from_ne_bytes(words[word])))
    }))
}

fn check(stop: &Interrupt) -> Result<()> {
    if stop.is_set() { Err("interrupted".to_owned()) } else { Ok(()) }
}
