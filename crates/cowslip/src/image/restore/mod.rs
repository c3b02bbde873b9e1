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
mod options;
mod plan;
mod restored;
mod schedule;
pub mod served;
mod source;
mod window;
mod working_set;

use std::collections::BTreeMap;
use std::sync::Arc;

use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange};

use self::lazy::{RestoreWorker, Work};
use self::options::{OPERATION, builder, threads};
use self::plan::Plan;
use self::restored::Recording;
use self::schedule::RestoreSchedule;
use self::served::Served;
use self::source::Source;
use super::OnProgress;
use super::description::{ArenaDescription, Root};
use super::open::Image;
use crate::arena::{Arena, ArenaBuilder};
use crate::mapping::backing_file::BackingFile;

pub use self::mapped::MappedImage;
pub use self::options::{OnDamage, RestoreOptions, Strategy, Via};
pub use self::restored::Restored;

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
