//! An image into memory.
//!
//! ```text
//!  Image ─▶ plan: what is wanted, the working set of last time, the rest ([`plan`], [`working_set`])
//!             └─▶ [`lazy`] (hybrid): the arena is there at once, its chunks come as they are touched
//!             └─▶ [`eager`]: all of it first
//!                   └─▶ [`source`]: a chunk read and checked, before anybody can see it
//! ```
//! What others do, without an arena, is in [`standalone`].

mod eager;
mod lazy;
mod lending;
mod plan;
mod schedule;
pub mod served;
mod source;
mod standalone;
mod window;
mod working_set;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::units::{ByteCount, CHUNK_BYTES, VirtRange};

use self::plan::Plan;
use self::schedule::RestoreSchedule;
use self::served::Served;
use self::source::Source;
use super::description::{ArenaDescription, Root};
use super::open::Image;
use super::{OnProgress, Progress};
use crate::arena::backing_file::BackingFile;
use crate::arena::{Arena, ArenaBuilder, Backing};
use crate::template::Place;

use self::lazy::{RestoreWorker, Work};
pub use self::standalone::{Standalone, StandaloneMode};

const OPERATION: &str = "restore an image";
/// More threads than this only wait for one another.
const MOST_THREADS: usize = 16;

/// How an image becomes memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Strategy {
    /// The arena can be used at once. What is touched comes first, then what was touched first when that
    /// was [recorded](RestoreOptions::record), then the rest. Needs userfaultfd for kernel faults; without
    /// it the restore is eager.
    #[default]
    Hybrid,
    /// Everything, by several threads, before the arena is handed out: of a server's memory too, a copy.
    Eager,
    /// From memory that holds it already, of a [server](RestoreOptions::via): see [`crate::Template::restore`]. What is not
    /// written much stays there until [`Restored::wait`]. A restore comes to this by itself; to ask for it is to ask for
    /// hybrid.
    Resident,
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hybrid => "hybrid",
            Self::Eager => "eager",
            Self::Resident => "resident",
        })
    }
}

/// Whom a restore asks for an image before it reads the file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Via {
    /// The `cowslip serve` whose socket the environment variable `COWSLIP_SERVE` names. If there is none, or it does not have
    /// the image, the file is read.
    #[default]
    Environment,
    /// The one at this socket, which must have it.
    Server(PathBuf),
    /// Nobody.
    File,
}

/// Is told which addresses could not be restored and why, before anybody gets the `SIGBUS`. It is called in
/// a thread of the library's and may use neither the arena nor its memory.
#[derive(Clone)]
pub struct OnDamage(Arc<Tell>);

type Tell = dyn Fn(&Error, VirtRange) + Send + Sync;

impl OnDamage {
    /// Calls `tell`.
    pub fn new(tell: impl Fn(&Error, VirtRange) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }
}

impl fmt::Debug for OnDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnDamage")
    }
}

/// How to restore.
#[derive(Clone, Debug, Default)]
pub struct RestoreOptions {
    /// How the image becomes memory.
    pub strategy: Strategy,
    /// Where the arena goes: at [`Place::Original`] pointers into it stay right.
    pub place: Place,
    /// What its memory shall be made of: huge pages or base pages.
    pub backing: Backing,
    /// Threads that read; 0: as many as there are processors.
    pub threads: usize,
    /// Only what is touched is brought in, and in which order it is remembered, until
    /// [`Restored::finish_recording`]. Only hybrid restores record.
    pub record: bool,
    /// Whether another process that has the image in memory is asked first. A restore that records reads the file.
    pub via: Via,
    /// Is told of damage that is found when the arena is in use already.
    pub on_damage: Option<OnDamage>,
}

/// An arena with the content of an image, which may still be on its way.
#[derive(Debug)]
pub struct Restored {
    arena: Arena,
    strategy: Strategy,
    roots: BTreeMap<String, VirtRange>,
    schedule: Arc<RestoreSchedule>,
    recording: Option<Recording>,
}

/// What a record of first touches is of.
#[derive(Debug)]
struct Recording {
    file: PathBuf,
    image: Image,
    arena: u32,
}

impl Image {
    /// Makes an arena with the content of one of the image's. When all is there it has nothing to do with the
    /// file any more. It can be frozen, forked and saved before that, onto the same path too: what is
    /// missing is brought in first, while its threads run.
    ///
    /// Chunks are checked before anybody can see them. If one is damaged or cannot be read after the arena was
    /// handed out, [`RestoreOptions::on_damage`] is told, an access to it is a `SIGBUS` (`EFAULT` for a system
    /// call), and the arena refuses to be frozen; [`Arena::discard`] of whole chunks makes them zeroes.
    ///
    /// `progress` is called for eager restores only; see [`Restored::progress`].
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the image has no such arena, [`ErrorKind::Unsupported`] for hugetlb, [`ErrorKind::Busy`] if its addresses are taken or
    /// `progress` broke it off, [`ErrorKind::Corrupt`] if a chunk is damaged; the kernel's.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use std::time::Duration;
    /// use cowslip::image::{Image, RestoreOptions, SaveOptions, save};
    /// use cowslip::{Arena, units::ByteCount};
    ///
    /// # let path = std::env::temp_dir().join(format!("doc-restore-{}.cowslip", std::process::id()));
    /// # let mut proceed = |_| ControlFlow::Continue(());
    /// let arena = Arena::new(ByteCount::mib(64))?;
    /// arena.slice::<u64>(1 << 20)?.fill(7);
    /// save(&[&arena.freeze()?], &path, &SaveOptions::default(), &mut proceed)?;
    ///
    /// let restored = Image::open(&path)?.restore(0, &RestoreOptions::default(), &mut proceed)?;
    /// let again = restored.arena(); // to be used at once
    /// assert!(restored.wait(Duration::from_secs(60))?); // free of the file
    /// save(&[&again.freeze()?], &path, &SaveOptions::default(), &mut proceed)?;
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), cowslip::Error>(())
    /// ```
    pub fn restore(
        &self,
        arena: u32,
        options: &RestoreOptions,
        progress: OnProgress<'_>,
    ) -> Result<Restored> {
        let Some(described) = self.description().arenas.get(arena as usize) else {
            return Err(Error::new(ErrorKind::Usage, OPERATION)
                .because(format!("it has {} arenas", self.description().arenas.len())));
        };
        let lender = match served::restore(self, arena, described, options, progress)? {
            Some(Served::Whole(restored)) => return Ok(self.resident(arena, restored)),
            Some(Served::Loading(lender)) => Some(lender),
            None => None,
        };
        let uffd = match options.strategy {
            Strategy::Hybrid | Strategy::Resident => lazy::open_uffd(),
            Strategy::Eager => {
                Err(Error::new(ErrorKind::Usage, OPERATION).because("only hybrid restores record"))
            }
        };
        let uffd = match uffd {
            Err(error) if options.record => return Err(error),
            uffd => uffd.ok(),
        };
        let strategy = if uffd.is_some() { Strategy::Hybrid } else { Strategy::Eager };

        let mut chunks = self.used_chunks(arena);
        let first = working_set::load(self, arena);
        let plan = Plan::new(chunks.clone(), &first, options.record);
        let schedule = Arc::new(RestoreSchedule::new(plan));
        let builder = builder(described, options)?;
        let backing_file = builder.open_store()?;
        let file = Arc::clone(&backing_file);
        let source = Source { image: self.clone(), arena, file, lender };
        let restored = match uffd.filter(|_| !chunks.is_empty()) {
            Some(uffd) => {
                let restored = make_arena(builder, backing_file, described)?;
                let first = lazy::bring_first(restored.shared(), &source, &schedule);
                chunks.retain(|&chunk| Some(chunk) != first);
                let readers = options.threads;
                let work = Work::new(source, &schedule, uffd, readers, options.on_damage.clone())?;
                RestoreWorker::start(&restored.handle.shared, &chunks, work)?;
                restored
            }
            None => {
                let restored = make_arena(builder, backing_file, described)?;
                let threads = threads(options.threads, chunks.len());
                eager::fill(restored.shared(), &source, &schedule, threads, progress)?;
                restored
            }
        };
        let file = working_set::file_of(self.path());
        let recording = options.record.then(|| Recording { file, image: self.clone(), arena });
        let roots = self.roots_in(arena, restored.range().start);
        Ok(Restored { arena: restored, strategy, roots, schedule, recording })
    }

    /// The chunks of 2 MiB of an arena that a restore brings into memory, in order: those that are handed out, in part at
    /// least, and are not zeroes.
    pub fn used_chunks(&self, arena: u32) -> Vec<u32> {
        let described = self.description().arenas.get(arena as usize);
        let is_used = |chunk: &u32| {
            let at = u64::from(*chunk) * CHUNK_BYTES as u64;
            described.is_some_and(|arena| arena.hands_out(at, CHUNK_BYTES as u64))
        };
        self.chunks_of(arena).into_iter().filter(is_used).collect()
    }

    fn resident(&self, arena: u32, restored: Arena) -> Restored {
        let roots = self.roots_in(arena, restored.range().start);
        let schedule = Arc::new(RestoreSchedule::new(Plan::new(Vec::new(), &[], false)));
        let strategy = Strategy::Resident;
        Restored { arena: restored, strategy, roots, schedule, recording: None }
    }

    /// Where its named places are in an arena that starts there.
    fn roots_in(&self, arena: u32, start: usize) -> BTreeMap<String, VirtRange> {
        let roots = self.description().roots.iter().filter(|(_, root)| root.arena == arena);
        let place = |(name, root): (&String, &Root)| {
            let range =
                VirtRange::new(start + root.offset_bytes as usize, root.length_bytes as usize);
            (name.clone(), range)
        };
        roots.map(place).collect()
    }
}

fn threads(wanted: usize, chunks: usize) -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if wanted == 0 { processors } else { wanted };
    threads.min(chunks).min(MOST_THREADS)
}

fn builder(described: &ArenaDescription, options: &RestoreOptions) -> Result<ArenaBuilder> {
    if options.backing == Backing::Hugetlb {
        return Err(Error::new(ErrorKind::Unsupported, OPERATION)
            .because("a file of hugetlb pages cannot be written to")
            .advise("restore it with transparent huge pages"));
    }
    let builder = Arena::builder(ByteCount(described.length_bytes)).backing(options.backing);
    Ok(match options.place {
        Place::Original => builder.at(described.start_address as usize),
        Place::Anywhere => builder,
    })
}

/// An arena whose memory is handed out as it was.
fn make_arena(
    builder: ArenaBuilder,
    backing_file: Arc<BackingFile>,
    described: &ArenaDescription,
) -> Result<Arena> {
    let arena = builder.build_on(backing_file)?;
    let start = arena.range().start;
    for piece in &described.pieces {
        let range =
            VirtRange::new(start + piece.offset_bytes as usize, piece.length_bytes as usize);
        let shared = arena.shared();
        if !shared.allocate_filled(&mut shared.lock(), range, piece.prot())? {
            return Err(Error::new(ErrorKind::Corrupt, OPERATION)
                .on(range)
                .because("its description hands memory out that an arena cannot"));
        }
    }
    Ok(arena)
}

impl Restored {
    /// The arena.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The arena, whether all of it is there or not; what is missing goes on coming.
    pub fn into_arena(self) -> Arena {
        self.arena
    }

    /// Where the place is now that was saved under this name.
    pub fn root(&self, name: &str) -> Option<VirtRange> {
        self.roots.get(name).copied()
    }

    /// How it was, or is, restored: not always as it was asked for.
    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// How much of it is there.
    pub fn progress(&self) -> Progress {
        self.schedule.progress()
    }

    /// Waits until all is there, and free of the file and of a server; `false` if that took longer than `patience`.
    ///
    /// # Errors
    /// The first chunk that could not be restored, as [`RestoreOptions::on_damage`] was told.
    pub fn wait(&self, patience: Duration) -> Result<bool> {
        if self.strategy == Strategy::Resident {
            return Ok(self.arena.wait_live(patience));
        }
        let deadline = Instant::now() + patience;
        let mut now = self.progress();
        while now.done_bytes < now.total_bytes {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            now = self.schedule.wait_moved(now, left);
        }
        self.schedule.error().map_or(Ok(true), Err)
    }

    /// Writes beside the image which chunks were touched so far, in that order, and goes on to restore the
    /// rest. Later restores bring these chunks in first. The file's mode is 0600.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if nothing is recorded; the file system's.
    pub fn finish_recording(&self) -> Result<&Path> {
        let Some(Recording { file, image, arena }) = &self.recording else {
            return Err(Error::new(ErrorKind::Usage, "record a working set")
                .because("none was asked for")
                .advise("ask for it when the image is restored"));
        };
        let touched = self.schedule.change(Plan::end_recording);
        working_set::save(image, *arena, &touched)?;
        Ok(file)
    }
}
