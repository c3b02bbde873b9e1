//! The process that saves: once a second it writes, freezes, saves to the store while it continues to write,
//! and publishes the image as `latest`. Its successor after a `kill -9` continues from `latest`.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use cowslip::image::{Compression, Image, Progress, RestoreOptions, SaveOptions, Strategy};
use cowslip::units::ByteCount;
use cowslip::{Arena, Error, ErrorKind, Frozen, Result};
use fastrand::Rng;

use crate::pattern::{BYTES, Change, History, PAGE_WORDS, PAGES, changes};
use crate::reader::{Damage, generation_of, look_at_all};
use crate::store::{self, Broom, LATEST, base_and_writer, url};
use crate::{memory, say};

const EACH: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(50);
/// One in this many images is complete.
const CHAIN: u32 = 8;
/// One in this many saves is cancelled.
const BROKEN_OFF_ONE_IN: u32 = 20;

struct Writer {
    seed: u64,
    number: u32,
    rng: Rng,
    arena: Arena,
    history: History,
    /// The last image that it saved, or from which it was restored.
    parent: Option<String>,
    /// The generation of the complete image that `parent` needs, and of the complete one before.
    base: u32,
    kept_base: u32,
    since_complete: u32,
}

pub(crate) fn run(seed: u64, number: u32) -> Result<()> {
    let mut writer = Writer::begin(seed, number)?;
    let broom = Broom::new()?;
    loop {
        let began = Instant::now();
        writer.generation(&broom)?;
        say::begins("sleep");
        std::thread::sleep(EACH.saturating_sub(began.elapsed()));
    }
}

impl Writer {
    fn begin(seed: u64, number: u32) -> Result<Self> {
        let mut rng = Rng::with_seed(seed.wrapping_add(u64::from(number) << 32));
        let found = loop {
            say::begins("read-latest");
            match cowslip_remote::read_latest(&url(LATEST)) {
                Ok(found) => break found,
                Err(error) => say::refused("read-latest", &error),
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        let Some(pointer) = found else { return Self::new(seed, number, rng) };
        let (arena, history) = loop {
            say::begins("go-on");
            match restore(seed, &pointer.image, &mut rng) {
                Ok(restored) => break restored,
                Err(error) => say::refused("go-on", &error),
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        say::did("continuations", 1);
        if rng.bool() {
            arena.track_changes(true);
        }
        let (base, _) = base_and_writer(&pointer.image).expect("the soak's own name");
        let since_complete = history.generation - base + 1;
        let parent = Some(pointer.image);
        Ok(Self {
            seed,
            number,
            rng,
            arena,
            history,
            parent,
            base,
            kept_base: base,
            since_complete,
        })
    }

    fn new(seed: u64, number: u32, rng: Rng) -> Result<Self> {
        let mut arena = Arena::new(ByteCount(BYTES as u64))?;
        // The arena must be handed out whole.
        std::mem::forget(arena.slice::<u64>(BYTES / 8)?);
        let history = History::at(seed, 0);
        history.fill(memory::words_mut(&mut arena), 0..PAGES);
        arena.track_changes(true);
        let parent = None;
        Ok(Self {
            seed,
            number,
            rng,
            arena,
            history,
            parent,
            base: 0,
            kept_base: 0,
            since_complete: 0,
        })
    }

    /// The next generation: written, frozen, saved, published.
    fn generation(&mut self, broom: &Broom) -> Result<()> {
        let changed = self.history.advance();
        let words = memory::words_mut(&mut self.arena);
        changed.iter().for_each(|change| self.history.fill(words, change.pages.clone()));
        say::begins("freeze");
        let frozen = self.arena.freeze_timeout(PATIENCE)?;
        let generation = self.history.generation;
        let parent = self.parent.clone().filter(|_| self.since_complete < CHAIN);
        let base = if parent.is_some() { self.base } else { generation };
        let name = store::name(base, generation, self.number);
        say::begins("save");
        let saved = self.save(&frozen, &name, parent.as_deref());
        if let Err(error) = saved {
            say::refused("save", &error);
            return Ok(());
        }
        say::did("saves", 1);
        let is_complete = parent.is_none();
        self.parent = Some(name.clone());
        self.since_complete = if is_complete { 1 } else { self.since_complete + 1 };
        if is_complete {
            (self.kept_base, self.base) = (self.base, base);
        }
        say::begins("publish");
        match publish(&name) {
            Ok(()) => say::published(generation),
            Err(error) => {
                say::refused("publish", &error);
                return Ok(());
            }
        }
        if is_complete {
            say::begins("sweep");
            if let Err(error) = self.sweep(broom, &frozen) {
                say::refused("sweep", &error);
            }
        }
        Ok(())
    }

    /// Saves the frozen view, and scribbles meanwhile over pages that the next generation writes, so that
    /// they are right again by then.
    fn save(&mut self, frozen: &Frozen, name: &str, parent: Option<&str>) -> Result<()> {
        let options = self.options();
        let broken_off_at =
            (self.rng.u32(..BROKEN_OFF_ONE_IN) == 0).then(|| self.rng.u64(..(BYTES / 4) as u64));
        let next = changes(self.seed, self.history.generation + 1);
        let words = memory::words_mut(&mut self.arena);
        let rng = &mut self.rng;
        std::thread::scope(|scope| {
            let saving = scope.spawn(|| {
                let mut beat = Beat::default();
                let mut progress = |progress: Progress| {
                    beat.at(progress);
                    match broken_off_at {
                        Some(bytes) if progress.done_bytes >= bytes => ControlFlow::Break(()),
                        _ => ControlFlow::Continue(()),
                    }
                };
                let parent = parent.map(url);
                cowslip_remote::save(
                    &[frozen],
                    &url(name),
                    parent.as_deref(),
                    &options,
                    &mut progress,
                )
            });
            while !saving.is_finished() {
                scribble(words, &next, rng);
                std::thread::sleep(Duration::from_millis(1));
            }
            saving.join().expect("a save does not panic").map(drop)
        })
    }

    fn options(&mut self) -> SaveOptions {
        let compressions =
            [Compression::None, Compression::None, Compression::Lz4, Compression::Zstd(1)];
        let mut options = SaveOptions { threads: 2, ..SaveOptions::default() };
        options.compression = compressions[self.rng.usize(..compressions.len())];
        options.user.insert("generation".into(), self.history.generation.to_string());
        options
    }

    /// Removes images that no kept one needs: the complete ones before the last two, and those that need
    /// them. Some are first replaced by another image of the same name.
    fn sweep(&mut self, broom: &Broom, frozen: &Frozen) -> Result<()> {
        let mut names = broom.names()?;
        names.retain(|name| base_and_writer(name).is_some_and(|(base, _)| base < self.kept_base));
        // Images that need others come first.
        names.sort_unstable();
        for name in names.iter().rev() {
            say::beat();
            let is_image = name.len() == store::name(0, 0, 0).len();
            let is_complete = is_image && name[1..7] == name[9..15];
            let is_replaced_already = !is_complete || self.rng.bool();
            if is_replaced_already {
                broom.remove(name)?;
                say::did("deletions", 1);
            } else {
                let options = self.options();
                let mut beat = Beat::default();
                let mut progress = |progress| {
                    beat.at(progress);
                    ControlFlow::Continue(())
                };
                cowslip_remote::save(&[frozen], &url(name), None, &options, &mut progress)?;
                say::did("replacements", 1);
            }
        }
        Ok(())
    }
}

/// Sends a beat about every megabyte.
#[derive(Default)]
struct Beat(u64);

impl Beat {
    fn at(&mut self, progress: Progress) {
        if progress.done_bytes >> 20 != self.0 {
            self.0 = progress.done_bytes >> 20;
            say::beat();
        }
    }
}

/// Writes content that no image may have.
fn scribble(words: &mut [u64], changes: &[Change], rng: &mut Rng) {
    for change in changes {
        let page = rng.usize(change.pages.clone());
        words[page * PAGE_WORDS..][..PAGE_WORDS].fill(rng.u64(..) << 1);
    }
}

fn publish(name: &str) -> Result<()> {
    let image = cowslip_remote::open(&url(name))?;
    let now = cowslip_remote::set_latest(&url(LATEST), name, &image)?;
    if now.image == name {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Busy, "publish").because(format!("{} is younger", now.image)))
}

fn restore(seed: u64, name: &str, rng: &mut Rng) -> Result<(Arena, History)> {
    let image: Image = cowslip_remote::open(&url(name))?;
    let history = History::at(seed, generation_of(&image)?);
    let damage = Damage::from_image(&image);
    let strategy = if rng.bool() { Strategy::Hybrid } else { Strategy::Eager };
    let on_damage = Some(damage.listener());
    let options = RestoreOptions { strategy, on_damage, threads: 2, ..RestoreOptions::default() };
    let restored = image.restore(0, &options, &mut |_| ControlFlow::Continue(()))?;
    look_at_all(restored.arena(), &history, rng, None);
    if !restored.wait(PATIENCE)? {
        say::broken("a restore hangs");
    }
    say::did("restores", 1);
    Ok((restored.into_arena(), history))
}
