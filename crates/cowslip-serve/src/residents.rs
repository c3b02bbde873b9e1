//! The images in memory.
//!
//! ```text
//!   asked for ─▶ held? ──yes──▶ handed out
//!                 │ no: one loads it, others who ask wait for that one
//!                 ▼
//!              room? ──no──▶ the least recently used is given up, until there is
//! ```
//! What is given up stays in memory as long as a client reads it, and no longer counts here.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use cowslip::Template;
use cowslip::image::served::Answer;
use cowslip::image::{Image, ImageIdentity, RestoreOptions, Via};

use crate::metrics::{Metrics, count};

type Key = (ImageIdentity, u32);

#[derive(Debug)]
pub(crate) struct Residents {
    paths: Vec<PathBuf>,
    most_bytes: u64,
    table: Mutex<Table>,
    loaded: Condvar,
    pub(crate) metrics: Metrics,
}

#[derive(Debug, Default)]
struct Table {
    held: HashMap<Key, Held>,
    loading: HashSet<Key>,
    /// Of what is held, and of what is being loaded.
    bytes: u64,
    clock: u64,
}

#[derive(Debug)]
struct Held {
    template: Arc<Template>,
    bytes: u64,
    used_at: u64,
}

/// An image that is being loaded. Others wait no longer for it when this is dropped.
struct Loading<'a> {
    residents: &'a Residents,
    key: Key,
    bytes: u64,
}

impl Residents {
    pub(crate) fn new(paths: Vec<PathBuf>, most_bytes: u64) -> Self {
        Self {
            paths,
            most_bytes,
            table: Mutex::default(),
            loaded: Condvar::new(),
            metrics: Metrics::default(),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn text(&self) -> String {
        let table = self.table();
        self.metrics.text(table.held.len() as u64, table.bytes, self.most_bytes)
    }

    /// Loads what there is room for, in the order given. An image that cannot be loaded is told of and left out.
    pub(crate) fn load_all(&self, tell: &dyn Fn(&str), goes_on: &dyn Fn() -> bool) {
        for path in &self.paths {
            let image = match Image::open(path) {
                Ok(image) => image,
                Err(error) => {
                    tell(&error.to_string());
                    continue;
                }
            };
            for arena in 0..image.description().arenas.len() as u32 {
                let bytes = used_bytes(&image, arena);
                if !goes_on() || self.table().bytes.saturating_add(bytes) > self.most_bytes {
                    return;
                }
                let _ = self.get((image.identity(), arena), tell);
            }
        }
    }

    /// An arena of an image, loaded if need be.
    pub(crate) fn get(&self, key: Key, tell: &dyn Fn(&str)) -> Result<Arc<Template>, Answer> {
        let mut table = self.table();
        loop {
            table.clock += 1;
            let now = table.clock;
            if let Some(held) = table.held.get_mut(&key) {
                held.used_at = now;
                return Ok(Arc::clone(&held.template));
            }
            if !table.loading.contains(&key) {
                break;
            }
            table = self.loaded.wait(table).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        table.loading.insert(key);
        drop(table);
        let mut loading = Loading { residents: self, key, bytes: 0 };
        let Some(image) = self.find(key) else {
            count(&self.metrics.not_held);
            return Err(Answer::NotHeld);
        };
        loading.make_room(used_bytes(&image, key.1))?;
        let loaded = load(&image, key.1).inspect_err(|error| tell(&error.to_string()));
        let Ok(template) = loaded else {
            count(&self.metrics.failed_loads);
            return Err(Answer::Failed);
        };
        count(&self.metrics.loads);
        Ok(loading.finish(Arc::new(template)))
    }

    /// The image with this identity, among those that are served now: a file may have been replaced.
    fn find(&self, (identity, arena): Key) -> Option<Image> {
        let images = self.paths.iter().filter_map(|path| Image::open(path).ok());
        let has_arena = |image: &Image| image.description().arenas.len() > arena as usize;
        images.into_iter().find(|image| image.identity() == identity && has_arena(image))
    }
}

impl Loading<'_> {
    /// Gives up what was used least recently until there is room, or until nothing is left to give up.
    fn make_room(&mut self, bytes: u64) -> Result<(), Answer> {
        let residents = self.residents;
        if bytes > residents.most_bytes {
            return Err(Answer::TooLarge);
        }
        let mut table = residents.table();
        while table.bytes + bytes > residents.most_bytes {
            let oldest = table.held.iter().min_by_key(|(_, held)| held.used_at);
            let Some(key) = oldest.map(|(key, _)| *key) else {
                // Others are being loaded.
                table = residents.loaded.wait(table).unwrap_or_else(|it| it.into_inner());
                continue;
            };
            if let Some(held) = table.held.remove(&key) {
                table.bytes -= held.bytes;
                count(&residents.metrics.dropped);
            }
        }
        table.bytes += bytes;
        self.bytes = bytes;
        Ok(())
    }

    fn finish(mut self, template: Arc<Template>) -> Arc<Template> {
        let mut table = self.residents.table();
        let (bytes, used_at) = (std::mem::take(&mut self.bytes), table.clock);
        table.held.insert(self.key, Held { template: Arc::clone(&template), bytes, used_at });
        template
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        let mut table = self.residents.table();
        table.loading.remove(&self.key);
        table.bytes -= self.bytes;
        self.residents.loaded.notify_all();
    }
}

/// What an arena of an image comes to in memory.
fn used_bytes(image: &Image, arena: u32) -> u64 {
    let arena = image.description().arenas.get(arena as usize);
    arena.map_or(0, |arena| arena.pieces.iter().map(|piece| piece.length_bytes).sum())
}

/// Every chunk is checked on its way; then the arena ends, and its memory stays.
fn load(image: &Image, arena: u32) -> cowslip::Result<Template> {
    let mut proceed = |_| ControlFlow::Continue(());
    // This process is the server that others ask.
    let options = RestoreOptions { via: Via::File, ..RestoreOptions::default() };
    let restored = image.restore(arena, &options, &mut proceed)?;
    restored.into_arena().freeze()?.into_template()
}
