//! Restores an image into memory.
//!
//! ```text
//!  Image ─▶ plan: what is wanted, the working set of last time, the rest ([`plan`], [`working_set`])
//!             └─▶ [`lazy`] (hybrid): the arena is there at once, its chunks come as they are touched
//!             └─▶ [`eager`]: all of it first
//!                   └─▶ [`source`]: a chunk read and checked, before anybody can see it
//! ```
//! [`mapped`] maps the file without an arena.

mod eager;
mod lazy;
mod lending;
mod mapped;
mod plan;
mod schedule;
pub mod served;
mod source;
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
use crate::arena::{Arena, ArenaBuilder, Backing};
use crate::mapping::backing_file::BackingFile;
use crate::template::Place;

use self::lazy::{RestoreWorker, Work};
pub use self::mapped::MappedImage;

const OPERATION: &str = "restore an image";
/// More threads than this would only wait for one another.
const MOST_THREADS: usize = 16;

/// The way in which an image becomes memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Strategy {
    /// The arena can be used at once. Touched chunks are brought in first, then those that were touched first when that
    /// was [recorded](RestoreOptions::record), then the rest. Needs userfaultfd for kernel faults; without it the
    /// restore is eager.
    #[default]
    Hybrid,
    /// Everything, by several threads, before the arena is returned; even a server's memory is copied.
    Eager,
    /// Maps memory of a [server](RestoreOptions::via) that already holds the image: see [`crate::Template::restore`].
    /// Memory that is not written much stays there until [`Restored::wait`]. A restore chooses this by itself;
    /// requesting it is the same as requesting hybrid.
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

/// The server that a restore asks for an image before it reads the file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Via {
    /// The `cowslip serve` with the socket in the environment variable `COWSLIP_SERVE`. If there is none, or it does
    /// not have the image, the file is read.
    #[default]
    Environment,
    /// The one at this socket, which must have it.
    Server(PathBuf),
    /// None: the file is read.
    File,
}

/// Receives the addresses that could not be restored and the error, before any thread gets the `SIGBUS`. It is called
/// in a thread of the library and may use neither the arena nor its memory.
#[derive(Clone)]
pub struct OnDamage(Arc<Tell>);

type Tell = dyn Fn(&Error, VirtRange) + Send + Sync;

impl OnDamage {
    /// Makes one that calls `tell`.
    pub fn new(tell: impl Fn(&Error, VirtRange) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }
}

impl fmt::Debug for OnDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnDamage")
    }
}

/// Settings of a restore.
#[derive(Clone, Debug, Default)]
pub struct RestoreOptions {
    /// The way in which the image becomes memory.
    pub strategy: Strategy,
    /// The place of the arena: at [`Place::Original`] pointers into it stay valid.
    pub place: Place,
    /// The backing of its memory: huge pages or base pages.
    pub backing: Backing,
    /// Threads that read; 0 means the number of processors.
    pub threads: usize,
    /// Brings in only touched chunks, and remembers their order, until
    /// [`Restored::finish_recording`]. Only hybrid restores record.
    pub record: bool,
    /// The server to ask first, which may have the image in memory. A restore that records reads the file.
    pub via: Via,
    /// Called for damage that is found when the arena is already in use.
    pub on_damage: Option<OnDamage>,
}

/// An arena with the content of an image, which may still be arriving.
#[derive(Debug)]
pub struct Restored {
    arena: Arena,
    strategy: Strategy,
    roots: BTreeMap<String, VirtRange>,
    schedule: Arc<RestoreSchedule>,
    recording: Option<Recording>,
}

/// The target of a record of first touches.
#[derive(Debug)]
struct Recording {
    file: PathBuf,
    image: Image,
    arena: u32,
}

impl Image {
    /// Makes an arena with the content of one of the image's. When everything is loaded it no longer depends on the
    /// file. It can be frozen, forked and saved before that, even onto the same path: missing chunks are brought in
    /// first, while its threads run.
    ///
    /// Chunks are checked before they can be seen. If one is damaged or cannot be read after the arena was returned,
    /// [`RestoreOptions::on_damage`] is called, an access to it raises `SIGBUS` (`EFAULT` for a system call), and the
    /// arena refuses to be frozen; [`Arena::discard`] of whole chunks makes them zeroes.
    ///
    /// `progress` is called only for eager restores; see [`Restored::progress`].
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the image has no such arena, [`ErrorKind::Unsupported`] for hugetlb, [`ErrorKind::Busy`]
    /// if its addresses are taken or `progress` broke it off, [`ErrorKind::Corrupt`] if a chunk is damaged; an error of
    /// the kernel.
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

    /// The chunks of 2 MiB of an arena that a restore brings into memory, in order: those that are allocated, at least
    /// in part, and not zeroes.
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

    /// The addresses of its named places in an arena that starts at `start`.
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

/// An arena with its memory allocated as it was.
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

    /// The arena, even if parts are missing; these continue to arrive.
    pub fn into_arena(self) -> Arena {
        self.arena
    }

    /// The present range of the place that was saved under this name.
    pub fn root(&self, name: &str) -> Option<VirtRange> {
        self.roots.get(name).copied()
    }

    /// The way in which it was, or is, restored: not always the requested one.
    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// The progress of loading it.
    pub fn progress(&self) -> Progress {
        self.schedule.progress()
    }

    /// Waits until everything is loaded, and independent of the file and of a server; `false` if that took longer than
    /// `patience`.
    ///
    /// # Errors
    /// The error for the first chunk that could not be restored, the one passed to
    /// [`RestoreOptions::on_damage`].
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

    /// Writes beside the image which chunks were touched so far, in that order, and continues to restore the rest.
    /// Later restores bring in these chunks first. The file's mode is 0600.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if nothing is recorded; an error of the file system.
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
