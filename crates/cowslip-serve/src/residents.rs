//! The images in memory.
//!
//! ```text
//!   asked for ─▶ held? ──yes──▶ handed out
//!                 │ no: one thread loads it; others wait for that, or are lent what is there
//!                 ▼
//!              room? ──no──▶ is the image whole? ──yes──▶ the least recently used is given up, until there is
//! ```
//! An image that cannot be loaded is not read again for [`RETRY`], however often it is requested. An image that is
//! dropped stays in memory while a client reads it, and no longer counts here.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cowslip::Template;
use cowslip::image::served::{Answer, Loading, REPEAT};
use cowslip::image::{Image, ImageIdentity};
use cowslip::units::CHUNK_BYTES;

use crate::metrics::{Metrics, count};
use crate::options::{Opener, Options};

type Key = (ImageIdentity, u32);

/// Time before an image is tried again that could not be loaded.
const RETRY: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Residents {
    paths: Vec<PathBuf>,
    opener: Opener,
    most_bytes: u64,
    tell: fn(&str),
    table: Mutex<Table>,
    changed: Condvar,
    pub(crate) metrics: Metrics,
}

/// An arena of an image: all of it, or the part loaded so far.
#[derive(Debug)]
pub(crate) enum Resident {
    Whole(Arc<Template>),
    Loading(Arc<Loading>),
}

#[derive(Debug, Default)]
struct Table {
    held: HashMap<Key, Held>,
    loading: HashMap<Key, Arc<Load>>,
    /// The time at which it could not be loaded.
    failed: HashMap<Key, Instant>,
    /// Bytes of the images that are held or being loaded.
    bytes: u64,
    /// No image is loaded, or waited for, any more.
    is_closed: bool,
    clock: u64,
}

#[derive(Debug)]
struct Held {
    template: Arc<Template>,
    bytes: u64,
    used_at: u64,
}

/// The progress of a load, for the clients that asked meanwhile. It is set under the table's lock.
#[derive(Debug, Default)]
struct Load {
    begun: OnceLock<Arc<Loading>>,
    outcome: OnceLock<Result<Arc<Template>, Answer>>,
}

/// The load of an image. Dropping it ends every client's wait for the image.
struct Loader {
    residents: Arc<Residents>,
    key: Key,
    load: Arc<Load>,
    bytes: u64,
}

impl Residents {
    pub(crate) fn new(options: &Options, tell: fn(&str)) -> Self {
        let Options { images, opener, most_memory, .. } = options.clone();
        let (table, changed) = (Mutex::default(), Condvar::new());
        let metrics = Metrics::default();
        Self { paths: images, opener, most_bytes: most_memory.0, tell, table, changed, metrics }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, table: MutexGuard<'a, Table>) -> MutexGuard<'a, Table> {
        self.changed.wait(table).unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn text(&self) -> String {
        let table = self.table();
        self.metrics.text(table.held.len() as u64, table.bytes, self.most_bytes)
    }

    /// Ends all waits and starts no more loads.
    pub(crate) fn close(&self) {
        self.table().is_closed = true;
        self.changed.notify_all();
    }

    /// Loads the images that fit, in the given order. An image that cannot be loaded is reported and left out.
    pub(crate) fn load_all(self: &Arc<Self>) {
        for path in &self.paths {
            let image = match self.opener.open(path) {
                Ok(image) => image,
                Err(error) => {
                    (self.tell)(&error.to_string());
                    continue;
                }
            };
            for arena in 0..image.description().arenas.len() as u32 {
                let bytes = used_bytes(&image, arena);
                let table = self.table();
                if table.is_closed || table.bytes.saturating_add(bytes) > self.most_bytes {
                    return;
                }
                drop(table);
                let _ = self.get((image.identity(), arena), false, || Ok(()));
            }
        }
    }

    /// An arena of an image, loaded if need be: all of it, or, for a client that `borrows`, the part that is loaded.
    /// While there is nothing to hand out, `wait` is called now and then, until it fails.
    pub(crate) fn get(
        self: &Arc<Self>,
        key: Key,
        borrows: bool,
        mut wait: impl FnMut() -> io::Result<()>,
    ) -> Result<Resident, Answer> {
        let mut table = self.table();
        if let Some(template) = table.use_held(key) {
            return Ok(Resident::Whole(template));
        }
        if table.failed.get(&key).is_some_and(|at| at.elapsed() < RETRY) {
            return Err(Answer::Failed);
        }
        let load = if let Some(load) = table.loading.get(&key) {
            Arc::clone(load)
        } else if table.is_closed {
            return Err(Answer::Ending);
        } else {
            let load = Arc::<Load>::default();
            table.loading.insert(key, Arc::clone(&load));
            drop(table);
            let residents = Arc::clone(self);
            Loader { residents, key, load: Arc::clone(&load), bytes: 0 }.start();
            table = self.table();
            load
        };
        loop {
            if let Some(outcome) = load.outcome.get() {
                return outcome.clone().map(Resident::Whole);
            }
            if let Some(begun) = load.begun.get().filter(|_| borrows) {
                return Ok(Resident::Loading(Arc::clone(begun)));
            }
            if table.is_closed {
                return Err(Answer::Ending);
            }
            drop(table);
            // The client has gone: it gets no answer.
            wait().map_err(|_| Answer::Failed)?;
            let is_early = |table: &mut Table| {
                let has_some = borrows && load.begun.get().is_some();
                !table.is_closed && !has_some && load.outcome.get().is_none()
            };
            let waited = self.changed.wait_timeout_while(self.table(), REPEAT, is_early);
            table = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// An arena of an image, if all of it is in memory.
    pub(crate) fn held(&self, key: Key) -> Option<Arc<Template>> {
        self.table().use_held(key)
    }

    /// The image with this identity, among those that are served now: a file may have been replaced.
    fn find(&self, (identity, arena): Key) -> Option<Image> {
        let images = self.paths.iter().filter_map(|path| self.opener.open(path).ok());
        let has_arena = |image: &Image| image.description().arenas.len() > arena as usize;
        images.into_iter().find(|image| image.identity() == identity && has_arena(image))
    }
}

impl Table {
    fn use_held(&mut self, key: Key) -> Option<Arc<Template>> {
        self.clock += 1;
        let held = self.held.get_mut(&key)?;
        held.used_at = self.clock;
        Some(Arc::clone(&held.template))
    }
}

impl Loader {
    /// Has a thread load the image.
    fn start(mut self) {
        let residents = Arc::clone(&self.residents);
        let load = move || {
            let outcome = self.load();
            self.end(outcome);
        };
        let thread = thread::Builder::new().name("cowslip-load".into()).spawn(load);
        if let Err(error) = thread {
            (residents.tell)(&format!("start a thread that loads an image: {error}"));
        }
    }

    fn load(&mut self) -> Result<Arc<Template>, Answer> {
        let loading = self.begin()?;
        let table = self.residents.table();
        let _ = self.load.begun.set(Arc::clone(&loading));
        self.residents.changed.notify_all();
        drop(table);
        loading.finish().map(Arc::new).map_err(|error| self.fail(&error))
    }

    fn begin(&mut self) -> Result<Arc<Loading>, Answer> {
        let Some(image) = self.residents.find(self.key) else {
            count(&self.residents.metrics.not_held);
            return Err(Answer::NotHeld);
        };
        let bytes = used_bytes(&image, self.key.1);
        if bytes > self.residents.most_bytes {
            return Err(Answer::TooLarge);
        }
        if !self.take_room(bytes) {
            // No image is dropped for one that cannot be loaded.
            self.verify(&image)?;
            self.make_room(bytes)?;
        }
        image.load(self.key.1).map(Arc::new).map_err(|error| self.fail(&error))
    }

    fn fail(&self, error: &cowslip::Error) -> Answer {
        (self.residents.tell)(&error.to_string());
        count(&self.residents.metrics.failed_loads);
        Answer::Failed
    }

    /// Reads and checks all that a load would.
    fn verify(&self, image: &Image) -> Result<(), Answer> {
        let mut content = vec![0; CHUNK_BYTES];
        for chunk in image.used_chunks(self.key.1) {
            let read = image.read_chunk(self.key.1, chunk, &mut content);
            read.map_err(|error| self.fail(&error))?;
            if self.residents.table().is_closed {
                return Err(Answer::Ending);
            }
        }
        Ok(())
    }

    /// Takes `bytes` of the room, if that much is free.
    fn take_room(&mut self, bytes: u64) -> bool {
        let mut table = self.residents.table();
        let fits = table.bytes + bytes <= self.residents.most_bytes;
        if fits {
            table.bytes += bytes;
            self.bytes = bytes;
        }
        fits
    }

    /// Drops the images used least recently until there is room, or until none is left.
    fn make_room(&mut self, bytes: u64) -> Result<(), Answer> {
        let residents = &self.residents;
        let mut table = residents.table();
        while table.bytes + bytes > residents.most_bytes {
            let oldest = table.held.iter().min_by_key(|(_, held)| held.used_at);
            let Some(key) = oldest.map(|(key, _)| *key) else {
                // Others are being loaded.
                if table.is_closed {
                    return Err(Answer::Ending);
                }
                table = residents.wait(table);
                continue;
            };
            if let Some(held) = table.held.remove(&key) {
                table.bytes -= held.bytes;
                count(&residents.metrics.dropped);
            }
        }
        table.bytes += bytes;
        drop(table);
        self.bytes = bytes;
        Ok(())
    }

    fn end(mut self, outcome: Result<Arc<Template>, Answer>) {
        let residents = Arc::clone(&self.residents);
        let mut table = residents.table();
        if let Ok(template) = &outcome {
            count(&residents.metrics.loads);
            let (bytes, used_at) = (std::mem::take(&mut self.bytes), table.clock);
            table.held.insert(self.key, Held { template: Arc::clone(template), bytes, used_at });
        }
        let _ = self.load.outcome.set(outcome);
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        let mut table = self.residents.table();
        // This outcome is kept unless there is one already.
        let outcome = self.load.outcome.get_or_init(|| Err(Answer::Failed));
        if matches!(outcome, Err(Answer::Failed)) {
            table.failed.retain(|_, at| at.elapsed() < RETRY);
            table.failed.insert(self.key, Instant::now());
        }
        table.loading.remove(&self.key);
        table.bytes -= self.bytes;
        self.residents.changed.notify_all();
    }
}

/// Memory that an arena of an image takes: whole chunks.
fn used_bytes(image: &Image, arena: u32) -> u64 {
    (image.used_chunks(arena).len() * CHUNK_BYTES) as u64
}
