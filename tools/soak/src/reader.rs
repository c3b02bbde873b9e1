//! A process that restores, on its own node: restores `latest` by every means, and checks every word.

use std::collections::BTreeSet;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cowslip::image::{
    Image, OnDamage, Progress, RestoreOptions, Restored, SaveOptions, Strategy, Via, save,
};
use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange};
use cowslip::{Arena, Error, ErrorKind, Result};
use cowslip_remote::OpenOptions;
use cowslip_serve::{Opener, Options, Server};
use fastrand::Rng;

use crate::pattern::{BYTES, CHUNK_WORDS, CHUNKS, History, PAGE_WORDS, PAGES};
use crate::store::{LATEST, url};
use crate::{memory, say};

const PATIENCE: Duration = Duration::from_secs(50);
/// The most images that a node keeps.
const MOST_KEPT: usize = 12;

fn proceed(_: Progress) -> ControlFlow<()> {
    say::beat();
    ControlFlow::Continue(())
}

pub(crate) fn run(seed: u64, number: u32, folder: &Path) -> Result<()> {
    let rng = Rng::with_seed(seed.wrapping_mul(31).wrapping_add(u64::from(number)));
    let mut node = Node { seed, rng, folder: folder.to_owned(), latest: 0 };
    say::begins("look-at-cache");
    node.look_at_cache();
    loop {
        let way = node.rng.u8(..12);
        let (name, round): (_, fn(&mut Node) -> Result<()>) = match way {
            0..4 => ("hybrid", |node| node.restore(Strategy::Hybrid)),
            4..6 => ("eager", |node| node.restore(Strategy::Eager)),
            6..8 => ("record", |node| node.record(false)),
            8 => ("linger", |node| node.record(true)),
            9 => ("verify", Node::verify),
            _ => ("served", Node::served),
        };
        say::begins(name);
        if let Err(error) = round(&mut node) {
            say::refused(name, &error);
        }
        say::begins("sleep");
        std::thread::sleep(Duration::from_millis(node.rng.u64(..400)));
    }
}

/// The generation recorded in an image.
pub(crate) fn generation_of(image: &Image) -> Result<u32> {
    let said = image.description().user.get("generation").and_then(|text| text.parse().ok());
    said.ok_or_else(|| {
        Error::new(ErrorKind::Corrupt, "read an image").because("it has no generation")
    })
}

/// The losses of which a restore was told.
pub(crate) struct Damage {
    images: String,
    told: Arc<Mutex<Vec<VirtRange>>>,
}

impl Damage {
    pub(crate) fn from_image(image: &Image) -> Self {
        let all = std::iter::once(image).chain(image.ancestors());
        let one = |image: &Image| {
            let name = image.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
            format!("{name}={}", image.identity())
        };
        let images = all.map(one).collect::<Vec<_>>().join(",");
        Self { images, told: Arc::default() }
    }

    pub(crate) fn listener(&self) -> OnDamage {
        let (images, told) = (self.images.clone(), Arc::clone(&self.told));
        OnDamage::new(move |error, range| {
            told.lock().unwrap().push(range);
            say::told(&images, error);
        })
    }

    fn is_told(&self, address: usize) -> bool {
        self.told.lock().unwrap().iter().any(|range| (range.start..range.end()).contains(&address))
    }
}

/// Tests if memory is present, by a system call that reads it.
struct Probe {
    reader: PipeReader,
    writer: PipeWriter,
}

impl Probe {
    fn new() -> std::io::Result<Self> {
        let (reader, writer) = std::io::pipe()?;
        Ok(Self { reader, writer })
    }

    fn is_there(&mut self, word: &[u64]) -> bool {
        let is_there = self.writer.write_all(memory::bytes(word)).is_ok();
        if is_there {
            let _ = self.reader.read_exact(&mut [0; 8]);
        }
        is_there
    }
}

/// Checks some chunks in random order, by loads; with `damage`, only those that a system call can read,
/// because a load from the others ends the process.
fn look_at(
    arena: &Arena,
    history: &History,
    chunks: impl Iterator<Item = usize>,
    damage: Option<&Damage>,
) {
    let words = memory::words(arena);
    let mut probe = damage.and_then(|_| Probe::new().ok());
    for chunk in chunks {
        let first = chunk * CHUNK_WORDS;
        let there = &words[first..first + CHUNK_WORDS];
        if let (Some(probe), Some(damage)) = (&mut probe, damage)
            && !probe.is_there(&there[..1])
        {
            say::did("lost_chunks", 1);
            if !damage.is_told(there.as_ptr() as usize) {
                say::broken("untold: a chunk is lost that nobody was told of");
            }
            continue;
        }
        if let Err(wrong) = history.check(first, there) {
            let generation = history.generation;
            say::wrong(wrong.words, &format!("generation {generation}: {wrong}"));
        }
        say::did("bytes", CHUNK_BYTES as u64);
    }
}

pub(crate) fn look_at_all(
    arena: &Arena,
    history: &History,
    rng: &mut Rng,
    damage: Option<&Damage>,
) {
    look_at(arena, history, shuffled(rng).into_iter(), damage);
}

fn shuffled(rng: &mut Rng) -> Vec<usize> {
    let mut chunks: Vec<_> = (0..CHUNKS).collect();
    rng.shuffle(&mut chunks);
    chunks
}

struct Node {
    seed: u64,
    rng: Rng,
    folder: PathBuf,
    /// The youngest generation in `latest` so far.
    latest: u32,
}

impl Node {
    fn open(&mut self) -> Result<(Image, History)> {
        let streams = [1, 4, 16][self.rng.usize(..3)];
        let options = OpenOptions::default().streams(streams);
        let image = cowslip_remote::open_with(&url(LATEST), options)?;
        let history = self.history_of(&image)?;
        Ok((image, history))
    }

    fn history_of(&mut self, image: &Image) -> Result<History> {
        let generation = generation_of(image)?;
        if generation < self.latest {
            say::broken(&format!("latest went back from {} to {generation}", self.latest));
        }
        self.latest = generation;
        Ok(History::at(self.seed, generation))
    }

    fn options(&mut self, strategy: Strategy, damage: &Damage) -> RestoreOptions {
        let mut options = RestoreOptions { strategy, ..RestoreOptions::default() };
        options.threads = self.rng.usize(1..=3);
        options.on_damage = Some(damage.listener());
        options
    }

    fn restore(&mut self, strategy: Strategy) -> Result<()> {
        let (image, history) = self.open()?;
        let damage = Damage::from_image(&image);
        let options = self.options(strategy, &damage);
        let restored = image.restore(0, &options, &mut proceed)?;
        let is_probing = self.rng.bool();
        self.look(restored, history, is_probing.then_some(&damage))
    }

    /// Checks all restored memory, waits for the restore, and at times continues with the arena.
    fn look(
        &mut self,
        restored: Restored,
        history: History,
        damage: Option<&Damage>,
    ) -> Result<()> {
        // Skipped at times, so that the first access may be a write.
        if self.rng.u8(..4) > 0 {
            look_at_all(restored.arena(), &history, &mut self.rng, damage);
        }
        if self.rng.bool() {
            say::begins("wait");
            if !restored.wait(PATIENCE)? {
                say::broken("a restore hangs");
            }
            look_at_all(restored.arena(), &history, &mut self.rng, damage);
        }
        say::did("restores", 1);
        if self.rng.u8(..3) == 0 {
            return self.go_on(restored.into_arena(), history);
        }
        Ok(())
    }

    /// Touches a part, which is recorded; then the rest, when its image may be gone.
    fn record(&mut self, lingers: bool) -> Result<()> {
        let (image, history) = self.open()?;
        let damage = Damage::from_image(&image);
        let options = RestoreOptions { record: true, ..self.options(Strategy::Hybrid, &damage) };
        let restored = image.restore(0, &options, &mut proceed)?;
        let chunks = shuffled(&mut self.rng);
        let (now, later) = chunks.split_at(self.rng.usize(..CHUNKS));
        look_at(restored.arena(), &history, now.iter().copied(), None);
        if lingers {
            let until = Instant::now() + Duration::from_secs(self.rng.u64(10..40));
            while Instant::now() < until {
                say::beat();
                std::thread::sleep(Duration::from_millis(500));
            }
        }
        let is_probing = lingers || self.rng.bool();
        look_at(restored.arena(), &history, later.iter().copied(), is_probing.then_some(&damage));
        say::did("restores", 1);
        if !lingers {
            restored.finish_recording()?;
            say::did("records", 1);
        }
        Ok(())
    }

    fn verify(&mut self) -> Result<()> {
        let (image, _) = self.open()?;
        image.verify(&mut proceed)?;
        say::did("verifications", 1);
        say::did("bytes", BYTES as u64);
        Ok(())
    }

    /// Writes, freezes and saves here, twice; no image has content that was written after its freeze.
    fn go_on(&mut self, mut arena: Arena, mut history: History) -> Result<()> {
        let files = ["first", "second"].map(|name| self.folder.join(name));
        let mut parent: Option<PathBuf> = None;
        for (round, file) in files.iter().enumerate() {
            say::begins("go-on");
            let words = memory::words_mut(&mut arena);
            for _ in 0..self.rng.usize(1..20) {
                let page = self.rng.usize(..PAGES);
                history.write(page..page + 1, (1 << 30) + round as u32);
                history.fill(words, page..page + 1);
            }
            let frozen = arena.freeze_timeout(PATIENCE)?;
            let words = memory::words_mut(&mut arena);
            let scribbled = self.rng.usize(..PAGES);
            words[scribbled * PAGE_WORDS..][..PAGE_WORDS].fill(2);
            let options =
                SaveOptions { parent: parent.take(), threads: 2, ..SaveOptions::default() };
            save(&[&frozen], file, &options, &mut proceed)?;
            drop(frozen);
            look_at_image(&Image::open(file)?, &history)?;
            history.fill(memory::words_mut(&mut arena), scribbled..scribbled + 1);
            look_at_all(&arena, &history, &mut self.rng, None);
            say::did("local_saves", 1);
            parent = Some(file.clone());
        }
        files.iter().for_each(|file| drop(std::fs::remove_file(file)));
        Ok(())
    }

    /// Fetches the image and those that it needs to this node, serves them, and restores from the server.
    fn served(&mut self) -> Result<()> {
        let cached = self.cached();
        if cached.len() > MOST_KEPT {
            cached.iter().for_each(|file| drop(std::fs::remove_file(file)));
        }
        let before: BTreeSet<_> = self.cached().into_iter().collect();
        cowslip_remote::pull(&url(LATEST), &self.folder, &mut proceed)?;
        say::did("pulls", 1);
        // Names are in the order of generations; a chain is already there if it has nothing new.
        let Some(file) = self.cached().into_iter().rev().find(|file| !before.contains(file)) else {
            return Ok(());
        };
        let image = Image::open(&file)?;
        let history = self.history_of(&image)?;
        let socket = self.folder.join("socket");
        let images = vec![file];
        let options = Options {
            images,
            opener: Opener::default(),
            most_clients: 4,
            most_memory: ByteCount(2 * BYTES as u64),
        };
        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::System, "serve an image").because(error.to_string())
        };
        let server = Server::bind(&socket, options, |_| {}).map_err(failed)?;
        let (stopped, mut stop) = std::io::pipe().map_err(failed)?;
        let server = std::thread::spawn(move || server.run(stopped.as_fd()));
        let damage = Damage::from_image(&image);
        let mut options = self.options(Strategy::Hybrid, &damage);
        options.via = Via::Server(socket);
        say::begins("via-server");
        let restored = image.restore(0, &options, &mut proceed);
        let looked = restored.and_then(|restored| {
            say::did("served_restores", 1);
            self.look(restored, history, Some(&damage))
        });
        let _ = stop.write_all(&[1]);
        server.join().expect("a server does not panic").map_err(failed)?;
        looked
    }

    /// The fetched images, by name.
    fn cached(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let is_image = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            crate::store::base_and_writer(&name).is_some() && !name.contains('.')
        };
        let mut files: Vec<_> = entries.map(|entry| entry.path()).filter(is_image).collect();
        // By generation, regardless of the writer.
        files.sort_unstable_by_key(|file| file.file_name().map(|name| name.to_owned()));
        files
    }

    /// Checks the cache of a killed predecessor: fetched images are complete.
    fn look_at_cache(&mut self) {
        for file in self.cached() {
            let verified = Image::open(&file).and_then(|image| image.verify(&mut proceed));
            match verified {
                Ok(()) => say::did("cached_verified", 1),
                Err(error) => say::broken(&format!("a fetched file is not whole: {error}")),
            }
        }
        for entry in std::fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Checks all words of an image.
pub(crate) fn look_at_image(image: &Image, history: &History) -> Result<()> {
    let mut content = vec![0_u64; CHUNK_WORDS];
    let mut bytes = vec![0; CHUNK_BYTES];
    for chunk in 0..CHUNKS {
        say::beat();
        image.read_chunk(0, chunk as u32, &mut bytes)?;
        let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        content.iter_mut().zip(words).for_each(|(word, is)| *word = is);
        if let Err(wrong) = history.check(chunk * CHUNK_WORDS, &content) {
            say::wrong(wrong.words, &format!("in {}: {wrong}", image.path().display()));
        }
    }
    say::did("bytes", BYTES as u64);
    Ok(())
}
